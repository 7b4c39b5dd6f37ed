"""Neighbours of a failing trace: traces of the same configuration that differ from it a little, or start as it does.

A patch that silences one trace may have hit its cause, or only this trace. Its neighbours tell the two apart:

    edited      one event dropped, added, swapped with the next or changed (a length by one, other drafts)
    continued   the first events of the trace, then new ones from the grammar, which knows the requests so far
    drawn       a new trace of the same configuration
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import structs

from ....targets.base.protocol import Capabilities
from ....targets.base.trace import AnyEvent, Arrive, Config, Step, Trace, Turn, fits
from ...draw.choices import Choices, RandomChoices
from ...draw.grammar import Grammar
from .reduce import renamed, with_events

CONTINUED_MAX = 30
DRAWN_EVENTS = 40


def neighbours(traces: Sequence[Trace], capabilities: Capabilities, seed: int, count: int) -> Iterator[Trace]:
    """Yield up to `count` different neighbours: half of them edited, the others continued or drawn.

    A pure function of its arguments.
    """
    plain = [renamed(trace) for trace in traces]
    seen = {msgspec.json.encode(trace.events) for trace in plain}
    for index in range(4 * count):  # small traces have few neighbours: give up after some repetitions
        if len(seen) >= count + len(plain):
            return
        choices = RandomChoices(seed, index)
        trace = choices.pick(plain)
        kind = choices.integer(0, 3)
        if kind < 2:
            events = edited(trace, capabilities, choices)
        elif kind == 2:
            start = choices.integer(1, len(trace.events))
            events = continued(
                trace.config, trace.events[:start], choices.integer(1, CONTINUED_MAX), capabilities, choices
            )
        else:
            events = continued(trace.config, (), DRAWN_EVENTS, capabilities, choices)
        if events and (key := msgspec.json.encode(events)) not in seen:
            seen.add(key)
            yield structs.replace(with_events(trace, events), origin=f"neighbour {index} of {trace.origin}"[:1000])


def edited(trace: Trace, capabilities: Capabilities, choices: Choices) -> tuple[AnyEvent, ...]:
    """Return the events of a trace after one or two small edits."""
    events = list(trace.events)
    for _ in range(choices.integer(1, 2)):
        at = choices.integer(0, len(events) - 1)
        match choices.integer(0, 3):
            case 0 if len(events) > 1:
                del events[at]
            case 1 if at + 1 < len(events):
                events[at], events[at + 1] = events[at + 1], events[at]
            case 2:
                events.insert(at, _changed(Step(), trace.config, capabilities, choices))
            case _:
                events[at] = _changed(events[at], trace.config, capabilities, choices)
    return tuple(events)


def _changed(event: AnyEvent, config: Config, capabilities: Capabilities, choices: Choices) -> AnyEvent:
    """Return an event with one field changed, the same event if it has none to change or would not fit."""
    by = choices.pick((-1, 1))
    if isinstance(event, Step):
        k = config.num_speculative_tokens
        drafts = k if not capabilities.variable_drafts else choices.integer(0, k)
        field = choices.pick(("drafts", "budget", "pad_to", "plain"))
        if field == "plain":
            return Step()
        if field == "budget":
            least = k + 1
            return structs.replace(event, budget=choices.integer(least, max(config.max_num_batched_tokens, least)))
        if field == "pad_to":
            return structs.replace(event, pad_to=choices.integer(0, config.max_num_seqs))
        return structs.replace(event, drafts=drafts, right=choices.integer(0, drafts))
    if isinstance(event, Turn):
        if choices.chance(50):
            new = structs.replace(event, max_new_tokens=max(event.max_new_tokens + by, 1))
        else:
            place = choices.integer(0, len(event.prompt) - 1)
            prompt = [
                (document, max(length + by, 1) if index == place else length)
                for index, (document, length) in enumerate(event.prompt)
            ]
            new = structs.replace(event, prompt=tuple(prompt))
        return new if fits(config, new) else event
    return event


def continued(
    config: Config, start: Sequence[AnyEvent], count: int, capabilities: Capabilities, choices: Choices
) -> tuple[AnyEvent, ...]:
    """Return events that go on behind others, from the grammar. Requests of `start` have the names r0, r1, ..."""
    grammar = Grammar(config, capabilities, choices)
    for event in start:
        if isinstance(event, Arrive):
            grammar.history.append(event)
            total = sum(length for _, length in event.prompt)
            if event.session:
                grammar.sessions[event.name] = total + event.max_new_tokens
            grammar.expect(event.name, total, event.max_new_tokens)
    return (*start, *(grammar.next_event() for _ in range(count)))
