"""Released SGLang, through the same worker processes as a campaign. Makes the environment if it is missing.

RELEASE--CAUSE--SIGNATURE.json in corpus/sglang is a reduced trace of a real bug, listed in docs/explanation/sglang.md.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support import of_release

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.draw.workload import with_ratios
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Evict,
    Group,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Step,
    SwitchStorage,
    Trace,
    TraceError,
)
from hybridfuzz.targets.sglang.factory import SglangFactory

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

FOLDER = Path(__file__).parents[3] / "corpus" / "sglang"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
SILENT = Path(__file__).parent / "silent"
SILENT_FILES = sorted(path.name for path in SILENT.glob("*.json"))
"""RELEASE--WHAT.json: false alarms that were ours."""
DATA = Path(__file__).parents[2] / "data"
LATEST = "0.5.23"
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "12"))


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, WorkerClient]]:
    """One worker per release, started when it is first needed: importing SGLang takes most of the time."""
    started: dict[str, WorkerClient] = {}
    yield started
    for worker in started.values():
        worker.__exit__()


def worker_of(workers: dict[str, WorkerClient], release: str) -> WorkerClient:
    """With sessions where a release has them: what is drawn below has none."""
    between = ":" if "@" in release else "@"  # a release with its variant
    spec = f"sglang:sessions@{release}" if release == LATEST else f"sglang{between}{release}"
    if spec not in workers:
        workers[spec] = WorkerClient(spec, prepare(spec, print), trace_seconds=300)
        workers[spec].start()
    return workers[spec]


def run_random(worker: WorkerClient, overrides: dict[str, object]) -> Iterator[Outcome]:
    """Random traces; every fourth must do the same when it runs again."""
    factory = SglangFactory("sglang")
    workload = with_ratios({"stop_token": "0"})  # 0.5.23--abort-keeps-tokens-past-the-end shows with them
    for index in range(TRACES):
        trace = draw_trace(factory.capabilities, 7, index, overrides, factory.supports, workload=workload)
        outcome = worker.run(trace)
        assert outcome.violation is None, outcome.violation.message
        assert index % 4 or worker.run(trace).digest == outcome.digest
        yield outcome


@pytest.mark.parametrize("name", [of_release("sglang", name.partition("--")[0], name) for name in FILES])
def test_a_bug_of_a_release_shows_as_its_trace_says(workers: dict[str, WorkerClient], name: str) -> None:
    release, _, signature = name.removesuffix(".json").split("--")
    violation = worker_of(workers, release).run(load_trace(FOLDER / name)).violation
    assert violation is not None, "the release is silent"
    assert violation.signature == signature, violation.message


@pytest.mark.parametrize("name", [of_release("sglang", name.partition("--")[0], name) for name in SILENT_FILES])
def test_what_was_a_false_alarm_is_silent(workers: dict[str, WorkerClient], name: str) -> None:
    release = name.split("--", maxsplit=1)[0]
    violation = worker_of(workers, release).run(load_trace(SILENT / name)).violation
    assert violation is None, violation.message


@pytest.mark.parametrize("release", [of_release("sglang", release, release) for release in ("0.5.17", "0.5.20")])
def test_an_older_release_runs_what_is_drawn_for_it(release: str) -> None:
    """What came for 0.5.23 was drawn there, too: the adapter failed, and aborts were lost."""
    spec, ran = f"sglang@{release}", 0
    with WorkerClient(spec, prepare(spec, print), trace_seconds=300) as worker:
        capabilities = worker.start().capabilities
        for index in range(3 * TRACES):
            try:
                violation = worker.run(draw_trace(capabilities, 5, index, {}, lambda _: "")).violation
            except (TargetError, TraceError):  # refused: a campaign draws another one
                continue
            ran += 1
            assert violation is None or violation.oracle not in {"ADAPTER", "CRASH", "M8"}, violation.message
    assert ran > TRACES


def test_random_traces_without_prefix_caching_are_silent(workers: dict[str, WorkerClient]) -> None:
    exercised: Counter[str] = Counter()
    overrides = {"mamba_cache_mode": "none", "enable_prefix_caching": False}
    for outcome in run_random(worker_of(workers, LATEST), overrides):
        assert not outcome.reached.get("prefix hit")
        exercised.update(outcome.exercised)
    assert all(exercised[oracle] for oracle in ("M1", "M5", "M9", "S3", "S4", "S6"))


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer", "extra_buffer_lazy"])
def test_random_traces_are_silent(workers: dict[str, WorkerClient], strategy: str) -> None:
    exercised: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    # A track interval shorter than two verifications shows 0.5.23--two-crossings-in-flight.
    overrides = {"strategy": strategy, "mamba_cache_mode": "slots", "track": "2"}
    for outcome in run_random(worker_of(workers, LATEST), overrides):
        exercised.update(outcome.exercised)
        reached.update(outcome.reached)
    assert {oracle for oracle, times in exercised.items() if not times} <= {"M4"}, "the others have judged something"
    assert reached["state copied out of the cache"]
    assert reached["snapshot written beside the working state"] or strategy == "no_buffer"
    assert reached["draft rejected"] and reached["all drafts accepted"]
    assert reached["boundary crossed in a step with a rejection"]


@pytest.mark.parametrize("ring", ["3", "6"])
@pytest.mark.parametrize("depth", [0, 1])
def test_random_traces_with_a_ring_of_inputs_are_silent(
    workers: dict[str, WorkerClient], ring: str, depth: int
) -> None:
    """Without a prefix cache, where the release has no cause with them."""
    overrides = {"mamba_cache_mode": "none", "enable_prefix_caching": False, "num_speculative_tokens": 0}
    for outcome in run_random(worker_of(workers, LATEST), {**overrides, "replay": ring, "async_depth": depth}):
        assert outcome.exercised["S3"]


@pytest.mark.parametrize("graphs", [(), (1, 2, 4)])
@pytest.mark.parametrize("ring", ["3", "6"])
def test_a_hit_follows_an_answer_that_ended_with_an_empty_ring(
    workers: dict[str, WorkerClient], ring: str, graphs: tuple[int, ...]
) -> None:
    """Its last token is at a boundary of the tree; the next request decodes behind the state that it left."""
    groups, options = (Group("mamba", 4), Group("attention", 1)), {"strategy": "no_buffer", "replay": ring}
    config = Config(num_blocks=80, groups=groups, mamba_cache_mode="slots", max_num_seqs=2, max_model_len=24)
    config = msgspec.structs.replace(config, options=options, graph_sizes=graphs, async_depth=0)
    first = Arrive("r", (("a", 5),), 8)  # 12 tokens are computed
    second = Arrive("s", (("a", 5), ("~", 8)), 4)  # 16
    outcome = worker_of(workers, LATEST).run(Trace(config, (first, *[Step()] * 10, second, *[Step()] * 3)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["prefix hit"]


@pytest.mark.parametrize("core", ["python", "rust"])
@pytest.mark.parametrize(("strategy", "depth"), [("no_buffer", 0), ("extra_buffer", 1), ("extra_buffer_lazy", 1)])
def test_states_are_copied_into_few_checkpoints_and_back(
    workers: dict[str, WorkerClient], strategy: str, depth: int, core: str
) -> None:
    """There are two of them: a third prefix takes the place of another one. The flush gives back all."""
    options = {"strategy": strategy, "tree_core": core, "int8_checkpoints": "few"}
    config = msgspec.structs.replace(config_of(0, depth), options=options, max_num_seqs=1)
    config = msgspec.structs.replace(config, groups=(Group("mamba", 4, layers=2), Group("attention", 1)))
    asked = [(("a", 9),), (("b", 9),), (("c", 9),), (("c", 9), ("d", 2))]
    events: list[Arrive | Step | ResetPrefixCache] = []
    for index, prompt in enumerate([*asked, *asked]):
        reset = [ResetPrefixCache()] if index == len(asked) else []
        events += [*reset, Arrive(f"r{index}", prompt, 2), *(Step(),) * 6]
    outcome = worker_of(workers, LATEST).run(Trace(config, tuple(events)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["state copied into the cache in place of another one"]
    assert outcome.reached["state copied out of the cache"] and outcome.reached["prefix hit"]
    assert outcome.reached["prefix cache reset"] == 1


BREAKS = {
    "reserved": (
        "M1",
        """--- a/sglang/srt/mem_cache/mamba_checkpoint_pool.py
