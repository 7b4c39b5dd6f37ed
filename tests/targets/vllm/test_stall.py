"""A wait inside an event is bounded, and names what did not end. Runs in the engine's environment."""

from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.base.protocol import EngineStalled
from hybridfuzz.targets.base.trace import Step

pytestmark = pytest.mark.engine


class Scheduler:
    """Holds the blocks of an ended request, which are never sent."""

    requests = {"r0": None}  # noqa: RUF012
    finished_req_ids = frozenset[str]()

    def has_requests(self) -> bool:
        return True

    def has_unfinished_requests(self) -> bool:
        return False

    def has_finished_requests(self) -> bool:
        return True


def target_of(scheduler: Scheduler) -> Any:
    pytest.importorskip("vllm.v1")
    from hybridfuzz.targets.vllm.target import VllmTarget

    target: Any = VllmTarget.__new__(VllmTarget)
    target.scheduler, target.in_flight, target.store = scheduler, [], SimpleNamespace(is_connected=True)
    target.config = SimpleNamespace(max_model_len=2, options={"reset": "paused"})
    target._run_step = lambda event: [event]
    return target


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda target: target.run_step(Step()), "the transfers of requests that ended"),
        (lambda target: target.dummy_run(SimpleNamespace(uniform_decode=True)), "the steps before a dummy run"),
        (lambda target: target._let_go("r0", []), "the timed out session r0"),
    ],
)
def test_an_engine_that_does_not_end_a_wait_is_reported(call: Any, what: str) -> None:
    with pytest.raises(EngineStalled, match=f"{what} did not end within 70 steps"):
        call(target_of(Scheduler()))


def test_a_wait_that_ends_returns_its_records() -> None:
    target, left = target_of(Scheduler()), iter([False, False, True])
    assert target._run_until(lambda: next(left), Step(budget=3), "nothing") == [Step(budget=3)] * 2
