"""vLLM's own tier of files behind the host's memory, on the released vLLM: what it stores is read back, or lost."""

import pytest

from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Config, Evict, Group, ResetPrefixCache, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
STEPS = (Step(),) * 8
READ_BACK = "content read back from a storage"
LOADED = "request computed after it waited for a load"


def run(worker: WorkerClient, *events: AnyEvent, tier: str) -> Outcome:
    """The host gets the blocks of `x`, then those of others, for which it evicts the first ones; the pool's cache is
    emptied."""
    options = {"runner": "v2", "connector": "offloading", "tier": tier}
    config = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options=options, max_model_len=64)
    others: tuple[AnyEvent, ...] = ()
    for number in range(3):
        others += (Arrive(f"other{number}", ((f"o{number}", 41),), 2), *STEPS)
    first = (Arrive("x", (("d", 30),), 4), *STEPS, *STEPS, *others, Evict(40))
    outcome = worker.run(Trace(config, (*first, *events)))
    assert outcome.violation is None, outcome.violation.message
    return outcome


def test_a_request_loads_what_only_files_have(worker: WorkerClient) -> None:
    """S1 compares each chunk that was promoted with what its key names, S2 what the request then reads."""
    outcome = run(worker, Arrive("y", (("d", 30),), 4), *STEPS, *STEPS, tier="files")
    assert outcome.reached.get(READ_BACK)
    assert outcome.reached.get(LOADED)


def test_files_outlive_a_reset_of_the_prefix_cache(worker: WorkerClient) -> None:
    outcome = run(worker, ResetPrefixCache(), Step(), Arrive("y", (("d", 30),), 4), *STEPS, *STEPS, tier="files")
    assert outcome.reached.get(LOADED)


def test_what_another_process_removed_is_computed(worker: WorkerClient) -> None:
    """The first job that reads is number 0 of three: a file of it is cut off."""
    twice = (Arrive("y", (("d", 30),), 4), *STEPS, *STEPS, Evict(40), Arrive("z", (("o0", 41),), 2), *STEPS, *STEPS)
    outcome = run(worker, *twice, tier="faults")
    assert outcome.reached.get("evicted content computed again")


def test_without_files_nothing_is_read_back(worker: WorkerClient) -> None:
    outcome = run(worker, Arrive("y", (("d", 30),), 4), *STEPS, *STEPS, tier="none")
    assert not outcome.reached.get(READ_BACK)
