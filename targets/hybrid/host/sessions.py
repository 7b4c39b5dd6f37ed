"""Sessions: requests of several turns, which keep their caches between turns.

    running --turn ends--> parked --resume--> waiting --admit--> running

A parked session is in no queue and has no row of the batch. Its tables are kept, and so is the position of its state
in them (`StateSlots.columns`, `AcceptedCounts.kept`). Its next turn waits like any request but holds blocks, which a
failed admission must not touch. A session that holds blocks without running loses them to a running request that needs
one or, if no request runs, to the first waiting one. It is recomputed when it is admitted again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mypy_extensions import mypyc_attr

from ...base.observe import Table
from ..layout import NULL_BLOCK
from ..plan import Grammar, Load, Plan, Request
from .block_tables import Span
from .cache_manager import Allocation, CacheManager, Hit


class SessionScheduler(Protocol):
    """The scheduler as its sessions see it."""

    cache: CacheManager
    waiting: list[Request]
    compiling: list[Request]
    running: list[Request]
    removed: list[str]
    finished: list[str]

    def await_grammar(self, request: Request) -> None:
        """Queue a request, once its grammar is compiled."""

    def dequeue(self, request: Request) -> None:
        """Take a request out of the queue that it is in, or out of the batch."""

    def wanted(self, request: Request, budget: int, limits: Mapping[str, int], fresh: bool = False) -> tuple[int, int]:
        """Return (input tokens, drafts among them) that a request gets from a remaining budget."""

    def span(self, request: Request, count: int, drafts: int) -> Span:
        """Return the tokens that a step of `count` tokens covers."""

    def place(
        self,
        plan: Plan,
        request: Request,
        count: int,
        drafts: int,
        appended: Table | None,
        hit: Hit | None,
        allocation: Allocation,
        loads: Sequence[Load] = (),
    ) -> None:
        """Add a row to the plan."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sessions:
    """Parking, resuming and rolling back the sessions of one scheduler."""

    def __init__(self, scheduler: SessionScheduler) -> None:
        self.scheduler = scheduler
        self.cache = scheduler.cache
        self.parked: list[Request] = []
        self.leaving: list[str] = []
        """Sessions parked since the last plan: the worker must keep the positions of their states."""

        self.rolled_back: list[str] = []
        """Sessions rolled back to a checkpoint since the last plan."""

    def report_changes(self, plan: Plan) -> None:
        """Add the requests that left the batch or were rolled back since the last plan."""
        scheduler = self.scheduler
        plan.removed, scheduler.removed = scheduler.removed, []
        plan.finished, scheduler.finished = scheduler.finished, []
        plan.parked, self.leaving = self.leaving, []
        plan.rolled_back, self.rolled_back = self.rolled_back, []

    def park(self, request: Request) -> None:
        """End a turn, and publish what it computed.

        A step in flight, as behind a stop token, advances the states further, and they cannot be rolled back: the
        session gives up its caches and results.
        """
        self.scheduler.running.remove(request)
        self.scheduler.removed.append(request.name)
        self.parked.append(request)
        if request.in_flight:
            self.drop_cache(request)
            return
        if self.cache.layout.prefix_caching:
            self.cache.publish(request.name, request.tags, request.settled)
        self.leaving.append(request.name)
        request.drafts = 0

    def resume(
        self,
        request: Request,
        prompt: Sequence[int],
        max_new_tokens: int,
        stops: tuple[int, ...],
        min_tokens: int,
        compiling: int = 0,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue the next turn: `prompt` follows all tokens of the session so far. `compiling`: in this planning from
        now on the turn's grammar is compiled."""
        self.parked.remove(request)
        request.before_turn = len(request.tokens)
        request.append_tokens(prompt)
        request.prompt_length = len(request.tokens)
        request.total = request.prompt_length + max_new_tokens
        request.stops, request.free_from = stops, request.prompt_length + min_tokens
        request.compiling, request.grammar = compiling, grammar
        self.scheduler.await_grammar(request)

    def abort_turn(self, request: Request) -> None:
        """Park a session without its turn, which runs or waits: it gives up its caches, with the tokens and the results
        of the turn."""
        self.scheduler.dequeue(request)
        self.drop_cache(request)
        request.truncate(request.before_turn, 0)
        request.compiles = True
        self.parked.append(request)

    def holds(self, request: Request) -> bool:
        """Return True if an idle session holds blocks."""
        return request.session and request.name in self.cache.groups[0].tables

    def admit(self, plan: Plan, request: Request, limits: Mapping[str, int]) -> bool:
        """Admit a turn with the blocks that its session kept.

        Return False, with nothing changed, if budget or pool do not allow it, or if a planned step copies from a state
        that this turn would write.
        """
        scheduler = self.scheduler
        if self.cache.partial.copies_state_of(request.name):
            return False
        count, _ = scheduler.wanted(request, plan.budget, limits, fresh=True)
        allocation = None
        if count > 0:
            span = scheduler.span(request, count, 0)
            allocation = self.cache.allocate(request.name, request.tags, span, None)
        if allocation is None:
            return False
        scheduler.place(plan, request, count, 0, None, None, allocation)
        return True

    def end_of_held_columns(self, request: Request) -> int:
        """Return the token at which a chunk must end because the request holds a state column there, 0 if none.

        Rejected drafts can leave a running column behind the state's own column. A chunk that steps over it would
        publish stale content. Scratch columns are excluded: they move with the end of the table.
        """
        scratch = self.cache.layout.num_speculative_tokens
        ends = [
            (column + 1) * group.block_size
            for group in self.cache.groups
            if group.kind == "mamba"
            for table in [group.tables.get(request.name, [])]
            for column in range(request.high // group.block_size, len(table) - scratch)
            if table[column] != NULL_BLOCK
        ]
        return min(ends, default=0)

    def preempt_session(self, plan: Plan, to: Request) -> bool:
        """Take the blocks of one idle session other than `to`: the one parked longest, else the last in the queue.

        Return False if there is none.
        """
        for request in [*self.parked, *reversed([*self.scheduler.waiting, *self.scheduler.compiling])]:
            if request is not to and self.holds(request):
                self.drop_cache(request)
                plan.preempted.append(request.name)
                return True
        return False

    def drop_cache(self, request: Request) -> None:
        """Free the blocks of an idle session and reset its progress."""
        self.cache.free(request.name)
        request.rewind()

    def drop_all_caches(self) -> None:
        """Free the blocks of all idle sessions."""
        for request in [*self.parked, *self.scheduler.waiting, *self.scheduler.compiling]:
            if self.holds(request):
                self.drop_cache(request)

    def truncate(self, request: Request, length: int) -> bool:
        """Drop the tokens of a parked session from `length` on.

        Return False, with nothing changed, if no kept state allows it.
        """
        settled = 0
        if self.holds(request):
            settled = self.restorable(request, length)
            if not settled:
                return False
            if settled < request.settled:
                for group in self.cache.groups:
                    group.cut(request.name, request.tags, settled)
                self.rolled_back.append(request.name)
        request.truncate(length, settled)
        return True

    def restorable(self, request: Request, length: int) -> int:
        """Return the largest depth of at most `length` tokens from which all groups can continue, 0 if none."""
        if length >= request.settled:
            return request.settled
        groups = self.cache.groups
        depths = (
            depth
            for depth in range(length, 0, -1)
            if all(one.keeps(request.name, request.tags, depth) for one in groups)
        )
        return next(depths, 0)

    def close(self, request: Request) -> None:
        """End a session, parked or not; the worker drops it with the next plan."""
        if request in self.parked:
            self.parked.remove(request)
        self.scheduler.removed.append(request.name)
        self.cache.free(request.name)
