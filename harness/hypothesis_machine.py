"""The workload as a Hypothesis state machine, for pytest and for users who write rules of their own.

    class TestMine(HybridCacheMachine.for_target("hybrid")):
        pass

Each rule draws one event from the same grammar as the seeded source and runs it in lockstep. The trace is recorded. A
violation is reduced by the harness's own reducer (25 times cheaper on traces than shrinking Hypothesis's choices),
saved, and raised with the command that replays it. Hypothesis's own shrinking is therefore switched off.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from unittest import TestCase

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from ..targets.base.protocol import TargetFactory
from ..targets.base.registry import load_factory
from ..targets.base.trace import Config, Event, Trace
from .defaults import REDUCE_SECONDS
from .draw.hypothesis_rules import ServingRules
from .draw.trace_files import save_trace
from .group.findings.finding_store import replay_command
from .group.reduction.reduce import reduce_trace
from .judge.lockstep import Lockstep
from .judge.run import run_trace
from .judge.violation import Violation

PROFILE_VARIABLE = "HYBRIDFUZZ_PROFILE"


def profile(name: str = "") -> settings:
    """Return the settings "gate" (the same examples every time) or "nightly" (new ones, more and longer ones).

    The default is the name in `--hybridfuzz-profile` or $HYBRIDFUZZ_PROFILE, else "gate". Every field that Hypothesis's
    own profiles change is set here: where $CI is set they turn derandomization on and the database off, and a nightly
    job would run the same hundred examples each time. KeyError for another name.
    """
    night = {"gate": False, "nightly": True}[name or os.environ.get(PROFILE_VARIABLE, "gate")]
    return settings(
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        deadline=None,
        max_examples=1000 if night else 100,
        stateful_step_count=150 if night else 60,
        suppress_health_check=list(HealthCheck),
        derandomize=not night,
        database=DirectoryBasedExampleDatabase(".hypothesis/examples") if night else None,
        print_blob=False,
        backend="hypothesis",
    )


class ViolationError(AssertionError):
    """A violation in a pytest run; the message ends with the command that replays the reduced trace."""

    def __init__(self, violation: Violation, path: Path, target: str) -> None:
        super().__init__(f"{violation.message}\n  replay: {replay_command(target, str(path))}")
        self.violation = violation
        self.path = path


class HybridCacheMachine(ServingRules):
    """One lockstep run. Use `for_target`.

    There is one rule for each kind of serving event, named as in a trace file (`draw/hypothesis_rules.py`). A subclass
    may replace a rule, switch it off (`preempt = None`), add rules that call `happen`, and add Hypothesis's invariants,
    which find the target's view in `engine.view()` and the reference in `lockstep`.
    """

    target: ClassVar[str] = "hybrid"
    directory: ClassVar[Path] = Path(os.environ.get("HYBRIDFUZZ_FINDINGS", "hybridfuzz-out/pytest"))
    reduced: ClassVar[dict[str, ViolationError]] = {}
    """Signature -> its reduced failure: Hypothesis runs a failing example several times."""

    @classmethod
    def for_target(
        cls,
        target: str,
        overrides: Mapping[str, object] | None = None,
        run: settings | None = None,
    ) -> type[TestCase]:
        """Return a test case for pytest or unittest.

        `target` is a target string as on the command line, `overrides` fix configuration fields, `run` replaces
        `profile()`.
        """
        attributes = {"target": target, "overrides": dict(overrides or {}), "reduced": {}}
        machine: type[HybridCacheMachine] = type("HybridCache", (cls,), attributes)
        test_case: type[TestCase] = machine.TestCase
        test_case.settings = run or profile()  # type: ignore[attr-defined]
        return test_case

    def __init__(self) -> None:
        super().__init__()
        self.factory: TargetFactory = load_factory(self.target)
        self.capabilities = self.factory.capabilities

    def supports(self, config: Config) -> str:
        """Return "", or the reason why the target does not support a configuration."""
        return self.factory.supports(config)

    def begin(self, config: Config) -> None:
        """Build the target."""
        self.engine = self.factory.open(config)
        self.lockstep = Lockstep(self.engine, config, self.capabilities.observes, self.capabilities.engine)

    def happen(self, event: Event) -> None:
        """Let an event happen. ViolationError if an oracle finds a violation."""
        super().happen(event)
        self.judge(self.lockstep.apply(event, len(self.events) - 1))

    def judge(self, violation: Violation | None) -> None:
        """Reduce, save and raise a violation."""
        if violation is None:
            return
        if violation.signature not in self.reduced:
            self.reduced[violation.signature] = self.report(violation)
        raise self.reduced[violation.signature]

    def report(self, violation: Violation) -> ViolationError:
        """Save the reduced trace and return the error to raise."""
        assert self.config is not None
        trace = Trace(self.config, tuple(self.events), origin="hypothesis")  # type: ignore[arg-type]
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{violation.signature}.json"
        save_trace(trace, path)
        best = reduce_trace(
            trace,
            violation.signature,
            lambda candidate: run_trace(self.factory, candidate),
            seconds=REDUCE_SECONDS,
            on_better=lambda better: save_trace(better, path),
        )
        final = run_trace(self.factory, best).violation
        return ViolationError(final or violation, path, self.target)

    def teardown(self) -> None:
        """Drain unfinished requests, check what is left over, close the target."""
        if self.config is None:
            return
        try:
            if self.lockstep.violation is None:
                self.judge(self.lockstep.drain(len(self.events)))
        finally:
            self.engine.close()
