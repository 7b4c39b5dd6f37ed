"""Data-parallel ranks: several engines of one kind, each with its own reference, stepping in lockstep.

A request lives on the rank that its name hashes to. Before each step the ranks vote: if any has work, those without
work take part with a dummy run, as in deployed engines, whose collectives wait for all ranks. An event that names no
request happens on every rank.

A process may hold all ranks, or some of them: then `vote` has to ask the other processes (numeric/collective.py of the
built-in target). Every process votes equally often, also after a violation of its own.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable

from msgspec import structs

from ...targets.base.protocol import TargetFactory
from ...targets.base.trace import Config, DummyRun, Event, Step, Trace, TraceError, Turn, Wake
from ..draw.overrides import RANKS
from .engines import Engines, on_rank
from .lockstep import DRAIN_STEPS_PER_TOKEN, Lockstep, unobserved
from .outcome import Outcome
from .violation import Violation

RANKS_MAX = 8

Vote = Callable[[bool], bool]


def alone(has_work: bool) -> bool:
    """The vote of a process that holds every rank."""
    return has_work


def checked(wanted: str) -> str:
    """Return a valid number of ranks, as text. TraceError for any other text."""
    if not wanted.isdecimal() or not 1 <= int(wanted) <= RANKS_MAX:
        raise TraceError(f"configuration: {RANKS}={wanted}: between 1 and {RANKS_MAX} ranks are possible")
    return wanted


def ranks_of(config: Config) -> int:
    """Return the number of ranks of a configuration. TraceError if it is out of range."""
    return int(checked(config.options.get(RANKS, "1")))


def on_ranks(trace: Trace, ranks: int) -> Trace:
    """Return the same trace for another number of ranks; 1 leaves it as it is."""
    if ranks == 1:
        return trace
    options = {**trace.config.options, RANKS: checked(str(ranks))}
    return structs.replace(trace, config=structs.replace(trace.config, options=options))


def home(name: str, ranks: int) -> int:
    """Return the rank that serves a request."""
    return zlib.crc32(name.encode()) % ranks


class Ranks:
    """The ranks that this process holds, of `size` in all."""

    def __init__(self, own: dict[int, Lockstep], size: int, vote: Vote = alone) -> None:
        self.own = own
        self.size = size
        self.vote = vote
        self.violation: Violation | None = None

    def apply(self, event: Event, index: int) -> None:
        """Let one event happen on the rank of its request, or on all ranks."""
        name = getattr(event, "name", None)
        if isinstance(event, Step):
            self.step(event, index)
            return
        for rank in self.own:
            if name is None or rank == home(name, self.size):
                self._on(rank, event, index)

    def step(self, event: Step, index: int) -> bool:
        """Let all ranks take a step if any has work; return False if none has."""
        busy = {rank: has_work(lockstep) for rank, lockstep in self.own.items()}
        if not self.vote(self.violation is None and any(busy.values())):
            return False
        for rank, lockstep in self.own.items():
            self._on(rank, event if busy[rank] else DummyRun(lockstep.config.max_num_seqs), index)
        return True

    def _on(self, rank: int, event: Event, index: int) -> None:
        if self.violation is None:
            self._note(rank, self.own[rank].apply(event, index))

    def _note(self, rank: int, violation: Violation | None) -> None:
        if violation:
            self.violation = on_rank(rank, violation)

    def drain(self, first_index: int, most: int) -> None:
        """Step all ranks until none has work, at most `most` times; then drain each by itself."""
        for lockstep in self.own.values():
            if self.violation is None and lockstep.asleep:
                self.violation = lockstep.apply(Wake(), first_index)
        for index in range(most):
            if not self.step(Step(), first_index + index):
                break
        for rank, lockstep in self.own.items():
            if self.violation is None:
                self._note(rank, lockstep.drain(first_index))

    def outcome(self, events: int) -> Outcome:
        """Return the sum of the results of this process's ranks."""
        each = [lockstep.outcome(events) for lockstep in self.own.values()]
        exercised: Counter[str] = Counter()
        reached: Counter[str] = Counter()
        for one in each:
            exercised.update(one.exercised)
            reached.update(one.reached)
        digest = zlib.crc32(repr([one.digest for one in each]).encode())
        return Outcome(
            self.violation,
            sum(one.steps for one in each),
            events,
            dict(exercised),
            dict(reached),
            digest,
            together=[numbers for one in each for numbers in one.together],
        )


def has_work(lockstep: Lockstep) -> bool:
    """Return True if requests are unfinished or a step is in flight."""
    view = lockstep.context.before
    return bool(view.running or view.waiting or lockstep.context.reference.pending)


def run_ranks(
    factory: TargetFactory,
    trace: Trace,
    own: tuple[int, ...] | None = None,
    vote: Vote = alone,
    on_event: Callable[[int], None] = unobserved,
) -> Outcome:
    """Run one checked trace on its number of ranks; `own` are those of this process (None: all)."""
    engines = Engines(factory, trace.config)
    return engines.run(lambda: _drive(engines, trace, own, vote, on_event))


def _drive(
    engines: Engines, trace: Trace, own: tuple[int, ...] | None, vote: Vote, on_event: Callable[[int], None]
) -> Outcome:
    size = ranks_of(trace.config)
    ranks = Ranks({}, size, vote)
    for rank in range(size) if own is None else own:
        opened = engines.open(rank)
        if isinstance(opened, Violation):  # without its rank: all are alike so far, and this one has no history
            ranks.violation = opened
            break
        ranks.own[rank] = opened
    if ranks.violation and vote is alone:
        return ranks.outcome(0)
    for index, event in enumerate(trace.events):
        on_event(index)
        ranks.apply(event, index)
        if ranks.violation and vote is alone:
            return ranks.outcome(index + 1)
    tokens = sum(
        event.max_new_tokens + sum(length for _, length in event.prompt)
        for event in trace.events
        if isinstance(event, Turn)
    )
    ranks.drain(len(trace.events), DRAIN_STEPS_PER_TOKEN * tokens + 4)
    return ranks.outcome(len(trace.events))
