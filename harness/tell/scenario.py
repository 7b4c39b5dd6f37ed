"""A failing trace in plain words: its requests, and what happens to them, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import cast

from msgspec import Struct, structs

from ...reference.batch import original_name
from ...reference.tokens import Truth
from ...targets.base.alphabet import Says, fields_with
from ...targets.base.trace import Abort, Arrive, Config, DummyRun, Event, Prompt, Step, Trace, Wake, tag_of
from ..record.history import History, Moment, RequestStep
from ..units import listed, plural
from .clauses import step_clause


class ScenarioRow(Struct, frozen=True):
    """One request of a scenario.

    prompt   number of its tokens; `parts` the documents that they are of
    arrives  the step before which it arrives
    shared   tokens of its prompt that an earlier request's prompt begins with, too, and that request; 0 and "" if none
    hit      prefix-hit length at its first admission, -1 if it was not admitted
    chunks   tokens of its prompt that each step computed, when it was computed for the first time
    load     tokens that were to be loaded from outside the pool at its first admission
    """

    name: str
    prompt: int
    parts: Prompt
    new: int
    arrives: int
    shared: int = 0
    shares_with: str = ""
    hit: int = -1
    chunks: tuple[int, ...] = ()
    load: int = 0


def requests_of(trace: Trace, history: History) -> list[ScenarioRow]:
    """Return the requests in order of arrival."""
    steps = steps_of(history)
    before: dict[str, Truth] = {}
    rows = []
    planned = 0
    for index, event in enumerate(trace.events):
        if index < len(history.moments):
            planned = max(planned, *(step + 1 for step in history.moments[index].steps), 0)
        if not isinstance(event, Arrive) or event.name in before:
            continue
        truth = Truth(event.prompt)
        shared, other = max(((_common(truth, one), name) for name, one in before.items()), default=(0, ""))
        before[event.name] = truth
        own = steps.get(event.name, [])
        chunks = tuple(_chunks(own, truth.prompt_length))
        hit, load = (own[0].hit, own[0].external) if own else (-1, 0)
        rows.append(
            ScenarioRow(
                event.name,
                truth.prompt_length,
                event.prompt,
                event.max_new_tokens,
                planned,
                shared,
                other if shared else "",
                hit,
                chunks,
                load,
            )
        )
    return rows


def _chunks(own: Sequence[RequestStep], prompt: int) -> Iterator[int]:
    """Yield the tokens of each step that computes a prompt for the first time."""
    end = 0
    for one in own:
        if end <= one.start < prompt and one.num_tokens:
            end = one.start + one.num_tokens
            yield one.num_tokens


def steps_of(history: History) -> Mapping[str, Sequence[RequestStep]]:
    """Return the steps of each request, in order."""
    found: dict[str, list[RequestStep]] = {}
    for one in sorted(history.request_steps, key=lambda one: one.step):
        found.setdefault(one.request, []).append(one)
    return found


def events_of(trace: Trace, history: History) -> Sequence[Event]:
    """Return the events of all moments: those of the trace up to the violation, then those that drain it."""
    return *trace.events[: len(history.moments)], *map(_drained, history.moments[len(trace.events) :])


def _drained(moment: Moment) -> Event:
    """Return the event of a moment after the end of the trace (`Lockstep.drain`)."""
    if moment.kind == "abort":
        return Abort(moment.label.removeprefix("abort "))
    return Wake() if moment.kind == "wake" else Step()


def narrate(trace: Trace, history: History, calls: Mapping[str, str] = {}, *, is_brief: bool = False) -> Iterator[str]:
    """Yield one sentence for each event up to the violation, draining steps included; one for all steps in a row that
    schedule nothing. `calls` are names that the engine has for events (`Deployment.calls`). `is_brief`: nothing is said
    of plain steps but the last one, nor of arrivals, which `requests_of` tells; of others, before which step they come.
    """
    events = events_of(trace, history)
    told = _narrated(trace, history, events, calls)
    if not is_brief:
        yield from (words for _, words in told)
        return
    last, planned = (len(events) - 1, ""), 0
    for index, words in told:
        event = events[index]
        last = index, words
        if not isinstance(event, Step | Arrive):
            yield f"Before step {planned}: {words}"
        planned = max([planned, *(step + 1 for step in history.moments[index].steps)])
    if last[1] and isinstance(events[last[0]], Step | Arrive):
        yield last[1]


def _narrated(
    trace: Trace, history: History, events: Sequence[Event], calls: Mapping[str, str]
) -> Iterator[tuple[int, str]]:
    """Yield the index of each event, and a sentence. Steps in a row that schedule nothing share one: with the last
    index."""
    at: dict[int, list[RequestStep]] = {}
    for one in history.request_steps:
        at.setdefault(one.moment, []).append(one)
    idle: list[int] = []
    violation = history.violation
    raises = violation.event if violation and (violation.oracle, violation.relation) == ("CRASH", "raised") else -1
    for index, event in enumerate(events):
        rows = sorted(at.get(index, ()), key=lambda one: one.step)
        if index == raises and violation and isinstance(event, Step) and not rows:
            yield from [(idle[-1], _idle(history, idle))] if idle else []
            yield index, f"The next step{_limits(event)} raises {violation.field.partition('-')[0]}."
            return
        if isinstance(event, Step) and not rows and not _limits(event):
            if idle and history.moments[idle[0]].waiting != history.moments[index].waiting:
                yield idle[-1], _idle(history, idle)
                idle = []
            idle.append(index)
            continue
        if idle:
            yield idle[-1], _idle(history, idle)
            idle = []
        call = calls.get(tag_of(event), "")
        yield index, f"{_words(event, rows, trace.config)}{f' ({call})' if call else ''}."
    if idle:
        yield idle[-1], _idle(history, idle)


def _idle(history: History, moments: Sequence[int]) -> str:
    """Return a sentence for consecutive steps that schedule nothing."""
    ran = {one.step for one in history.request_steps}  # a moment may also execute an earlier step
    steps = sorted({step for moment in moments for step in history.moments[moment].steps} - ran)
    where = "A step" if not steps else f"Step {steps[0]}" if len(steps) == 1 else f"Steps {steps[0]} to {steps[-1]}"
    waiting = history.moments[moments[0]].waiting
    who = f" while {listed(waiting)} {'wait' if len(waiting) > 1 else 'waits'}" if waiting else ""
    return f"{where}: nothing is scheduled{who}."


def _words(event: Event, rows: Sequence[RequestStep], config: Config) -> str:
    planned = "; ".join(step_clause(one) for one in rows)
    if isinstance(event, Step):
        step = f"Step {rows[0].step}" if rows else "A step"
        return f"{step}{_limits(event)}: {planned or 'nothing is scheduled'}"
    words = sentence(event, config)
    return f"{words}; {planned}" if planned else words


def sentence(event: Event, config: Config) -> str:
    """Return what its kind and its fields say about an event."""
    replays = isinstance(event, DummyRun) and event.uniform_decode and config.graph_sizes
    graph = "replaying a decode graph" if replays else "eager"
    words = _WORDS.format(event.about.sentence, graph=graph, **structs.asdict(event))
    if isinstance(event, Arrive) and (first := original_name(event.name)) != event.name:
        words += f", a further sample of {first}'s prompt"
    for field, says in fields_with(type(event), Says):
        if value := getattr(event, field):
            words += _WORDS.format(says.words, value)
    return words


class _Words(Formatter):
    """Fills in sentences: `{field}`, or `{field:noun}` for a number of things, or of a prompt's tokens."""

    def format_field(self, value: object, format_spec: str) -> str:
        if format_spec:
            number = value if isinstance(value, int) else sum(length for _, length in cast(Prompt, value))
            return plural(number, format_spec)
        if isinstance(value, tuple):
            return ", ".join(value)
        if isinstance(value, dict):
            return ", ".join(f"{name} goes on as {source}" for name, source in value.items())
        return str(value)


_WORDS = _Words()


def _limits(event: Step) -> str:
    parts = [f"at most {plural(event.budget, 'token')}"] if event.budget else []
    parts += [f"at most {plural(most, 'token')} of {name}" for name, most in event.chunks.items()]
    if event.pad_to:
        parts.append(f"decode batch padded to {plural(event.pad_to, 'row')}")
    return f" ({', '.join(parts)})" if parts else ""


def _common(one: Truth, other: Truth) -> int:
    """Return the number of tokens that both prompts begin with."""
    most = min(one.prompt_length, other.prompt_length)
    pairs = zip(one.tokens[:most], other.tokens[:most], strict=True)
    return next((index for index, (left, right) in enumerate(pairs) if left != right), most)
