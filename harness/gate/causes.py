"""Failed items by cause: one bug in a pull request fails a hundred items, and is one failure.

    compare   the shortest trace of each signature is cut down and its evidence collected (`group.causes.investigate`)
    join      a failure belongs to the cause that it is most like, unless its evidence speaks for another one.
              A campaign asks for proof that two failures have one cause, a gate for proof that they have not: the
              checkout is new in one place
    show      the shortest trace of a cause is reduced, its options set to usual values as far as the failure stays, and
              told: headline, explanation and trace are of the same run

All of that runs within `SECONDS`, or what is left of the run's time. What is not compared by then counts for the first
cause, and is said not to be. A trace is saved before it is reduced, and the best one so far is told.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct, structs

from ...targets.base.protocol import Capabilities, TargetError
from ...targets.base.registry import describe
from ...targets.base.trace import Trace
from ..campaign.recheck import Confirmation
from ..campaign_summary import Severity
from ..group.causes.evidence import Evidence, FindingEvidence
from ..group.causes.investigate import Investigation
from ..group.causes.same_cause import alike
from ..group.findings.finding_store import FindingStore, OutputError, replay_command
from ..group.findings.measured_reach import severity_on
from ..group.findings.severity import order, severity_words
from ..group.known.fixes import Fixes
from ..group.reduction.still_fails import UNEXPLAINED
from ..judge.violation import Violation
from ..quoting import terminal_line
from ..record.history import History
from ..tell.configuration import configuration_words
from ..tell.headline import headline_of
from ..tell.reproduce import unusual
from ..tell.terminal import finding_text
from ..tell.usual_options import plainest
from ..units import plural
from ..workers.worker_client import Stopped, WorkerClient
from .packaged_bugs import fixes_words
from .settings import GateSettings

DIFFERENT = 0.01
"""Likeness below which failures are a cause of their own, if they are more than one. A checkout is new in one place,
and likeness alone does not tell one cause from two there: of 26 pairs of failures of one planted bug five are below 0.1
(`M3`, of one item in ten, beside `M6` of a state that is given back at its boundary: below 0.005), of 81 pairs of
different bugs eight are below 0.08."""
FEW = 10
"""Failures in all below which there is one cause: the shortest traces of so few show too little to tell causes by. Of a
state that is given back at its boundary two items of `M3` are below 0.01 beside four others; five beside six are
not."""
SECONDS = 35.0
"""At most for all."""
COMPARE_SECONDS = 6.0
"""At most for one signature."""
COMPARE_PART = 0.4
"""Of all for comparing."""
REDUCE_PART, PLACES_PART, SEVERITY_PART = 0.4, 0.2, 0.15
"""Of the time for one cause: to reduce the trace that is shown; to find the places for a cause whose traces were not
compared; to find out how much it matters."""
SHORTEST_SECONDS = 0.5
"""Nothing runs in less."""
PLACES_MAX = 3
LINES_MAX = 25
"""Of an explanation and its timeline; `hybridfuzz replay` prints all of them."""
SIGNATURES_MAX = 6
NOT_AGAIN = "did not fail again when run alone"
NO_TIME = "not reduced further: no time was left"


class ItemFailure(Struct, frozen=True):
    """A violation on one item. `flaky` if it did not happen again; `where` says which trace it is."""

    item: str
    violation: Violation
    trace: Trace
    where: str
    flaky: bool = False


class Cause(Struct, frozen=True):
    """Failed items that are one failure, the one that is shown first, its text, and how much it matters."""

    items: tuple[str, ...]
    text: str
    severity: Severity | None = None


class _Shown(Struct, frozen=True):
    """The trace that is shown for a cause: how it fails, its explanation, its file, why it is not reduced, and how much
    the failure matters."""

    trace: Trace
    violation: Violation
    told: str = ""
    path: str = ""
    problem: str = ""
    severity: Severity | None = None


class _Group:
    """The failures of one cause. `evidence` is that of the traces that were compared, by trace."""

    def __init__(self) -> None:
        self.failures: list[ItemFailure] = []
        self.compared: list[tuple[Trace, Violation, Evidence]] = []

    @property
    def evidence(self) -> list[Evidence]:
        """What the traces show that were compared."""
        return [evidence for _, _, evidence in self.compared]

    def shortest(self) -> tuple[Trace, Violation]:
        """Return the trace that is shown, and how it fails."""
        cut = [(trace, violation) for trace, violation, _ in self.compared]
        known = cut or [(failure.trace, failure.violation) for failure in self.failures]
        return min(known, key=lambda one: len(one[0].events))


class Causes:
    """Sorts the failures of a run, on one worker. Methods raise TargetError."""

    def __init__(
        self,
        settings: GateSettings,
        fixes: Fixes,
        worker: WorkerClient,
        capabilities: Capabilities | None,
        seconds: float = SECONDS,
    ) -> None:
        """Sort for so many seconds. Without capabilities, those of an engine that did not start, nothing runs."""
        self._settings = settings
        self._launch = fixes.launch
        self._behind = fixes_words(settings, fixes)
        self._worker = worker
        self._capabilities = capabilities
        self._seconds = min(seconds, SECONDS)
        self._deadline = time.monotonic() + self._seconds
        self._store: FindingStore | None = None

    @property
    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    def sorted(self, failures: Sequence[ItemFailure]) -> list[Cause]:
        """Return the causes of the failures, the one that matters most first, then the one with most items."""
        groups = sorted(self._grouped(failures), key=lambda group: -len(group.failures))
        causes = [self._told(group, self._left / (len(groups) - done)) for done, group in enumerate(groups)]
        return sorted(causes, key=lambda cause: order(cause.severity))

    def _grouped(self, failures: Sequence[ItemFailure]) -> list[_Group]:
        """Group the failures: what can be compared by cause, what did not happen again by signature."""
        by_signature: dict[tuple[bool, str], list[ItemFailure]] = {}
        for failure in failures:
            by_signature.setdefault((failure.flaky, failure.violation.signature), []).append(failure)
        groups: list[_Group] = []
        rest: list[list[ItemFailure]] = []
        # The most frequent first: it is the most probable one to be what changed.
        for (flaky, _), same in sorted(by_signature.items(), key=lambda item: (item[0][0], -len(item[1]))):
            one = min(same, key=lambda failure: len(failure.trace.events))
            compared = None if flaky else self._compare(one)
            if compared is None and not flaky:
                rest.append(same)
                continue
            tells = len(same) > 1 and len(failures) >= FEW
            group = self._nearest(groups, compared[2], tells=tells) if compared else None
            if group is None:
                groups.append(group := _Group())
            group.failures += same
            group.compared += [compared] if compared else []
        for same in rest:
            steady = [group for group in groups if not group.failures[0].flaky]
            if not steady:
                groups.insert(0, _Group())
            (steady or groups)[0].failures += same
        return groups

    def _compare(self, failure: ItemFailure) -> tuple[Trace, Violation, Evidence] | None:
        """Return a shorter trace of a failure with its evidence, None for one without, or when time is up."""
        left = self._left - (1 - COMPARE_PART) * self._seconds
        if failure.violation.oracle in UNEXPLAINED or left < SHORTEST_SECONDS or self._capabilities is None:
            return None
        investigation = Investigation(self._worker, self._capabilities, min(left, COMPARE_SECONDS))
        try:
            trace = investigation.reduce(failure.trace, failure.violation)
            outcome = investigation.result(trace)
            evidence = investigation.evidence(trace) if outcome and outcome.violation else None
        except (TargetError, Stopped):  # told when the trace is shown: the target does not start again after its crash
            return None
        return (trace, outcome.violation, evidence) if outcome and outcome.violation and evidence else None

    def _nearest(self, groups: Sequence[_Group], evidence: Evidence, *, tells: bool) -> _Group | None:
        """Return the group of the cause that a failure shows, None for one of its own. `tells`: there are items enough
        to tell it by."""
        compared = [group for group in groups if group.compared]
        group = max(compared, key=lambda group: alike([evidence], group.evidence), default=None)
        if group is None or (tells and evidence.complete and alike([evidence], group.evidence) < DIFFERENT):
            return None
        return group

    def _told(self, group: _Group, seconds: float) -> Cause:
        trace, violation = group.shortest()
        first = min(group.failures, key=lambda one: (one.violation.signature != violation.signature, one.item))
        shown = _Shown(trace, violation)
        try:
            with suppress(Stopped):  # what is known by then is told
                for better in self._stages(group, first, shown, seconds):
                    shown = better
        except OutputError as error:
            shown = structs.replace(shown, problem=str(error))
        except TargetError as error:  # the target does not start again after its crash
            shown = structs.replace(shown, problem=f"could not run again: {error}")
        items = (first.item, *(one.item for one in group.failures if one is not first))
        return Cause(items, "\n".join(self._lines(group, first, shown)), shown.severity)

    def _stages(self, group: _Group, first: ItemFailure, shown: _Shown, seconds: float) -> Iterator[_Shown]:
        """Save a trace, reduce it, and set its options to usual values. Yield what is known, after each of these."""
        deadline = time.monotonic() + seconds
        made = self._store or FindingStore(self._settings.out, self._settings.target, self._behind)
        store = self._store = made
        violation = shown.violation
        finding, earlier = store.claim(violation, 0, shown.trace)
        path = Path(finding.trace)
        if first.flaky:
            store.settle(finding.id, reproduced=False, shown=0, tried=1)
            yield structs.replace(shown, path=str(path), problem=NOT_AGAIN)
            return
        yield (shown := structs.replace(shown, path=str(path), problem=NO_TIME))
        if seconds < SHORTEST_SECONDS or self._capabilities is None:
            return
        case = Confirmation(store, Lock(), self._worker, lambda record: None, REDUCE_PART * seconds)
        try:
            best = case.investigate(finding.id, violation, shown.trace, earlier=earlier)
        except Stopped:
            if case.is_confirmed:
                trace, failure = case.shown
                yield structs.replace(shown, trace=trace, violation=failure, path=store.findings[finding.id].trace)
            raise
        except TargetError as error:
            yield structs.replace(shown, problem=f"could not run again: {error}")
            return
        if best is None:
            yield structs.replace(shown, path=store.findings[finding.id].trace, problem=NOT_AGAIN)
            return
        history = case.history or History()
        yield (shown := self._as_told(best, history, violation, store.findings[finding.id].trace))
        if history.violation:
            last = deadline - SEVERITY_PART * seconds
            plain = plainest(best, violation.signature, self._worker.run, self._capabilities, self._unusual, last)
            if plain != best and (again := self._worker.explain(plain)[1]).violation:
                store.improve(finding.id, plain, again.violation)
                phrase = headline_of(plain, again, again.violation, ()).title
                store.explain(finding.id, again.violation, again, finding_text(again), phrase)
                best, history = plain, again
                yield (shown := self._as_told(best, history, violation, store.findings[finding.id].trace))
        if not group.evidence and history.violation:
            investigation = Investigation(self._worker, self._capabilities, PLACES_PART * seconds)
            if evidence := investigation.evidence(best, history):
                group.compared.append((best, history.violation, evidence))
        if group.evidence:
            store.learn(finding.id, FindingEvidence(group.evidence))
        target, version, failure = self._settings.target, self._launch.version, shown.violation
        rest = SEVERITY_PART * seconds
        severity = severity_on(target, version, best, failure, self._worker, self._capabilities, rest)
        yield structs.replace(shown, severity=severity)

    @staticmethod
    def _as_told(trace: Trace, history: History, violation: Violation, file: str) -> _Shown:
        return _Shown(trace, history.violation or violation, finding_text(history, LINES_MAX), file)

    def _unusual(self, trace: Trace) -> int:
        return unusual(self._settings.target, self._launch, trace)

    def _lines(self, group: _Group, first: ItemFailure, shown: _Shown) -> Iterator[str]:
        """Yield what pytest prints for a cause."""
        target = self._settings.target
        words = configuration_words(shown.trace, describe(target, shown.trace, self._launch.version))
        yield terminal_line(shown.violation.message)
        yield ""
        if shown.severity:
            yield f"severity   {terminal_line(severity_words(shown.severity))}"
        yield f"config     {terminal_line(words)}"
        yield f"signature  {shown.violation.signature}"
        cut = shown.problem or f"reduced to {plural(len(shown.trace.events), 'event')}"
        yield f"trace      {first.where}; {terminal_line(cut)}"
        if shown.path:
            file = near(Path(shown.path))
            yield f"replay     {replay_command(target, file, self._behind)}"
            yield f"report     {shlex.join(['hybridfuzz', 'repro', file, '--target', target, '-o', 'repro'])}"
        else:
            yield f"again      pytest --hybridfuzz-target {shlex.quote(target)} hybridfuzz::{first.item}"
        for place in FindingEvidence(group.evidence).places[:PLACES_MAX] if group.evidence else ():
            yield f"look at    {place.file}:{place.line} {place.function} ({place.score:.2f})"
        if more := len(group.failures) - 1:
            yield f"and {plural(more, 'more item')}; in all {self._symptoms(group)}"
        if shown.told:
            yield f"\n{shown.told}"

    def _symptoms(self, group: _Group) -> str:
        """Return how often each signature occurs, and which of them were not compared."""
        counts = Counter(failure.violation.signature for failure in group.failures)
        shown = [f"{count} {signature}" for signature, count in counts.most_common(SIGNATURES_MAX)]
        hidden = len(counts) - len(shown)
        text = ", ".join([*shown, *([f"{hidden} other signatures"] if hidden else [])])
        compared = {evidence.signature for evidence in group.evidence}
        unexamined = [signature for signature in counts if signature not in compared] if compared else []
        return f"{text} (not compared: {', '.join(unexamined[:SIGNATURES_MAX])})" if unexamined else text


def near(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the working directory."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