+++ b/sglang/srt/mem_cache/mamba_checkpoint_pool.py
@@ -224,3 +224,4 @@
             for shape in conv_shapes
         ]
         self.allocator = MambaSlotAllocator(size=num_slots, device=device)
+        self.allocator.free_slots = torch.arange(0, num_slots, dtype=torch.int64)
""",
    ),
    "window": (
        "S1",
        """--- a/sglang/srt/mem_cache/mamba_checkpoint_pool.py
+++ b/sglang/srt/mem_cache/mamba_checkpoint_pool.py
@@ -249,4 +249,4 @@
         cache = active_mamba_pool.mamba_cache
         self.temporal.store_from_pool(cache.temporal, active_slots, ckpt_slots)
         for i, c in enumerate(self.conv):
-            c[:, ckpt_slots] = cache.conv[i][:, active_slots]
+            pass
""",
    ),
}
"""Breaks of the pool of checkpoints, and the oracle that says so."""


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_pool_of_checkpoints_shows(name: str) -> None:
    oracle, patch = BREAKS[name]
    broken = patched(prepare(f"sglang@{LATEST}", print), [parse_patch(patch, name)])
    target = f"sglang@{broken.tree}"
    options = {"strategy": "extra_buffer", "int8_checkpoints": "default"}
    config = msgspec.structs.replace(config_of(0, 1), options=options)
    trace = Trace(config, (Arrive("r0", (("a", 9),), 2), *(Step(),) * 6))
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(trace).violation
    assert violation is not None and violation.oracle == oracle


@pytest.mark.parametrize("core", ["python", "both"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_hit_behind_an_image_and_a_window_follows_an_idle_batch(
    workers: dict[str, WorkerClient], core: str, depth: int
) -> None:
    groups = Group("mamba", 4), Group("attention", 2), Group("attention", 2, window=4)
    options = {"strategy": "extra_buffer", "inputs": "images", "tree_core": core}
    asked = ("image.b", 6), ("a", 7)
    config = Config(
        60, groups, "slots", max_model_len=40, max_num_seqs=2, max_num_batched_tokens=20, async_depth=depth,
        graph_sizes=(1, 2), options=options,
    )  # fmt: skip
    first, second = Arrive("r0", asked, 10), Arrive("r1", (*asked, ("c", 3)), 3)
    trace = Trace(config, (first, *(Step(),) * 14, DummyRun(2), second, *(Step(),) * 8))
    spec = LATEST if core == "python" else f"{core}@{LATEST}"
    outcome = worker_of(workers, spec).run(trace)
    assert outcome.violation is None, outcome.violation.message
    for state in ("hit behind an image", "hit behind a sliding window", "dummy run after requests"):
        assert outcome.reached[state] == 1, state
    assert outcome.reached["blocks to the left of a sliding window freed"]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("mixed", ["no", "yes"])
def test_a_draft_model_guesses_beside_arrivals_ends_and_an_idle_batch(
    workers: dict[str, WorkerClient], depth: int, mixed: str
) -> None:
    """The relay of the draft model's outputs is filtered and merged; S6 checks that no right guess is lost."""
    config = config_of(2, depth)
    options = {**config.options, "drafter": "eagle", "mixed_chunk": mixed}
    arrivals = [Arrive(name, ((name, 3),), new) for name, new in (("r0", 4), ("r1", 9), ("r2", 9))]
    verified = (Step(drafts=2, right=2), Step(drafts=2, right=1), Step(drafts=2, right=0))
    events = (*arrivals[:2], *verified, arrivals[2], *verified * 4, DummyRun(2))
    outcome = worker_of(workers, LATEST).run(Trace(msgspec.structs.replace(config, options=options), events))
    assert outcome.violation is None, outcome.violation.message
    for state in ("all drafts accepted", "draft rejected", "dummy run after requests"):
        assert outcome.reached[state], state
    assert bool(outcome.reached.get("prompts and decodes in one step")) == (mixed == "yes")


