"""Recognizes failures that known bugs with a patch explain, before anything is reduced.

Two questions, answered by one run and by a few:

    is it known?    the failing trace runs on a copy of the engine with the patches of all known bugs. If it is silent
                    there, or gets further, they explain it. Only a failure that they do not explain can be new.
    which is it?    the trace runs on copies of which each lacks the patches of some of the bugs. Each bug has its own
                    combination of such tests, all of one size (`combinations_for`): a failure that comes back in all
                    tests of one bug, and in no other, is this bug. Seven tests tell 35 bugs apart, however many of
                    them a campaign meets.

The start of a process takes seconds, a run a fraction of one: each test runs once for all failures that wait for it,
the one that most wait for first. A failure to which several bugs are needed comes back in too few tests, one that each
of several bugs shows in too many: both stay explained without a name. In a test an earlier failure of another bug may
hide whether this one comes back; then the other tests decide, if they leave one bug.

The engine with all patches is one more process, started at the first failure; beside it lives, for a moment, one that
lacks some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, count
from math import comb
from pathlib import Path
from threading import Lock

from ...targets.base.launch import Launch
from ...targets.base.patched_copy import patched
from ...targets.base.trace import Trace, TraceError
from ..campaign_events import Cause, Severity
from ..draw.trace_files import read_json, read_regular
from ..judge.violation import Violation
from ..workers.worker_client import WorkerClient
from .fixes import Fixes
from .known import TEXT_MAX, Known
from .reduce import until

FINDING_WEIGHT = 3
"""A finding speaks for the next test as much as so many further failures."""
TEXT_BYTES_MAX = 1 << 20
SEVERITIES = "severity.json"
"""How much the bugs matter whose patches lie in the same folder, by name (`hybridfuzz known severity`)."""


def combinations_for(bugs: int) -> list[frozenset[int]]:
    """Return a different combination of tests for each bug, all of one size, of as few tests as possible."""
    tests = next(each for each in count(1) if comb(each, max(each // 2, 1)) >= bugs)
    every = list(combinations(range(tests), max(tests // 2, 1)))
    return [frozenset(every[number * len(every) // bugs]) for number in range(bugs)]


class Explained:
    """A failure that known bugs explain, until it is settled which one.

    `trace` ends with the failing event. `came_back` says by test whether the failure came back, None where another one
    came before it.
    """

    def __init__(self, trace: Trace, violation: Violation) -> None:
        self.trace = until(violation, trace)
        self.violation = violation
        self.came_back: dict[int, bool | None] = {}
        self.is_finding = False


class Recognizer:
    """Recognizes the failures of one campaign as bugs of `fixes` that are among `entries`.

    `open_worker` returns a worker for a launch. Raises TraceError for severities that cannot be read; its methods raise
    what a worker raises.
    """

    def __init__(
        self, fixes: Fixes, entries: Sequence[Known], target: str, open_worker: Callable[[Launch], WorkerClient]
    ) -> None:
        self._fixes = fixes
        self._causes = {entry.title: cause_of(entry) for entry in entries}
        self._tests_of = dict(zip(self._causes, combinations_for(len(self._causes)), strict=True))
        self._kinds = sorted(frozenset[int]().union(*self._tests_of.values()))
        self._target = target
        self._open_worker = open_worker
        self._all = open_worker(fixes.launch)
        self._some: WorkerClient | None = None
        self.tests = 0
        """How many tests it has run."""
        self._has_started = self._is_stopped = False
        self._lock = Lock()

    def explains(self, trace: Trace, violation: Violation) -> Explained | None:
        """Return a failure that known bugs explain, None for another one."""
        with self._lock:
            if not self._has_started:
                self._all.start()
                self._has_started = True
            return Explained(trace, violation) if _is_silenced(self._all, trace, violation) else None

    def prove(self, failures: Sequence[Explained]) -> list[tuple[Explained, Cause]]:
        """Run the test that most failures wait for on all of these. Return those that are settled by it, without a
        name where no single bug shows them."""
        waits = {test: [one for one in failures if test not in one.came_back] for test in self._kinds}
        weights = {test: sum(FINDING_WEIGHT if one.is_finding else 1 for one in waits[test]) for test in waits}
        test = max(weights, key=lambda each: weights[each])
        self._run_test(test, waits[test])
        self.tests += 1
        return [(one, cause) for one in failures if (cause := self._settled(one))]

    def _run_test(self, test: int, failures: Sequence[Explained]) -> None:
        """Find out which failures come back without the patches of the bugs of a test."""
        lacking = {title for title, tests in self._tests_of.items() if test in tests}
        others = [patch for patch in self._fixes.patches if patch.name not in lacking]
        with self._lock:
            self._some = self._open_worker(patched(self._fixes.unpatched, others))
            if self._is_stopped:
                self._some.stop()
            with self._some as worker:
                worker.start()
                for one in failures:
                    one.came_back[test] = _comes_back(worker, one)

    def _settled(self, failure: Explained) -> Cause | None:
        """Return the bug that a failure is, a cause without a name if it is no single one, None if that is open."""
        clear = {test: back for test, back in failure.came_back.items() if back is not None}
        bugs = [
            title
            for title, tests in self._tests_of.items()
            if all((test in tests) == back for test, back in clear.items())
        ]
        if bugs and len(failure.came_back) < len(self._kinds):
            return None
        return self._causes[bugs[0]] if len(bugs) == 1 and any(clear.values()) else Cause("")

    def stop(self) -> None:
        """End its processes; methods then raise Stopped."""
        self._is_stopped = True
        for worker in (self._all, self._some):
            if worker:
                worker.stop()

    def close(self) -> None:
        """Wait until its processes have ended."""
        with self._all:
            pass


def _is_silenced(worker: WorkerClient, trace: Trace, violation: Violation) -> bool:
    """Return True if a trace that fails unpatched is silent on a patched engine, or gets further."""
    try:
        after = worker.run(trace).violation
    except TraceError:  # the patched engine refuses this configuration
        return False
    return after is None or after.event > violation.event


def _comes_back(worker: WorkerClient, failure: Explained) -> bool | None:
    """Return True if a failure shows on a patched engine as it does without patches, None if another one comes before
    it, or if the engine refuses the trace."""
    try:
        after = worker.run(failure.trace).violation
    except TraceError:
        return None
    before = failure.violation
    if after is None or after.event > before.event:
        return False
    return True if (after.signature, after.event) == (before.signature, before.event) else None


def cause_of(entry: Known) -> Cause:
    """Return an entry as a cause, with number and title of the text beside its patch ("# 7. A state ...") and its
    severity. Raises TraceError for severities that cannot be read."""
    patch = Path(entry.folder) / entry.patch
    severity = (read_json(patch.parent / SEVERITIES, dict[str, Severity], "severities") or {}).get(entry.title)
    try:
        text = read_regular(patch.with_suffix(".md"), TEXT_BYTES_MAX, "a text")
    except TraceError:
        return Cause(entry.title, severity=severity)
    title = text.decode("utf-8", "replace").partition("\n")[0].removeprefix("# ")
    number, dot, phrase = title.partition(". ")
    if not (dot and number.isdecimal()):
        number, phrase = "0", title
    return Cause(entry.title, int(number), phrase[:TEXT_MAX], severity)
