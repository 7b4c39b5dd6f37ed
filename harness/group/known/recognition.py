"""Recognizes failures that known bugs with a patch explain, before anything is reduced.

Three questions, answered by one run and by a few:

    is it known?    the failing trace runs on a copy of the engine with the patches of all known bugs. If it is silent
                    there, or gets further, they explain it. Only a failure that they do not explain can be new.
    which is it?    the trace runs on copies of which each lacks the patches of some of the bugs. Each bug has its own
                    combination of such tests, all of one size (`combinations_for`): a failure that comes back in all
                    tests of one bug, and in no other, is this bug. Seven tests tell 35 bugs apart, however many of
                    them a campaign meets.
    which alone?    combined, other patches may also hide a failure. A reduced trace without a name then runs on copies
                    with few patches, each bug patched in two of them. A failure of any kind there rules out the bugs
                    patched in that copy. The few that are left are patched one by one: if exactly one patch silences
                    the trace, its bug is the answer.

The start of a process takes seconds, a run a fraction of one: each test runs for all failures that wait for it, or as
many as its time allows, the test that most wait for first. A failure to which several bugs are needed comes back in too
few tests, one that each of several bugs shows in too many: both stay explained without a name. In a test an earlier
failure of another bug may hide whether this one comes back; then the other tests decide, if they leave one bug.

The engine with all patches is one more process, started at the first failure. Beside it live processes that lack some
patches, one for each test that has begun: of several tests at once if there are workers for them. Between two tests
they are kept, since failures of the next minutes need the same ones; they end when a failure, or the end of a test,
finds less than a third of the memory left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, count
from math import comb
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias

from ....targets.base.launch import Launch
from ....targets.base.patched_copy import patched
from ....targets.base.trace import Trace, TraceError
from ...campaign_summary import Cause, Severity
from ...draw.trace_files import read_json
from ...judge.violation import Violation
from ...workers.machine import has_room
from ...workers.worker_client import WorkerClient
from ..reduction.reduce import until
from .cause_text import read_cause_text
from .fixes import Fixes
from .known_toml import TEXT_MAX, Known

FINDING_WEIGHT = 3
"""A finding speaks for the next test as much as so many further failures."""
FURTHER_SECONDS = 10.0
"""A test runs further failures of a symptom for this long at least."""
PATCHED_IN = 2
"""Each bug is patched in so many of the tests with few patches. With more, each test would have more patches."""
ALONE_MAX = 6
"""If no more bugs than this are left, they are patched one by one. Four silent tests with few patches leave six."""
SEVERITIES = "severity.json"
"""How much the bugs matter whose patches lie in the same folder, by name (`hybridfuzz known severity`)."""


Test: TypeAlias = frozenset[str]
"""The titles of the bugs that are not patched in it."""
Result: TypeAlias = Literal["back", "hidden", "further", "silent", "refused"]
"""What a trace does in a test. back: the same failure; hidden: another one first; further: a failure only at a later
event; silent: none; refused: the engine refuses the trace."""
COMES_BACK: Mapping[Result, bool] = {"back": True, "further": False, "silent": False}
"""Whether a failure came back, where that is clear."""
FAILS: Sequence[Result] = ("back", "hidden", "further")


def combinations_for(bugs: int, size: int = 0) -> list[frozenset[int]]:
    """Return a different combination of tests for each bug, all of one size, of as few tests as possible: half of the
    tests, if no `size` is given."""
    tests = next(each for each in count(1) if comb(each, size or max(each // 2, 1)) >= bugs)
    every = list(combinations(range(tests), size or max(tests // 2, 1)))
    return [frozenset(every[number * len(every) // bugs]) for number in range(bugs)]


def groups_of(titles: Sequence[str], size: int = 0) -> list[frozenset[str]]:
    """Split bugs into tests, by `combinations_for`; return the bugs of each."""
    combined = dict(zip(titles, combinations_for(len(titles), size), strict=True))
    numbers = sorted(frozenset[int]().union(*combined.values()))
    return [frozenset(title for title in titles if number in combined[title]) for number in numbers]


class Explained:
    """A failure that known bugs explain, until it is settled which one.

    `trace` ends with the failing event. `results` are those of the tests that ran. If `tries_few`, tests with few
    patches may settle it, too.
    """

    def __init__(self, trace: Trace, violation: Violation) -> None:
        self.trace = until(violation, trace)
        self.violation = violation
        self.results: dict[Test, Result] = {}
        self.is_finding = self.tries_few = False


class Recognizer:
    """Recognizes the failures of one campaign as bugs of `fixes` that are among `entries`.

    `open_worker` returns a worker for a launch; `most` tests run at once; engines are kept while it `has_room`.
    Raises TraceError for severities that cannot be read; its methods raise what a worker raises.
    """

    def __init__(
        self,
        fixes: Fixes,
        entries: Sequence[Known],
        target: str,
        open_worker: Callable[[Launch], WorkerClient],
        most: int = 1,
        has_room: Callable[[], bool] = has_room,
    ) -> None:
        self._fixes = fixes
        self._causes = {entry.title: cause_of(entry) for entry in entries}
        self._bugs = frozenset(self._causes)
        self._with_many: Sequence[Test] = groups_of(list(self._causes))
        """The tests that tell bugs apart, with about half of the patches."""
        self._with_few: Sequence[Test] = [self._bugs - group for group in groups_of(list(self._causes), PATCHED_IN)]
        self._target = target
        self._open_worker = open_worker
        self._most = most
        # Processes that share a device take its memory, too.
        self._has_room = has_room if fixes.launch.service is None else lambda: False
        self._all = open_worker(fixes.launch)
        self._running: dict[Test, WorkerClient | None] = {}
        """The tests that run; None until its engine is patched."""
        self._kept: dict[Test, WorkerClient] = {}
        """Engines of tests that have run, and wait."""
        self.tests = 0
        """How many tests have begun."""
        self._has_started = self._is_stopped = False
        self._engine = Lock()
        """Held by who uses the engine with all patches."""
        self._lock = Lock()
        """Guards what is known of failures and tests."""

    def explains(self, trace: Trace, violation: Violation) -> Explained | None:
        """Return a failure that known bugs explain, None for another one."""
        if not self._has_room():
            self._end(self._taken())
        with self._engine:
            if not self._has_started:
                self._all.start()
                self._has_started = True
            return Explained(trace, violation) if _is_silenced(self._all, trace, violation) else None

    def can_prove(self, failures: Sequence[Explained]) -> bool:
        """Return True if some of these wait for a test that may begin."""
        with self._lock:
            return bool(self._waiting(failures))

    def prove(
        self, failures: Sequence[Explained], begun: Callable[[], None] = lambda: None
    ) -> list[tuple[Explained, Cause]]:
        """Run the test that most failures wait for. Return the failures that are settled now, without a name where no
        single bug shows them. Once `begun` is called, other threads may begin other tests.
        """
        with self._lock:
            waiting = self._waiting(failures)
            if not waiting:
                return []
            test = max(waiting, key=lambda each: self._urgency(each, waiting[each]))
            worker = self._running[test] = self._kept.pop(test, None)
            self.tests += 1
        found: dict[Explained, Result] = {}
        try:
            begun()
            is_new, worker = worker is None, worker or self._worker_of(test)
            found = _run_test(worker, waiting[test], starts=is_new, keeps=self._has_room)
        finally:
            with self._lock:
                for one, result in found.items():
                    one.results[test] = result
                del self._running[test]
                if worker and found and not self._is_stopped:
                    self._kept[test] = worker
                    worker = None
            self._end([worker] if worker else [])
        if not self._has_room():
            self._end(self._taken())
        with self._lock:
            return [(one, cause) for one in failures if (cause := self._settled(one))]

    def _waiting(self, failures: Sequence[Explained]) -> dict[Test, list[Explained]]:
        """Return what waits for each test that may begin."""
        waiting: dict[Test, list[Explained]] = {}
        if len(self._running) < self._most:
            for one in failures:
                for test in self._wanted(one):
                    if test not in self._running:
                        waiting.setdefault(test, []).append(one)
        return waiting

    def _urgency(self, test: Test, waiting: Sequence[Explained]) -> tuple[bool, int]:
        """Return how much speaks for a test as the next one, by what waits for it."""
        tells_apart = test in self._with_many and any(one.is_finding for one in waiting)
        return tells_apart, sum(FINDING_WEIGHT if one.is_finding else 1 for one in waiting)

    def _worker_of(self, test: Test) -> WorkerClient:
        """Return a worker for a test, whose engine lacks the patches of its bugs; one that is stopped, after `stop`."""
        others = [patch for patch in self._fixes.patches if patch.name not in test]
        worker = self._open_worker(patched(self._fixes.unpatched, others))
        with self._lock:
            self._running[test] = worker
            if self._is_stopped:
                worker.stop()
        return worker

    def _wanted(self, failure: Explained) -> Sequence[Test]:
        """Return the tests that may still settle which bug a failure is, in any order."""
        open_ones = [test for test in self._with_many if test not in failure.results]
        shown = self._shown_by(failure)
        if shown and open_ones:
            return open_ones
        if not failure.tries_few or self._is_clear(failure, shown):
            return []
        alone = self._may_silence_alone(failure)
        tests = self._with_few if len(alone) > ALONE_MAX else [self._bugs - {title} for title in alone]
        return [test for test in tests if test not in failure.results and alone - test]

    def _shown_by(self, failure: Explained) -> Sequence[str]:
        """Return the bugs that may be the only one that shows a failure, by the tests with many patches."""
        ran = {test: failure.results[test] for test in self._with_many if test in failure.results}
        clear = {test: COMES_BACK[result] for test, result in ran.items() if result in COMES_BACK}
        return [title for title in self._causes if all((title in test) == back for test, back in clear.items())]

    def _is_clear(self, failure: Explained, shown: Sequence[str]) -> bool:
        return len(shown) == 1 and any(failure.results.get(test) == "back" for test in self._with_many)

    def _may_silence_alone(self, failure: Explained) -> frozenset[str]:
        """Return the bugs whose own patch alone may silence a trace: wherever it failed, they were not patched."""
        return self._bugs.intersection(*(test for test, result in failure.results.items() if result in FAILS))

    def _settled(self, failure: Explained) -> Cause | None:
        """Return the bug that a failure is, a cause without a name if it is no single one, None if that is open."""
        if self._wanted(failure):
            return None
        shown = self._shown_by(failure)
        if self._is_clear(failure, shown):
            return self._causes[shown[0]]
        alone = self._may_silence_alone(failure)
        is_silenced = len(alone) == 1 and failure.results.get(self._bugs - alone) == "silent"
        return self._causes[next(iter(alone))] if is_silenced else Cause("")

    def _taken(self) -> list[WorkerClient]:
        """Return the engines that are kept, which are kept no more."""
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        return kept

    def _end(self, workers: Sequence[WorkerClient]) -> None:
        for worker in workers:
            with worker:
                pass

    def stop(self) -> None:
        """End its processes; methods then raise Stopped."""
        with self._lock:
            self._is_stopped = True
            for worker in (self._all, *self._running.values(), *self._kept.values()):
                if worker:
                    worker.stop()

    def give_up(self) -> None:
        """End the engines that are kept, and keep none from now on: there will be no further test."""
        self._has_room = lambda: False
        self._end(self._taken())

    def close(self) -> None:
        """Wait until its processes have ended."""
        self._end([self._all, *self._taken()])


def _run_test(
    worker: WorkerClient, failures: Sequence[Explained], *, starts: bool, keeps: Callable[[], bool]
) -> dict[Explained, Result]:
    """Return what failing traces do on an engine that lacks some patches.

    Findings run first. Further failures of a symptom get as long again as the start and the findings took, at least
    `FURTHER_SECONDS`; the rest wait for another run. Otherwise the names of findings would wait for failures that each
    need an engine of their own. If the engine has just been started and will be kept, all further failures wait, so
    that the other tests of the findings run first.
    """
    began = time.monotonic()
    if starts:
        worker.start()
    found = {one: _result_of(worker, one) for one in failures if one.is_finding}
    if found and starts and keeps():
        return found
    until_then = time.monotonic() - began
    for one in failures:
        if one not in found and time.monotonic() - began <= until_then + max(until_then, FURTHER_SECONDS):
            found[one] = _result_of(worker, one)
    return found


def _is_silenced(worker: WorkerClient, trace: Trace, violation: Violation) -> bool:
    """Return True if a trace that fails unpatched is silent on a patched engine, or gets further."""
    try:
        after = worker.run(trace).violation
    except TraceError:  # the patched engine refuses this configuration
        return False
    return after is None or after.event > violation.event


def _result_of(worker: WorkerClient, failure: Explained) -> Result:
    try:
        after = worker.run(failure.trace).violation
    except TraceError:
        return "refused"
    before = failure.violation
    if after is None:
        return "silent"
    if after.event > before.event:
        return "further"
    return "back" if (after.signature, after.event) == (before.signature, before.event) else "hidden"


def cause_of(entry: Known) -> Cause:
    """Return an entry as a cause, with number and title of its text ("# 7. A state ...") and its severity. Raises
    TraceError for severities that cannot be read."""
    path = entry.text_path
    if not path:
        return Cause(entry.title)
    beside = Path(entry.folder, entry.patch or entry.text).with_name(SEVERITIES)
    severity = (read_json(beside, dict[str, Severity], "severities") or {}).get(entry.title)
    try:
        found = read_cause_text(path)
    except TraceError:
        return Cause(entry.title, severity=severity)
    return Cause(entry.title, found.number, found.title[:TEXT_MAX], severity)