@pytest.mark.parametrize("delay", ["slots", "queue", "free"])
def test_a_prompt_is_held_back_while_others_decode(workers: dict[str, WorkerClient], delay: str) -> None:
    """Two prompts in one step; then one row in three is left for one more, with few waiting."""
    config = config_of(0, 1)
    rows = 4 if delay == "queue" else 3
    ends = {"slots": 2, "queue": 12, "free": 12}[delay]
    arrivals = [Arrive(name, ((name, 3),), new) for name, new in (("r0", ends), ("r1", 12), ("r2", 6), ("r3", 3))]
    events = (*arrivals[:2], *(Step(),) * 2, arrivals[2], *(Step(),) * 3, arrivals[3], *(Step(),) * 12)
    outcomes = []
    for chosen in ({}, {"preempts": "no"}, {"delay": delay}):  # the second has no effect without priorities
        options = {**config.options, **chosen}
        traced = Trace(msgspec.structs.replace(config, max_num_seqs=rows, num_blocks=120, options=options), events)
        outcomes.append(worker_of(workers, LATEST).run(traced))
    assert not any(outcome.violation for outcome in outcomes)
    plain, same, held = [outcome.digest for outcome in outcomes]
    assert plain == same != held


def test_without_chunks_a_prompt_is_computed_in_one_step(workers: dict[str, WorkerClient]) -> None:
    config = config_of(0, 1)
    events = (Arrive("r0", (("a", 12),), 2), *(Step(budget=4),) * 8)
    for chunked in ("yes", "no"):
        options = {**config.options, "chunked": chunked}
        outcome = worker_of(workers, LATEST).run(Trace(msgspec.structs.replace(config, options=options), events))
        assert outcome.violation is None, outcome.violation.message
        assert bool(outcome.reached.get("chunked prefill")) == (chunked == "yes")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sampled", ["target", "rejection", "block"])
def test_requests_with_a_temperature_get_what_their_coins_say(
    workers: dict[str, WorkerClient], sampled: str, depth: int
) -> None:
    """Rows of five kinds, one of them greedy, come and go; SGLang's own kernel compares proposals."""
    config = config_of(3, depth)
    config = msgspec.structs.replace(
        config, max_num_seqs=4, options={**config.options, "drafter": "eagle", "sampled": sampled}
    )
    arrivals = [Arrive(name, ((name[0], length),), new) for name, length, new in
                (("a0", 3, 9), ("b0", 4, 14), ("c0", 3, 14), ("d0", 5, 14), ("e0", 3, 9))]  # fmt: skip
    verified = (Step(drafts=3, right=3), Step(drafts=3, right=1), Step(drafts=3, right=2), Step(drafts=3, right=0))
    outcome = worker_of(workers, LATEST).run(Trace(config, (*arrivals[:3], *verified, *arrivals[3:], *verified * 4)))
    assert outcome.violation is None, outcome.violation.message
    for state in ("all drafts accepted", "draft rejected"):
        assert outcome.reached[state], state


RULED_OUT = (*(Arrive(name, ((name[0], length),), new) for name, length, new in
    (("a0", 3, 9), ("b0", 4, 14), ("c0", 3, 14), ("d0", 5, 14), ("e0", 3, 9), ("f0", 4, 6))),)  # fmt: skip


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("drafter", ["", "ngram", "eagle"])
def test_requests_that_rule_out_tokens_get_their_own_answers(
    workers: dict[str, WorkerClient], drafter: str, depth: int
) -> None:
    """Two of each kind come and go, one of them is retracted, and prompts join a batch that decodes."""
    config = config_of(3 if drafter else 0, depth)
    options = {**config.options, "logits": "shaped", **({"drafter": drafter} if drafter else {"mixed_chunk": "yes"})}
    config = msgspec.structs.replace(config, max_num_seqs=4, num_blocks=80, options=options)
    steps = (Step(drafts=3, right=3), Step(drafts=3, right=1), Step(), Step(drafts=3, right=0))
    events = (*RULED_OUT[:3], *steps, RULED_OUT[3], Preempt("b0"), *steps, *RULED_OUT[4:], *steps * 6)
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["preempted"]


@pytest.mark.parametrize("drafter", ["ngram", "eagle"])
def test_a_verification_leaves_processors_out(workers: dict[str, WorkerClient], drafter: str) -> None:
    """Cause 47, https://github.com/sgl-project/sglang/issues/21724."""
    config = config_of(3, 0)
    config = msgspec.structs.replace(config, options={**config.options, "logits": "processors", "drafter": drafter})
    violation = worker_of(workers, LATEST).run(Trace(config, (RULED_OUT[0], *(Step(drafts=3, right=3),) * 6))).violation
    assert violation and (violation.oracle, violation.relation) == ("S6", "differs-sampled")


