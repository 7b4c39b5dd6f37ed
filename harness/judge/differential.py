"""D1: differential mode, two targets that should behave alike on the same trace.

Scheduling decisions and client output must agree: rows with start, length, drafts and hit, in order, preemptions,
output tokens and ends of requests. Block ids may differ. This compares two releases, or two implementations of one
part; engines that schedule differently by design cannot be compared.

The first event at which the two differ is the finding. A violation of the first target's own is reported instead; a
violation of the second target alone is a difference, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...targets.base.observe import Delivered, Effect, Planned, Record
from ...targets.base.protocol import Target, TargetFactory
from ...targets.base.proxy import FactoryProxy, TargetProxy
from ...targets.base.trace import Config, Event, Step, Trace, tag_of
from .outcome import Outcome
from .run import run_trace
from .verdict import Quoted
from .violation import Violation

ORACLE = "D1"


class EventSummary(Struct, frozen=True):
    """One event in words: the scheduling decision, and what clients received."""

    planned: str = ""
    delivered: str = ""


def summarize_event(records: Sequence[Record]) -> EventSummary:
    """Return the part of an event's records that is compared."""
    planned, delivered = [], []
    for record in records:
        if isinstance(record, Planned):
            for row in record.rows:
                hit = (f" kept {row.kept}" if row.kept else f" hit {row.hit}") if row.admitted else ""
                drafts = f" drafts {row.drafts}" if row.drafts else ""
                planned.append(f"{row.name}[{row.start}:{row.start + row.num_tokens}{drafts}{hit}]")
            planned += [f"preempted {name}" for name in record.preempted]
        elif isinstance(record, Delivered):
            delivered += [f"{name} {list(tokens)}" for name, tokens in sorted(record.outputs)]
            delivered += [f"{name} ended" for name in sorted(record.finished)]
            delivered += [f"{name} ended with an error" for name in sorted(record.failed)]
    return EventSummary(", ".join(planned), ", ".join(delivered))


class SummarizingFactory(FactoryProxy):
    """A factory whose targets summarize each event, draining included; `summaries` after the run."""

    def __init__(self, factory: TargetFactory) -> None:
        super().__init__(factory)
        self.summaries: list[EventSummary] = []

    def open(self, config: Config) -> Target:
        """Open a summarizing target."""
        return _SummarizingTarget(super().open(config), self.summaries)


class _SummarizingTarget(TargetProxy):
    """A target that appends a summary of each event to `summaries`."""

    def __init__(self, target: Target, summaries: list[EventSummary]) -> None:
        super().__init__(target)
        self._summaries = summaries

    def apply(self, event: Event) -> Effect:
        effect = super().apply(event)
        self._summaries.append(summarize_event(effect.records))
        return effect


def run_summarized(factory: TargetFactory, trace: Trace) -> tuple[Outcome, list[EventSummary]]:
    """Run a trace as `run_trace` does and return a summary of each event, too."""
    watched = SummarizingFactory(factory)
    outcome = run_trace(watched, trace)
    return outcome, watched.summaries


def difference(
    trace: Trace,
    names: tuple[str, str],
    one: tuple[Outcome, list[EventSummary]],
    other: tuple[Outcome, list[EventSummary]],
) -> Violation | None:
    """Return the first target's own violation, else one for the first event at which the two differ, else None."""
    if one[0].violation:
        return one[0].violation
    for index, (first, second) in enumerate(zip(one[1], other[1], strict=False)):
        for field in ("planned", "delivered"):
            seen, wanted = getattr(second, field), getattr(first, field)
            if seen != wanted:
                return _differ(trace, names, index, field, wanted, seen)
    if violation := other[0].violation:
        return _differ(trace, names, violation.event, "violation", "none", violation.message)
    if len(one[1]) == len(other[1]):
        return None
    return _differ(trace, names, min(len(one[1]), len(other[1])), "events", len(one[1]), len(other[1]))


def _differ(
    trace: Trace, names: tuple[str, str], index: int, field: str, wanted: str | int, seen: str | int
) -> Violation:
    event = trace.events[index] if index < len(trace.events) else Step()
    return Violation(
        oracle=ORACLE,
        field=field,
        relation="targets-differ",
        details={"what": field, "first": names[0], "second": names[1]},
        expected=Quoted(wanted) if isinstance(wanted, str) else wanted,
        observed=Quoted(seen) if isinstance(seen, str) else seen,
        event=index,
        event_kind=tag_of(event),
    )
