"""Sorts failing traces into findings by cause.

A violation counts for the finding of its signature at once, as *unsorted*. When there is time for it (`triage`), its
trace is reduced in at most `SORT_SECONDS` and its evidence compared with that of every finding: it stays, moves to
another finding, or becomes a finding of its own. Until then it stays unsorted, and the finding says how many of its
traces are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...targets.base.trace import Trace
from ..campaign_events import Found, Improved, Merged, Recognized
from ..campaign_summary import Cause, Finding
from ..draw.trace_files import load_trace
from ..group.causes.evidence import Evidence
from ..group.causes.investigate import Investigation
from ..group.causes.same_cause import can_start_finding, joined, likeness, same_cause
from ..group.findings.finding_store import FindingStore
from ..judge.violation import Violation
from ..record.history import History
from ..workers.protocol import Worker
from .shared_state import CampaignState, Claim, Unsorted

SORT_SECONDS = 10.0
UNLIKE_KNOWN = 0.7
"""A trace is worth keeping beside others if it is less like each of them than this."""


def learn(store: FindingStore, name: str, evidence: Evidence, trace: Trace) -> None:
    """Add the evidence of one more trace to a finding; keep the trace, too, if it differs from those it has."""
    known = store.evidence.get(name)
    if known and differ([evidence], known.evidence):
        store.add_trace(name, trace)
    store.learn(name, joined(known, [evidence]))


def differ(seen: Sequence[Evidence], known: Sequence[Evidence]) -> bool:
    """Return True if any of `seen` is unlike all of `known`; False if nothing is known."""
    return bool(known) and any(max(likeness(each, its) for its in known) < UNLIKE_KNOWN for each in seen)


class Sorter:
    """Sorts the failing traces that one worker meets. Its state is the campaign's."""

    def __init__(self, state: CampaignState, worker: Worker) -> None:
        self._state = state
        self._worker = worker

    def recognized(self, name: str, cause: Cause, violation: Violation) -> None:
        """Note that a known bug explains a finding; merge it into the one that it explains already."""
        state, store = self._state, self._state.store
        with state.lock:
            gone, into = None, store.with_cause(cause)
            if into and into != name:
                gone, finding = store.merge(name, into)
            else:
                finding = store.recognize(name, cause, violation)
            state.save_locked()
            if gone:
                store.remove(gone)
        state.emit(Merged(gone.id, finding) if gone else Recognized(finding))

    def sort_known(self, counted: Unsorted, cause: Cause) -> None:
        """Count a trace that a known bug explains for that bug's finding, which may be a new one.

        If it is not settled which known bug it is, the trace stays with the finding of its signature.
        """
        state, store = self._state, self._state.store
        violation = counted.violation
        if not cause.name:
            return
        with state.lock:
            name = store.holder(counted.name, violation.signature)
            if not name:
                return
            into = store.with_cause(cause)
            if into:
                finding = store.sort(name, violation.signature, into)
            else:
                reason = state.known(violation.signature)
                new = store.split(name, violation, counted.index, counted.trace, reason)
                finding = store.recognize(new.id, cause, violation)
            self._done_with(counted)
        if not into:
            state.emit(Found(finding, self._worker.node))
            state.emit(Recognized(finding))

    def sort(self, counted: Unsorted) -> Claim | None:
        """Find the finding that an unsorted trace belongs to. Return the claim if it is a finding of its own."""
        state = self._state
        seen = self._evidence(counted.trace, counted.violation, SORT_SECONDS)
        if seen is None:
            return None
        trace, violation, evidence = seen
        gone: list[Finding] = []
        with state.lock:
            store, signature = state.store, counted.violation.signature
            name = store.holder(counted.name, signature)
            if not name:
                return None
            found = same_cause([evidence], store.evidence)
            if found in store.findings:
                store.sort(name, signature, found)
                learn(store, found, evidence, trace)
                into, gone = self._link(found)
                state.judge(into)
                finding, claim = store.findings[into], None
            elif found or can_start_finding(evidence):
                finding = store.split(name, violation, counted.index, trace, state.known(signature))
                claim = Claim(finding, None)
            else:  # too little evidence for a finding of its own
                return None
            self._done_with(counted)
            for one in gone:
                store.remove(one)
        state.emit(Found(finding, self._worker.node) if claim else Improved(finding))
        for one in gone:
            state.emit(Merged(one.id, finding))
        return claim

    def _done_with(self, counted: Unsorted) -> None:
        """Save that a trace was sorted: it does not wait any more, so that nothing sorts it twice. The caller holds the
        lock."""
        if counted.kept:
            self._state.backlog.drop(counted.kept)
        self._state.save_locked()

    def _link(self, name: str) -> tuple[str, list[Finding]]:
        """Merge a finding that has learned something with those that have the same cause, into the oldest of them.

        Returns its name, and the findings that are gone. The caller holds the lock, saves the state, and removes their
        files.
        """
        gone = []
        while other := self._like(name):
            name, merged = self._merge(name, other)
            gone.append(merged)
        return name, gone

    def _merge(self, one: str, other: str) -> tuple[str, Finding]:
        """Merge two findings of this campaign into the older one: the name announced first is kept.

        Returns its name, and the finding that is gone.
        """
        store = self._state.store
        into, name = sorted((one, other), key=list(store.findings).index)
        evidence = store.evidence[name].evidence
        traces = [load_trace(path) for path in (store.findings[name].trace, *store.findings[name].extras)]
        gone, _ = store.merge(name, into)
        store.adopt(into, gone, traces[0])
        if differ(evidence, store.evidence[into].evidence):
            for trace in traces:
                store.add_trace(into, trace)
        store.learn(into, joined(store.evidence[into], evidence))
        store.evidence.pop(name)
        return into, gone

    def _like(self, name: str) -> str:
        """Return the name of another finding of this campaign with the same cause, "" if there is none."""
        store = self._state.store
        met = {other: one for other, one in store.evidence.items() if other in store.findings}
        return same_cause(met[name].evidence, met, but=name)

    def settle(self, name: str, trace: Trace, seconds: float, history: History | None) -> None:
        """Collect the evidence of a confirmed and reduced finding; merge it into another one of the same cause.
        `history` is that of the trace, None to record it."""
        state, store = self._state, self._state.store
        with state.triage.timed("identity"):
            evidence = Investigation(self._worker, state.capabilities, seconds).evidence(trace, history)
        if evidence is None:
            return
        with state.lock:
            into = same_cause([evidence], store.evidence, but=name)
            gone = None
            if into and into not in store.findings:  # one that an earlier campaign left in this folder
                gone, _ = store.merge(name, into)
                store.adopt(into, gone, trace)
                learn(store, into, evidence, trace)
            else:
                learn(store, name, evidence, trace)
                into, gone = self._merge(name, into) if into else (name, None)
            state.judge(into)
            finding = store.findings[into]
            state.save_locked()
            if gone:
                store.remove(gone)
        if gone:
            state.emit(Merged(gone.id, finding))

    def _evidence(self, trace: Trace, violation: Violation, seconds: float) -> tuple[Trace, Violation, Evidence] | None:
        """Return a reduced trace with its violation and its evidence, None if it does not fail again."""
        investigation = Investigation(self._worker, self._state.capabilities, seconds)
        with self._state.triage.timed("reducing"):
            best = investigation.reduce(trace, violation)
        outcome = investigation.result(best)
        if outcome is None or outcome.violation is None:
            return None
        with self._state.triage.timed("identity"):
            evidence = investigation.evidence(best)
        return (best, outcome.violation, evidence) if evidence else None