TREE_STATES = ("tree of drafts verified", "draft accepted that is not the first behind its token",
    "draft accepted behind one that is not the first", "all drafts accepted", "draft rejected")  # fmt: skip


@pytest.mark.parametrize("graphs", [(), (4,)])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("drafter", ["ngram", "eagle"])
def test_a_path_down_a_tree_of_drafts_is_accepted(
    workers: dict[str, WorkerClient], drafter: str, depth: int, graphs: tuple[int, ...]
) -> None:
    """Its states are computed behind their parents, and its keys and values moved behind the prefix."""
    config = config_of(3, depth)
    options = {**config.options, "drafter": drafter, "breadth": "2"}
    groups = Group("mamba", 8), Group("attention", 4)
    config = msgspec.structs.replace(config, options=options, groups=groups, max_model_len=40, graph_sizes=graphs)
    arrivals = [Arrive(name, ((name[0], length),), 24) for name, length in (("a0", 3), ("b0", 6), ("c0", 9))]
    events = (*arrivals, *(Step(drafts=3, right=3), Step(drafts=3, right=2), Step(drafts=3, right=1)) * 5)
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    for state in TREE_STATES:
        assert outcome.reached[state], state


@pytest.mark.parametrize(("drafter", "page"), [("ngram", 1), ("eagle", 1), ("eagle", 4)])
def test_a_path_is_moved_in_the_pool_of_windows_too(workers: dict[str, WorkerClient], drafter: str, page: int) -> None:
    config = config_of(2, 1)
    options = {**config.options, "drafter": drafter, "breadth": "2"}
    groups = Group("mamba", 8), Group("attention", page), Group("attention", page, window=4)
    config = msgspec.structs.replace(config, options=options, groups=groups, max_model_len=40, num_blocks=160)
    arrivals = [Arrive(name, ((name[0], length),), 24) for name, length in (("a0", 3), ("b0", 6), ("c0", 9))]
    events = (*arrivals, *(Step(drafts=2, right=2), Step(drafts=2, right=2), Step(drafts=2, right=1)) * 5)
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    for state in (*TREE_STATES, "blocks to the left of a sliding window freed"):
        assert outcome.reached[state], state


@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (2, 0), (2, 1)])
def test_an_answer_ends_with_its_stop_token(workers: dict[str, WorkerClient], drafts: int, depth: int) -> None:
    """The second token of three ends it; the third is never sent, also where a step computes it."""
    steps = (Step(drafts=drafts, right=drafts),) * 6
    trace = Trace(config_of(drafts, depth), (Arrive("r0", (("a", 3),), 3, stop_at=2), *steps))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["ended by a stop token"] == 1
    assert bool(outcome.reached.get("stop token with a step in flight")) == bool(depth)
    assert bool(outcome.reached.get("stop token among accepted drafts")) == bool(drafts)


