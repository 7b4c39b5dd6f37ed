"""Controls of a report: what is named was left out in a run that passes; what was not run is not named."""

from collections.abc import Mapping

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.tell.controls import controls
from hybridfuzz.targets.base.protocol import Capabilities, TargetError
from hybridfuzz.targets.base.stock import Setting
from hybridfuzz.targets.base.trace import Arrive, Trace

TRACE = make_trace(
    arrive("r0", 8), arrive("r1", 9), arrive("r2", 3), *steps(3), num_speculative_tokens=2, policy="priority"
)
STOCK = (
    Setting("--speculative-config", {"num_speculative_tokens": "0"}),
    Setting("--scheduling-policy", {"policy": "fcfs"}),
    Setting("--async-scheduling", {"async_depth": "1"}),
)
VIOLATION = Violation("S3", "it is wrong", step=1, event=1)


class Engine:
    """Fails where all of its requests and settings are there; cannot run what it refuses."""

    def __init__(self, needs: set[str], settings: Mapping[str, object], refuses: str = "") -> None:
        self.needs, self.settings, self.refuses = needs, settings, refuses
        self.runs = 0

    def run(self, trace: Trace) -> Outcome:
        self.runs += 1
        names = {event.name for event in trace.events if isinstance(event, Arrive)}
        if self.refuses and self.refuses not in names:
            raise TargetError("refused")
        fails = self.needs <= names and all(getattr(trace.config, key) == one for key, one in self.settings.items())
        return Outcome(VIOLATION if fails else None, 1, 1, {}, {}, 0)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Engine({"r0"}, {}), ["without r0"]),
        (Engine({"r0", "r2"}, {"policy": "priority"}), ["without r0", "without r2", "without --scheduling-policy"]),
        (Engine({"r0", "r1"}, {}, refuses="r1"), ["without r0"]),
        (Engine(set(), {"num_speculative_tokens": 2}), ["without --speculative-config"]),
        (Engine(set(), {}), []),
    ],
)
def test_a_control_is_a_run_that_passes(engine: Engine, expected: list[str]) -> None:
    assert list(controls(TRACE, "r3", engine, Capabilities(frozenset(), (), frozenset(), (), stock=STOCK))) == expected
    assert engine.runs == 5, "three requests and two settings: another schedule has other steps"


def test_the_request_that_fails_is_not_left_out() -> None:
    engine = Engine({"r0", "r1"}, {})
    assert list(controls(TRACE, "r0", engine, Capabilities(frozenset(), (), frozenset(), ()))) == ["without r1"]


def test_the_only_request_is_not_left_out() -> None:
    alone = make_trace(arrive("r0", 8), *steps(2))
    engine = Engine({"r0"}, {})
    assert list(controls(alone, "", engine, Capabilities(frozenset(), (), frozenset(), ()))) == []
    assert engine.runs == 0
