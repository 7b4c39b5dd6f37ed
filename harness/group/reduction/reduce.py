"""Cuts a failing trace down to what matters, keeping its signature.

An event that refers to a missing request is a no-op, so every sub-list of events is legal and no references have to be
fixed. Passes, repeated until none helps or the time is up:

    cut        drop what comes after the failing event
    events     delta debugging: drop ever smaller slices, from the end
    requests   drop one request with all its uses
    simplify   one event at a time: shorter prompts, fewer tokens, default steps
    later      requests arrive with the beginning of their answer in their prompt, and as many steps are dropped
    configure  fewer features, groups, rows and blocks, smaller blocks
    rename     requests r0, r1, ..., documents a, b, ...

A candidate counts only if it fails with the same signature, and if the caller `accepts` its violation: otherwise a
reduction could end at another bug. It keeps at least one event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b

import msgspec

from ....reference.tokens import CONTINUATION
from ....targets.base.alphabet import Defines, Refers, Shrinks, Thins, Usual, defaults, fields_with
from ....targets.base.protocol import TargetError
from ....targets.base.trace import LENGTH_MIN, AnyEvent, Arrive, Config, Step, Trace, TraceError, Turn
from ...draw.overrides import RANKS
from ...judge.outcome import Outcome
from ...judge.violation import Violation

BLOCK_SIZE_MIN = 4
"""Blocks get no smaller: shorter than a convolution window or a row of drafts they are a case of their own."""

Run = Callable[[Trace], Outcome]
Accepts = Callable[[Violation], bool]
Entries = tuple[str, ...] | dict[str, object]


def violation_of(run: Run, trace: Trace) -> Violation | None:
    """Return how a trace fails; None if it runs clean, or does not run, as with options that do not go together."""
    try:
        return run(trace).violation
    except (TraceError, TargetError):
        return None


def without_idle_events(trace: Trace, signature: str, run: Run, seconds: float) -> Trace:
    """Return the trace without the events and requests that the failure does not need, as far as the time goes."""
    reducer = Reducer(trace, signature, run, seconds, lambda trace: None)
    reducer.drop_events()
    reducer.drop_requests()
    return reducer.best


class Reducer:
    """One reduction; `best` always fails with the wanted signature."""

    def __init__(
        self,
        trace: Trace,
        signature: str,
        run: Run,
        seconds: float,
        on_better: Callable[[Trace], None],
        accepts: Accepts | None = None,
    ) -> None:
        self.best = trace
        self.signature = signature
        self.tries = 0
        self._run = run
        self._deadline = time.monotonic() + seconds
        self._on_better = on_better
        self._accepts = accepts
        self._refused: set[bytes] = set()
        """Digests of candidates that did not fail in the same way: a reduction that goes on does not run them again."""

    @property
    def out_of_time(self) -> bool:
        """Return True if the budget is spent."""
        return time.monotonic() >= self._deadline

    def attempt(self, candidate: Trace) -> bool:
        """Run a candidate; it becomes the best one if it fails in the same way."""
        if candidate == self.best or not candidate.events or self.out_of_time:
            return False
        digest = blake2b(msgspec.msgpack.encode((candidate.config, candidate.events)), digest_size=16).digest()
        if digest in self._refused:
            return False
        self._refused.add(digest)  # until it succeeds: then it is the best one
        self.tries += 1
        try:
            outcome = self._run(candidate)
        except (TraceError, TargetError):
            return False
        except BaseException:  # it did not run: its node was lost
            self._refused.discard(digest)
            raise
        violation = outcome.violation
        if violation is None or violation.signature != self.signature:
            return False
        if self._accepts and not self._accepts(violation):
            return False
        self.best = until(violation, candidate)
        self._on_better(self.best)
        return True

    def go_on(self, seconds: float) -> bool:
        """Reduce for some more seconds. Return True if no pass helps any more."""
        self._deadline = time.monotonic() + seconds
        self.reduce()
        return not self.out_of_time

    def reduce(self) -> Trace:
        """Run all passes until none helps."""
        self.attempt(with_events(self.best, self.best.events[:-1]))
        while not self.out_of_time:
            before = self.best
            self.drop_events()
            self.drop_requests()
            self.simplify_events()
            self.begin_later()
            self.simplify_configuration()
            if self.best == before:
                break
        if not self.out_of_time:
            self._accepts = None  # it may look at names
            self.attempt(renamed(self.best))
        return self.best

    def drop_events(self) -> None:
        """Drop slices of events, from the end (delta debugging)."""
        size = max(len(self.best.events) // 2, 1)
        while size and not self.out_of_time:
            stop = len(self.best.events)
            while stop > 0:
                start = max(stop - size, 0)
                events = self.best.events
                self.attempt(with_events(self.best, events[:start] + events[stop:]))
                stop = min(start, len(self.best.events))
            size //= 2

    def drop_requests(self) -> None:
        """Drop each request with everything that names it."""
        for name in [event.name for event in self.best.events if isinstance(event, Arrive)]:
            events = tuple(event for event in self.best.events if getattr(event, "name", None) != name)
            self.attempt(with_events(self.best, events))

    def simplify_events(self) -> None:
        """Simplify each event in turn, the largest simplification first."""
        index = 0
        while index < len(self.best.events) and not self.out_of_time:
            improved = True
            while improved and index < len(self.best.events):
                events = self.best.events
                improved = any(
                    self.attempt(with_events(self.best, (*events[:index], simpler, *events[index + 1 :])))
                    for simpler in simpler_events(events[index])
                )
            index += 1

    def begin_later(self) -> None:
        """Move tokens of answers to prompts: they are the same tokens, and save a step each."""
        for index in range(len(self.best.events)):
            for tokens in (16, 8, 4, 2, 1):
                # Moving all requests up to this one keeps them in phase; moving only this one lets it catch up.
                for first in sorted({0, index}):
                    while self.attempt(begun_later(self.best, first, index, tokens)):
                        pass

    def simplify_configuration(self) -> None:
        """Simplify the configuration: fewer features first, then smaller numbers."""
        improved = True
        while improved and not self.out_of_time:
            improved = any(
                self.attempt(msgspec.structs.replace(self.best, config=config))
                for config in simpler_configurations(self.best.config)
            )


def with_events(trace: Trace, events: tuple[AnyEvent, ...]) -> Trace:
    """Return the trace with other events."""
    return msgspec.structs.replace(trace, events=events)


def until(violation: Violation, trace: Trace) -> Trace:
    """Return the trace without the events after the failing one, which were never run.

    A violation of the whole run (DETERMINISM) has no event: the trace stays whole.
    """
    return with_events(trace, trace.events[: violation.event + 1 or len(trace.events)])


def begun_later(trace: Trace, first: int, last: int, tokens: int) -> Trace:
    """Return the trace with the first `tokens` tokens of the answers to arrivals `first` to `last` in their prompts,
    without the steps after `last` that would have sampled them.

    The trace is unchanged if the answer of `last` is not that long or too few steps follow. Shorter answers stay.
    """
    if last >= len(trace.events) or turn_begun_later(trace.events[last], tokens) == trace.events[last]:
        return trace
    events = [turn_begun_later(event, tokens) if first <= i <= last else event for i, event in enumerate(trace.events)]
    steps = [i for i, event in enumerate(events) if i > last and isinstance(event, Step)][:tokens]
    if len(steps) < tokens:
        return trace
    return with_events(trace, tuple(event for i, event in enumerate(events) if i not in steps))


def turn_begun_later(event: AnyEvent, tokens: int) -> AnyEvent:
    """Return an arrival with the first tokens of its answer in its prompt, any other event as it is."""
    if not isinstance(event, Turn) or (event.stop_at or event.max_new_tokens) <= tokens:
        return event
    *path, (document, length) = event.prompt
    more = [(document, length + tokens)] if document == CONTINUATION else [(document, length), (CONTINUATION, tokens)]
    left, stop_at, least = event.max_new_tokens - tokens, event.stop_at - tokens, event.min_tokens - tokens
    return msgspec.structs.replace(
        event, prompt=(*path, *more), max_new_tokens=left, stop_at=max(stop_at, 0), min_tokens=max(least, 0)
    )


def renamed(trace: Trace) -> Trace:
    """Rename requests to r0, r1, ... in order of arrival, documents a, b, ...; nothing else changes."""
    requests: dict[str, str] = {}
    documents = {CONTINUATION: CONTINUATION}
    events: list[AnyEvent] = []
    for event in trace.events:
        for field, _ in fields_with(type(event), Defines):
            requests.setdefault(getattr(event, field), f"r{len(requests)}")
        names = (*fields_with(type(event), Defines), *fields_with(type(event), Refers))
        changes = {field: _renamed(getattr(event, field), requests) for field, _ in names}
        if isinstance(event, Turn):
            for document, _ in event.prompt:
                documents.setdefault(document, chr(ord("a") + (len(documents) - 1) % 26))
            changes["prompt"] = tuple((documents[document], length) for document, length in event.prompt)
        events.append(msgspec.structs.replace(event, **changes))
    return with_events(trace, tuple(events))


def _renamed(value: object, requests: Mapping[str, str]) -> object:
    """Return a name, or what a field has instead of one name, with the new names of requests and of their copies
    (`reference.batch.copy_name`)."""
    if isinstance(value, str):
        original, dot, copies = value.partition(".")
        return requests.get(value) or requests.get(original, original) + dot + copies
    if isinstance(value, tuple):
        return tuple(_renamed(one, requests) for one in value)
    if isinstance(value, dict):
        return {_renamed(key, requests): _renamed(one, requests) for key, one in value.items()}
    return value


def smaller_numbers(value: int, least: int) -> list[int]:
    """Return candidates below `value`, smallest first: the least, the one halfway to it, and the next one."""
    return sorted({least, (least + value) // 2, value - 1} - {value}) if value > least else []


def simpler_events(event: AnyEvent) -> Iterator[AnyEvent]:
    """Yield simpler events to try: a plain one, fewer entries, smaller numbers, usual values, then a shorter prompt."""
    kind, replace = type(event), msgspec.structs.replace
    usual = defaults(kind)
    if len(usual) == len(kind.__struct_fields__) > 1:  # a step; of others, single fields become usual
        yield kind(**usual)
        for field, value in usual.items():
            yield replace(event, **{field: value})
    for field, thins in fields_with(kind, Thins):
        entries = getattr(event, field)
        for left_out in entries if len(entries) > thins.least else ():
            yield replace(event, **{field: _without(left_out, entries)})
    for field, shrinks in fields_with(kind, Shrinks):
        for number in smaller_numbers(getattr(event, field) or shrinks.least, shrinks.least):
            yield replace(event, **{field: number})
    for field, wanted in fields_with(kind, Usual):
        if getattr(event, field) != wanted.value:
            yield replace(event, **{field: wanted.value})
    if isinstance(event, Turn):
        yield from _shorter_turns(event)


def _without(left_out: str, entries: Entries) -> Entries:
    """Return the entries, names or a mapping from names, without one of them."""
    if isinstance(entries, tuple):
        return tuple(name for name in entries if name != left_out)
    return {name: value for name, value in entries.items() if name != left_out}


def _shorter_turns(event: Turn) -> Iterator[Turn]:
    """Yield turns whose end is foreseen, and turns with a shorter answer or prompt."""
    replace = msgspec.structs.replace
    if event.stop_at:
        yield replace(event, max_new_tokens=min(event.stop_at, event.max_new_tokens), stop_at=0)
    for number in smaller_numbers(event.max_new_tokens, 1):
        yield replace(event, max_new_tokens=number)
    for index in range(len(event.prompt)):
        if len(event.prompt) > 1:
            yield replace(event, prompt=event.prompt[:index] + event.prompt[index + 1 :])
    for index, (document, length) in enumerate(event.prompt):
        for number in smaller_numbers(length, 1):
            path = (*event.prompt[:index], (document, number), *event.prompt[index + 1 :])
            yield replace(event, prompt=path)


def simpler_configurations(config: Config) -> Iterator[Config]:
    """Yield simpler configurations to try; contradictory ones are refused when they are run."""
    replace = msgspec.structs.replace
    if RANKS in config.options:
        yield replace(config, options={name: value for name, value in config.options.items() if name != RANKS})
    for index in range(len(config.groups)):
        if len(config.groups) > 1:
            yield replace(config, groups=config.groups[:index] + config.groups[index + 1 :])
    for field, default in (
        ("async_depth", 0),
        ("policy", "fcfs"),
        ("eagle_block_drop", False),
        ("long_prefill_token_threshold", 0),
        ("graph_sizes", ()),
    ):
        if getattr(config, field) != default:
            yield replace(config, **{field: default})
    halved = tuple(
        replace(group, block_size=group.block_size // 2) if group.block_size >= 2 * BLOCK_SIZE_MIN else group
        for group in config.groups
    )
    if halved != config.groups:
        smaller, spare = replace(config, groups=halved), config.num_blocks - config.smallest_pool()
        yield replace(smaller, num_blocks=smaller.smallest_pool() + spare)
    for index, group in enumerate(config.groups):
        for field, default in (("layers", 1), ("draft", False), ("window", 0)):
            if getattr(group, field) != default:
                simpler = replace(group, **{field: default})
                yield replace(config, groups=(*config.groups[:index], simpler, *config.groups[index + 1 :]))
    for field, least in (
        ("num_speculative_tokens", 0),
        ("async_depth", 0),
        ("max_num_seqs", 1),
        ("conv_width", 2),
        ("max_model_len", LENGTH_MIN),
    ):
        for number in smaller_numbers(getattr(config, field), least):
            yield replace(config, **{field: number})
    # This field may grow: fewer chunks make fewer steps.
    if config.max_num_batched_tokens < config.max_model_len:
        yield replace(config, max_num_batched_tokens=config.max_model_len)
    for number in smaller_numbers(config.num_blocks, config.smallest_pool()):
        yield replace(config, num_blocks=number)


def reduce_trace(
    trace: Trace,
    signature: str,
    run: Run,
    *,
    seconds: float,
    on_better: Callable[[Trace], None] = lambda trace: None,
) -> Trace:
    """Return the smallest trace found within `seconds` that still fails with `signature`.

    `on_better` gets each improvement at once, so that the best so far can be kept on disk.
    """
    return Reducer(trace, signature, run, seconds, on_better).reduce()