@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (2, 0), (2, 1)])
def test_an_answer_ends_with_its_stop_string(workers: dict[str, WorkerClient], drafts: int, depth: int) -> None:
    """SGLang finds its token among those of a verified step; a further turn has another one."""
    steps = (Step(drafts=drafts, right=drafts),) * 6
    events = Arrive("r0", (("a", 3),), 3, stop_at=2, stop_string=True), *steps
    if not drafts:
        first = Arrive("r1", (("a", 3),), 3, session=True, stop_at=2, stop_string=True)
        events += first, *steps, Resume("r1", (("b", 2),), 3, stop_at=1, stop_string=True), *steps
    outcome = worker_of(workers, LATEST).run(Trace(config_of(drafts, depth), events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["ended by a stop string"] == (1 if drafts else 3)
    assert bool(outcome.reached.get("stop token among accepted drafts")) == bool(drafts)


@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (2, 0), (2, 1)])
def test_an_answer_ends_with_the_last_token_of_a_stop_string(
    workers: dict[str, WorkerClient], drafts: int, depth: int
) -> None:
    steps = (Step(drafts=drafts, right=drafts),) * 8
    names = ("r0", "r1", "r2")
    arrivals = [Arrive(n, (("a", 3),), 6, stop_at=4, stop_string=True, string_before=1 + int(n[1])) for n in names]
    outcome = worker_of(workers, LATEST).run(Trace(config_of(drafts, depth), (*arrivals, *steps)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["ended by a stop string of several tokens"] == 3


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("session", [False, True])
def test_no_stop_token_comes_before_the_least_number(
    workers: dict[str, WorkerClient], session: bool, depth: int
) -> None:
    """SGLang's own penalties hold it back, also in a batch with requests that have none."""
    first = Arrive("r0", (("a", 3),), 6, session=session, stop_at=4, min_tokens=2), Arrive("r1", (("b", 3),), 6)
    outcome = worker_of(workers, LATEST).run(Trace(config_of(0, depth), (*first, *(Step(),) * 8)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["stop token held back"] == 1
    assert outcome.reached["ended by a stop token behind its least tokens"] == 1


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("session", [False, True])
def test_beside_drafts_an_answer_that_must_have_all_its_tokens_has_them(
    workers: dict[str, WorkerClient], session: bool, depth: int
) -> None:
    """The stop token is the model's first choice at places 1 and 4: after the prompt, and where drafts are verified."""
    asked = [
        Arrive("r0", (("a", 3),), 12, session=session, stop_at=4, min_tokens=12),
        Arrive("r1", (("b", 3),), 6, stop_at=1, min_tokens=6), Arrive("r2", (("c", 3),), 6),
    ]  # fmt: skip
    trace = Trace(config_of(3, depth), (*asked, *(Step(drafts=3, right=3),) * 14))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["stop token held back"] > outcome.reached["stop token held back in a step with drafts"] > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_a_turn_ends_with_its_stop_token(workers: dict[str, WorkerClient], depth: int) -> None:
    """The next turn goes on behind it."""
    turns = Arrive("r0", (("a", 3),), 3, session=True, stop_at=2), Resume("r0", (("b", 2),), 3, stop_at=2)
    trace = Trace(config_of(0, depth), (turns[0], *(Step(),) * 6, turns[1], *(Step(),) * 6))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["turn ended by a stop token"] == 2


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("turn", [0, 1])
def test_the_turn_behind_an_aborted_one_follows_what_came_before_it(
    workers: dict[str, WorkerClient], depth: int, turn: int
) -> None:
    """Aborted while it waits, between its chunks, and while it decodes; the first turn of its session or the second."""
    first = Arrive("r0", (("a", 5),), 2, session=True), *(Step(),) * 6
    aborted = Resume("r0", (("b", 9),), 6) if turn else Arrive("r0", (("b", 9),), 6, session=True)
    for steps in range(5):
        ended = Abort("r0", keeps_session=True), *(Step(),) * 3
        behind = Resume("r0", (("c", 5),), 3), *(Step(),) * 8
        events = (*first * turn, aborted, *(Step(budget=4),) * steps, *ended, *behind)
        outcome = worker_of(workers, LATEST).run(Trace(config_of(0, depth), events))
        assert outcome.violation is None, outcome.violation.message
        assert outcome.reached["turn aborted in a session that goes on"] == 1
        assert outcome.reached["turn behind an aborted one"] == 1


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("copies", ["early", "late", "slow"])
def test_evicted_content_comes_back_from_the_host(workers: dict[str, WorkerClient], policy: str, copies: str) -> None:
    """A second request with the prompt of one whose cache was evicted goes on from what the host has."""
    config = config_of(0, 1)
    options = {"hicache": policy, "host_copies": copies, "tree_core": "python"}
    config = msgspec.structs.replace(config, options={**config.options, **options})
    first, second = (Arrive(name, (("a", 13),), 4) for name in ("r0", "r1"))
    trace = Trace(config, (first, *(Step(),) * 8, Evict(20), second, *(Step(),) * 8))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["cached content kept outside the pool alone"]
    assert outcome.reached["content loaded back into the cache"] and outcome.reached["prefix hit"]


@pytest.mark.parametrize("more", [{}, {"storage": "file", "prefetch": "wait_complete"}, {"unified_memory": "lazy"}])
@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_content_comes_back_from_each_layout_of_the_host(
    workers: dict[str, WorkerClient], layout: str, more: dict[str, str]
) -> None:
    """Pages of two tokens, two layers of keys and values: places that are read in another order hold another content. A
    flush leaves the storage alone."""
    config = config_of(0, 1)
    groups = Group("mamba", 4, layers=2), Group("attention", 2, layers=2)
    options = {"hicache": "write_through", "tree_core": "python", "host_layout": layout, **more}
    config = msgspec.structs.replace(config, groups=groups, options={**config.options, **options})
    first, second = (Arrive(name, (("a", 13),), 4) for name in ("r0", "r1"))
    gone = ResetPrefixCache() if "storage" in more else Evict(20)
    outcome = worker_of(workers, LATEST).run(Trace(config, (first, *(Step(),) * 12, gone, second, *(Step(),) * 12)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["content loaded back into the cache"] and outcome.reached["prefix hit"]
    assert bool(outcome.reached.get("content read back from a storage")) is ("storage" in more)


MISPAIRED = """--- a/sglang/srt/mem_cache/hybrid_cache/hybrid_cache_controller.py
+++ b/sglang/srt/mem_cache/hybrid_cache/hybrid_cache_controller.py
@@ -1523,5 +1523,5 @@
         if write_back_jit and host_pool.can_use_write_back_jit:
             if host_indices.is_cuda:
                 host_indices = host_indices.cpu()
-            return host_indices, device_indices
+            return host_indices.flip(0), device_indices
         return self.move_indices(host_indices, device_indices)
"""
"""Backups of a server's default layout pair each token with a wrong place, those of the other one do not."""


def test_places_that_a_backup_mispairs_hold_wrong_content(workers: dict[str, WorkerClient]) -> None:
    """The release stays silent with both layouts, the break with the one whose backups it does not touch."""
    broken = patched(prepare(f"sglang@{LATEST}", print), [parse_patch(MISPAIRED, "mispaired")])
    target, config = f"sglang@{broken.tree}", config_of(0, 1)
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        for layout in ("page_first", "page_first_direct"):
            options = {"hicache": "write_through", "tree_core": "python", "host_layout": layout}
            wanted = msgspec.structs.replace(config, options={**config.options, **options})
            trace = Trace(wanted, (Arrive("r", (("a", 13),), 4), *(Step(),) * 12))
            silent = worker_of(workers, LATEST).run(trace).violation
            assert silent is None, silent.message
            violation = worker.run(trace).violation
            assert (violation is not None and violation.oracle == "S1") is (layout == "page_first")


@pytest.mark.parametrize("spare", ["0", "2"])
def test_a_load_without_room_for_its_state_is_called_off(workers: dict[str, WorkerClient], spare: str) -> None:
    """Two states that are being saved lock two of the three slots of a server with one running request; a load needs
    two, for the request and for the cached state. The request gives its own back, with the pages, and computes all."""
    options = {"strategy": "no_buffer", "tree_core": "python", "spare_states": spare, "host_copies": "late"}
    config = Config(
        40,
        (Group("mamba", 4), Group("attention", 1)),
        mamba_cache_mode="slots",
        max_model_len=24,
        max_num_seqs=1,
        max_num_batched_tokens=8,
        options={**options, "hicache": "write_through"},
    )
    first, other = Arrive("r0", (("a", 13),), 2), Arrive("r1", (("b", 9),), 1)
    again = Arrive("r2", (("a", 13),), 2), *(Step(),) * 12
    trace = Trace(config, (first, *(Step(),) * 14, Evict(20), other, Step(), *again))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("content loaded back into the cache")) is (spare == "2")
    assert bool(outcome.reached.get("content kept outside the pool not loaded for a request")) is (spare == "0")


@pytest.mark.parametrize(
    ("prefetch", "pace", "limits"),
    [("wait_complete", "each", "no"), ("timeout", "all", "room"), ("best_effort", "all", "no")],
)
def test_flushed_content_comes_back_from_the_storage(
    workers: dict[str, WorkerClient], prefetch: str, pace: str, limits: str
) -> None:
    """The storage keeps what a flush takes from device and host. A request that waits for room is ready by then."""
    config = with_storage(prefetch=prefetch, storage_pace=pace, storage_limits=limits)
    first, second, third = (Arrive(name, ((document, 13),), 6) for name, document in zip("rst", "aba", strict=True))
    trace = Trace(config, (first, *(Step(),) * 12, ResetPrefixCache(), second, *(Step(),) * 2, third, *(Step(),) * 12))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    read = outcome.reached.get("content read back from a storage", 0)
    assert read if prefetch != "best_effort" else not read, "best effort admits a request at once"


MISCOUNTED = """--- a/sglang/srt/mem_cache/unified_radix_cache.py
+++ b/sglang/srt/mem_cache/unified_radix_cache.py
@@ -2515,7 +2515,7 @@

         self.dec_host_lock_ref(last_host_node_id, anchor_lock_params)
         del self.ongoing_prefetch[request]
-        self.cache_controller.prefetch_tokens_occupied -= len(prefetch_key)
+        self.cache_controller.prefetch_tokens_occupied -= completed_tokens

         self.prefetch_loaded_tokens_by_reqid[request] = loaded_from_storage
         if loaded_from_storage > 0:
"""
"""A fetch gives back the tokens that the storage had, not those that it had asked for."""


def test_tokens_that_an_ended_fetch_still_occupies_are_a_leak(workers: dict[str, WorkerClient]) -> None:
    """The storage has a part of the second prompt: nothing is left with the release, and the rest with the break."""
    config = with_storage()
    first, second = Arrive("r", (("a", 13),), 6), Arrive("s", (("a", 13), ("b", 8)), 2)
    trace = Trace(config, (first, *(Step(),) * 12, ResetPrefixCache(), second, *(Step(),) * 12))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["content read back from a storage"]
    patch = parse_patch(MISCOUNTED.replace("\n\n", "\n \n"), "miscounted")
    broken = patched(prepare(f"sglang@{LATEST}", print), [patch])
    target = f"sglang@{broken.tree}"
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(trace).violation
    assert violation is not None and violation.signature == "M9-step-tokens-of-prefetches"


UNLISTED = """--- a/sglang/srt/mem_cache/unified_cache/components/mamba.py
+++ b/sglang/srt/mem_cache/unified_cache/components/mamba.py
@@ -364,6 +364,7 @@
             target is EvictLayer.DEVICE
             and cd.value is None
             and cd.host_value is not None
+            and node.evicted
         ):
             if not host_lru.in_list(node):
                 host_lru.insert_mru(node)
"""
"""A state that has left the device is not listed for eviction on the host while its pages have not."""


def test_a_state_that_the_host_never_evicts_is_a_leak(workers: dict[str, WorkerClient]) -> None:
    """Nothing is left with the release, and a state with the break."""
    trace = load_trace(DATA / "sglang-state-alone-on-the-host.json")
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    broken = patched(prepare(f"sglang@{LATEST}", print), [parse_patch(UNLISTED, "unlisted")])
    target = f"sglang@{broken.tree}"
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(trace).violation
    assert violation is not None and violation.signature == "M9-step-host-contents-that-cannot-be-evicted"


@pytest.mark.parametrize(("cleared", "limits"), [("no", "room"), ("yes", "room"), ("yes", "no")])
def test_a_storage_that_was_cleared_has_nothing_to_read(
    workers: dict[str, WorkerClient], cleared: str, limits: str
) -> None:
    """Behind the flush nothing is left of the first prompt; what is written later comes back as before."""
    config = with_storage(storage_cleared=cleared, storage_limits=limits)
    first, second = (Arrive(name, (("a", 13),), 6) for name in "rs")
    trace = Trace(config, (first, *(Step(),) * 12, ResetPrefixCache(), second, *(Step(),) * 12))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("content read back from a storage")) is (cleared == "no")


@pytest.mark.parametrize("switches", [0, 1, 2])
def test_a_storage_that_is_detached_keeps_what_it_has(workers: dict[str, WorkerClient], switches: int) -> None:
    """Behind the flush nothing is left of the first prompt but in the storage: it is read if the storage is there."""
    config = with_storage()
    first, second = (Arrive(name, (("a", 13),), 6) for name in "rs")
    steps = (Step(),) * 12
    events = (first, *steps, ResetPrefixCache(), *(SwitchStorage(),) * switches, second, *steps)
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("content read back from a storage")) is (switches != 1)


@pytest.mark.parametrize("mode", ["cache", "buffer"])
def test_what_was_cached_without_a_storage_is_not_taken_for_something_else_once_it_has_one(
    workers: dict[str, WorkerClient], mode: str
) -> None:
    """The second prompt follows the first, which no storage has seen, and the third follows the second only in part."""
    config = with_storage(host_mode=mode)
    prompts = ((("a", 9),), (("a", 17),), (("a", 12), ("b", 4)))
    first, second, third = (Arrive(name, prompt, 4) for name, prompt in zip("rst", prompts, strict=True))
    steps = (Step(),) * 12
    events = (SwitchStorage(), first, *steps, SwitchStorage(), second, *steps, Evict(40), third, *steps)
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached.get("storage switched behind cached prefixes")


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("memory", ["lazy", "eager"])
def test_windows_move_in_a_memory_that_they_share(workers: dict[str, WorkerClient], memory: str, page: int) -> None:
    """Prompts fill the memory, decodes leave windows behind, a prefix is asked for again after an eviction."""
    config = config_of(0, 0)
    groups = (Group("mamba", 4), Group("attention", page), Group("attention", page, 1, window=4))
    options = {**config.options, "unified_memory": memory}
    config = msgspec.structs.replace(config, groups=groups, options=options, num_blocks=4 * 40 // page, max_num_seqs=3)
    prompts = [(("a", 9),), (("b", 13),), (("a", 9), ("c", 6)), (("b", 13), ("d", 2)), (("a", 17),)]
    arrivals = [Arrive(f"r{index}", prompt, 6) for index, prompt in enumerate(prompts)]
    steps = (Step(),) * 7
    events = [event for one in arrivals for event in (one, *steps)]
    events[24:24] = [Evict(3)]
    outcome = worker_of(workers, LATEST).run(Trace(config, (*events, *steps, Evict(40))))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached.get("prefix hit")


@pytest.mark.parametrize("early", ["no", "yes"])
def test_a_prefix_behind_the_window_is_unlocked_when_it_ends_and_no_more(
    workers: dict[str, WorkerClient], early: str
) -> None:
    """Two requests with one prefix, of which the first decodes until its window has left it, and both end."""
    config = config_of(0, 1)
    window = Group("attention", config.groups[1].block_size, 1, window=4)
    options = {**config.options, "tree_core": "python", "strategy": "extra_buffer", "early_unlock": early}
    config = msgspec.structs.replace(config, groups=(*config.groups, window), options=options)
    first, second, third = (Arrive(name, (("a", 9),), most) for name, most in (("r", 2), ("s", 12), ("t", 4)))
    steps = (Step(),) * 8
    trace = Trace(config, (first, *steps, second, *steps, third, *steps, Evict(20), *steps))
    outcome = worker_of(workers, LATEST).run(trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["prefix hit"]


@pytest.mark.parametrize("pace", ["each", "one"])
def test_a_request_that_is_aborted_while_the_storage_reads_for_it_leaves_nothing(
    workers: dict[str, WorkerClient], pace: str
) -> None:
    """Aborted at each of the steps that a prefetch takes: query, room on the host, read, the news of it."""
    config = with_storage(storage_pace=pace)
    busy = Arrive("s", (("b", 5),), 12)
    for steps in range(5):
        events = Arrive("r", (("a", 13),), 4), *(Step(),) * 12, ResetPrefixCache(), busy, Step()
        asked = Arrive("t", (("a", 13),), 4), *(Step(),) * steps, Abort("t"), *(Step(),) * 12
        outcome = worker_of(workers, LATEST).run(Trace(config, (*events, *asked)))
        assert outcome.violation is None, outcome.violation.message


def test_both_tree_cores_answer_alike() -> None:
    """An evicted prefix, a hit, a split and a flush, on the Python and the Rust core side by side."""
    config = config_of(0, 1)
    config = msgspec.structs.replace(config, options={**config.options, "tree_core": "both"})
    asked = [Arrive(name, (("a", tokens),), 4) for name, tokens in (("r0", 13), ("r1", 13), ("r2", 9))]
    events = [event for one in asked for event in (one, *(Step(),) * 8)] + [Evict(2), Step()]
    target = f"sglang:both@{LATEST}"
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        outcome = worker.run(Trace(config, (*events, ResetPrefixCache(), Step())))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.exercised["D2"] > 100
    assert outcome.reached["prefix hit"]


@pytest.mark.parametrize("graph_sizes", [(4,), ()])
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_batch_is_padded_to_its_graph(
    workers: dict[str, WorkerClient], drafts: int, graph_sizes: tuple[int, ...]
) -> None:
    """A verification is padded in a graph only; an eager decode has the rows of a data-parallel peer."""
    config = msgspec.structs.replace(config_of(drafts, 1), graph_sizes=graph_sizes)
    steps = (Step(drafts=drafts, right=drafts, pad_to=3),) * 6
    outcome = worker_of(workers, LATEST).run(Trace(config, (Arrive("r0", (("a", 3),), 4), *steps)))
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("padding rows")) == bool(graph_sizes or not drafts)


@pytest.mark.parametrize("depth", [0, 1])
def test_an_important_request_displaces_another(workers: dict[str, WorkerClient], depth: int) -> None:
    config = msgspec.structs.replace(config_of(0, depth), policy="priority", max_num_seqs=1)
    events = Arrive("r0", (("a", 3),), 8, priority=5), *(Step(),) * 3, Arrive("r1", (("b", 3),), 2), *(Step(),) * 20
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["preempted"] == 1


@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (2, 1)])
@pytest.mark.parametrize("event", [Pause(), ResetPrefixCache(preempt_running=True)])
def test_a_pause_retracts_what_decodes_and_what_is_computed_in_part(
    workers: dict[str, WorkerClient], event: Pause | ResetPrefixCache, drafts: int, depth: int
) -> None:
    """One request decodes, the prompt of another is cut; a third arrives meanwhile and waits through the pause."""
    first = Arrive("r0", (("a", 9),), 8), Step(), Step(), Arrive("r1", (("b", 20),), 2), Step(budget=8)
    asked = Arrive("r2", (("a", 9), ("~", 1)), 2)
    outcome = worker_of(workers, LATEST).run(Trace(config_of(drafts, depth), (*first, asked, event, *(Step(),) * 12)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["preempted"] == 1 and outcome.reached["preempted during prefill"] == 1
    if isinstance(event, Pause):
        assert outcome.reached["generation paused while requests run"] == 1
        assert bool(outcome.reached.get("generation paused with a step in flight")) == (depth > 0)
    else:
        assert outcome.reached["prefix cache reset during a pause"] == 1


@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (2, 0), (2, 1)])
def test_a_prompt_whose_log_probabilities_are_wanted_is_not_matched(
    workers: dict[str, WorkerClient], drafts: int, depth: int
) -> None:
    """Its client gets those of its own tokens, although the prompt is computed in chunks beside another one."""
    longer = Arrive("r1", (("a", 20), ("b", 2)), 2, prompt_logprobs=True)
    shorter = Arrive("r2", (("b", 5),), 2, prompt_logprobs=True)
    steps = *(Step(budget=8),) * 4, *(Step(),) * 8
    events = Arrive("r0", (("a", 20),), 2), *(Step(),) * 6, longer, shorter, *steps
    outcome = worker_of(workers, LATEST).run(Trace(config_of(drafts, depth), events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["cached prefix not read for the log-probabilities of a prompt"] == 1


@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (2, 0), (2, 1)])
def test_only_what_comes_before_the_wanted_log_probabilities_is_matched(
    workers: dict[str, WorkerClient], drafts: int, depth: int
) -> None:
    """One wants those behind half of what is cached, and one those behind all of it, chunk by chunk."""
    half = Arrive("r1", (("a", 20), ("b", 2)), 2, prompt_logprobs=True, logprobs_from=10)
    rest = Arrive("r2", (("a", 20), ("c", 2)), 2, prompt_logprobs=True, logprobs_from=40)
    first = Arrive("r0", (("a", 20),), 2), *(Step(budget=8),) * 3, *(Step(),) * 4
    events = *first, half, rest, *(Step(budget=8),) * 4, *(Step(),) * 8
    outcome = worker_of(workers, LATEST).run(Trace(config_of(drafts, depth), events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["prefix hit before the log-probabilities that a client wants"] == 2


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer"])
def test_prompts_of_mamba_2_layers_are_one_scan(workers: dict[str, WorkerClient], strategy: str) -> None:
    """Two prompts meet inside a chunk of its grid, one of which continues from a state."""
    config = config_of(0, 0)
    options = {**config.options, "strategy": strategy, "state_layers": "mamba2"}
    groups = Group("mamba", 4), Group("attention", 1 if strategy == "no_buffer" else 4)
    config = msgspec.structs.replace(config, groups=groups, num_blocks=120, options=options)
    first, second = Arrive("r0", (("a", 14),), 2), Arrive("r1", (("b", 7),), 2)
    third = Arrive("r2", (("a", 12), ("c", 3)), 2)
    events = first, Step(budget=8), second, *(Step(),) * 6, third, Arrive("r3", (("b", 7), ("a", 2)), 2), *(Step(),) * 6
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["prefix hit"]


@pytest.mark.parametrize("mixed", ["no", "yes"])
def test_decodes_join_a_prefill_where_chunks_are_mixed(workers: dict[str, WorkerClient], mixed: str) -> None:
    config = config_of(0, 1)
    config = msgspec.structs.replace(config, options={**config.options, "mixed_chunk": mixed})
    events = Arrive("r0", (("a", 3),), 8), *(Step(),) * 3, Arrive("r1", (("b", 3),), 2), *(Step(),) * 12
    outcome = worker_of(workers, LATEST).run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("prompts and decodes in one step")) == (mixed == "yes")


FOUR_GIGABYTES = """\
--- a/sglang/srt/mem_cache/pool_host/base.py
+++ b/sglang/srt/mem_cache/pool_host/base.py
@@ -104,5 +104,5 @@
     free = (
-        available_host_memory_bytes(allow_cgroup_fallback=not auto_size)
+        4 * 1024**3
         - HICACHE_HOST_MEMORY_RESERVE_BYTES
     )
     return free // ranks_per_host()
"""


def test_a_machine_with_little_memory_has_room_for_the_host_tier() -> None:
    """SGLang leaves 10 GiB to others: on a smaller machine no server with HiCache would start."""
    small = f"sglang@{patched(prepare(f'sglang@{LATEST}', print), [parse_patch(FOUR_GIGABYTES, 'small')]).tree}"
    with WorkerClient(small, prepare(small, print), trace_seconds=300) as worker:
        worker.start()
        outcome = worker.run(Trace(with_storage(), (Arrive("r0", (("a", 9),), 3), *[Step()] * 6)))
    assert outcome.violation is None, outcome.violation.message


def config_of(drafts: int, depth: int) -> Config:
    return Config(
        40,
        (Group("mamba", 4), Group("attention", 4)),
        mamba_cache_mode="slots",
        max_model_len=24,
        num_speculative_tokens=drafts,
        async_depth=depth,
        options={"strategy": "extra_buffer", "tree_core": "python", "track": "2", "spare_states": "2"},
    )


def with_storage(**options: str) -> Config:
    """Return a configuration with a host tier and a storage behind it."""
    config = config_of(0, 1)
    tier = {"hicache": "write_through", "storage": "file", "tree_core": "python", "prefetch": "wait_complete"}
    return msgspec.structs.replace(config, options={**config.options, **tier, **options})
