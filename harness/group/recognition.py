"""Recognizes failures that known bugs with a patch explain, before anything is reduced.

Three questions, each answered by a few runs:

    is it known?      the failing trace runs on a copy of the engine with the patches of all known bugs. If it is silent
                      there, or gets further, they explain it. Only a failure that they do not explain can be new.
    which may it be?  two runs of the failing trace (`glimpse`) give its symptom, its facts and where the wrong value
                      came from; the same is collected, once, from the traces of each entry with this signature. The
                      `GUESSES` entries that are most like it are its suspects, and every bug that explains another
                      failure of the campaign.
    which is it?      the failing trace runs with all patches but that of a suspect. If it fails in the same way, that
                      is its cause. The start of such a process takes seconds: all failures that wait run on it.

A failure to which several defects are needed has no such suspect: it stays explained without a name. The engine with
all patches is one more process, started at the first failure; beside it lives, for a moment, one that lacks a patch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from ...targets.base.launch import Launch
from ...targets.base.overlay import patched
from ...targets.base.trace import Trace, TraceError
from ..campaign_events import Cause
from ..draw.files import read_regular
from ..judge.violation import Violation
from ..workers.client import Stopped, WorkerClient
from .evidence import Evidence
from .fixes import Fixes
from .investigate import Runner, glimpse
from .known import TEXT_MAX, Known
from .same_cause import likeness

GUESSES = 3
FINDING_WEIGHT = 3.0
"""A finding speaks for the proof of an entry as much as so many further failures."""
SUSPECTED = 3
"""Failures whose suspects are looked for before a test; the others are tested by the way."""
PRIOR = 0.3
"""A bug that explains one failure of a campaign is a suspect for every other one, with this likeness at least."""
TEXT_BYTES_MAX = 1 << 20


class Explained:
    """A failure that known bugs explain, until it is settled which one.

    `suspects` are the titles of the entries that it may be and that were not tested on it, with its likeness to them;
    None until they are needed.
    """

    def __init__(self, trace: Trace, violation: Violation) -> None:
        self.trace = trace
        self.violation = violation
        self.suspects: dict[str, float] | None = None
        self.is_finding = False


class Recognizer:
    """Recognizes the failures of one campaign as bugs of `fixes` that are among `entries`.

    `open_worker` returns a worker for a launch. Methods raise what a worker raises.
    """

    def __init__(
        self, fixes: Fixes, entries: Sequence[Known], target: str, open_worker: Callable[[Launch], WorkerClient]
    ) -> None:
        self._fixes = fixes
        self._entries = {entry.title: entry for entry in entries}
        self._patches = {patch.name: patch for patch in fixes.patches}
        self._target = target
        self._open_worker = open_worker
        self._all = open_worker(fixes.launch)
        self._one: WorkerClient | None = None
        self._has_started = self._is_stopped = False
        self._lock = Lock()
        self._glimpses: dict[str, list[Evidence]] = {}
        """Of the traces of entries, by title."""
        self._proven: dict[str, Cause] = {}

    def explains(self, trace: Trace, violation: Violation) -> Explained | None:
        """Return a failure that known bugs explain, None for another one."""
        with self._lock:
            if not self._has_started:
                self._all.start()
                self._has_started = True
            return Explained(trace, violation) if _is_silenced(self._all, trace, violation) else None

    def prove(self, failures: Sequence[Explained], engine: Runner) -> list[tuple[Explained, Cause]]:
        """Test the likeliest suspect of failures on all of them. `engine` runs without patches.

        Return those that are settled: by this suspect, or as it was the last one, without a name.
        """
        self._suspect(failures, engine)
        wanted = defaultdict[str, float](float)
        for one in failures:
            for title, like in (one.suspects or {}).items():
                wanted[title] += max(like, PRIOR * (title in self._proven)) * (FINDING_WEIGHT if one.is_finding else 1)
        shown: list[Explained] = []
        if wanted:
            title = max(wanted, key=lambda each: wanted[each])
            shown = self._shown_by(title, failures)
            if shown:
                self._proven[title] = cause_of(self._entries[title])
            for one in failures:
                if one.suspects:
                    one.suspects.pop(title, None)
        settled = [(one, self._proven[title]) for one in shown]
        return settled + [(one, Cause("")) for one in failures if one.suspects == {} and one not in shown]

    def _suspect(self, failures: Sequence[Explained], engine: Runner) -> None:
        """Find the suspects of a few failures, of findings first."""
        unknown = sorted((one for one in failures if one.suspects is None), key=lambda one: not one.is_finding)
        for one in unknown[:SUSPECTED]:
            seen = glimpse(engine, one.trace)
            candidates = self._candidates(one.violation.signature) if seen else []
            scores = {entry.title: self._score(entry, seen, engine) for entry in candidates if seen}
            likely = sorted(scores, key=lambda title: -scores[title])[:GUESSES]
            one.suspects = {title: scores.get(title, 0.0) for title in (*likely, *self._proven)}

    def _shown_by(self, title: str, failures: Sequence[Explained]) -> list[Explained]:
        """Return the failures that an entry's bug alone shows: all other known bugs are fixed."""
        others = [patch for name, patch in self._patches.items() if name != title]
        with self._lock:
            self._one = self._open_worker(patched(self._fixes.unpatched, others))
            if self._is_stopped:
                self._one.stop()
            with self._one as worker:
                worker.start()
                return [one for one in failures if _is_shown(worker, one.trace, one.violation)]

    def stop(self) -> None:
        """End its processes; methods then raise Stopped."""
        self._is_stopped = True
        for worker in (self._all, self._one):
            if worker:
                worker.stop()

    def close(self) -> None:
        """Wait until its processes have ended."""
        with self._all:
            pass

    def _candidates(self, signature: str) -> list[Known]:
        """Return the entries that list a signature, all if none does."""
        entries = self._entries.values()
        return [one for one in entries if one.has_symptom(signature, self._target)] or list(entries)

    def _score(self, entry: Known, seen: Evidence, engine: Runner) -> float:
        """Return how like a failure is to the trace of an entry that is most like it."""
        if entry.title not in self._glimpses:
            found = []
            for trace in entry.read_traces():
                if self._is_stopped:
                    raise Stopped
                try:
                    found.append(glimpse(engine, trace))
                except TraceError:  # another version has other configurations
                    continue
            self._glimpses[entry.title] = [one for one in found if one]
        return max((likeness(seen, one) for one in self._glimpses[entry.title]), default=0.0)


def _is_silenced(worker: WorkerClient, trace: Trace, violation: Violation) -> bool:
    """Return True if a trace that fails unpatched is silent on a patched engine, or gets further."""
    try:
        after = worker.run(trace).violation
    except TraceError:  # the patched engine refuses this configuration
        return False
    return after is None or after.event > violation.event


def _is_shown(worker: WorkerClient, trace: Trace, violation: Violation) -> bool:
    """Return True if a trace fails on a patched engine in the same way as without patches."""
    try:
        after = worker.run(trace).violation
    except TraceError:
        return False
    return after is not None and (after.signature, after.event) == (violation.signature, violation.event)


def cause_of(entry: Known) -> Cause:
    """Return an entry as a cause, with number and title of the text beside its patch ("# 7. A state ...")."""
    try:
        text = read_regular((Path(entry.folder) / entry.patch).with_suffix(".md"), TEXT_BYTES_MAX, "a text")
    except TraceError:
        return Cause(entry.title)
    title = text.decode("utf-8", "replace").partition("\n")[0].removeprefix("# ")
    number, dot, phrase = title.partition(". ")
    if not (dot and number.isdecimal()):
        number, phrase = "0", title
    return Cause(entry.title, int(number), phrase[:TEXT_MAX])
