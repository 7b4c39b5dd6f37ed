"""Sessions: requests of several turns, which keep their caches in between.

    running --turn ends--> parked --resume--> waiting --admit--> running

A parked session is in no queue and has no row of the batch; its tables stay, and so does where its state lies in them
(`States.columns`, `AcceptedCounts.kept`). Its next turn waits like any request, but holds blocks: an admission that
fails must leave them alone. Whoever holds blocks without running gives way to a running request that needs one, and to
the first of those that wait if nobody runs; it computes again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mypy_extensions import mypyc_attr

from ...base.observe import Table
from ..layout import NULL_BLOCK
from ..plan import Load, Plan, Request
from .block_tables import Span
from .cache_manager import Allocation, CacheManager, Hit


class Queues(Protocol):
    """What sessions need of the scheduler that owns them."""

    cache: CacheManager
    waiting: list[Request]
    running: list[Request]
    removed: list[str]
    finished: list[str]

    def enqueue(self, request: Request, front: bool = False) -> None:
        """Put a request into the waiting queue."""

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
        """Enter a row into the plan."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Sessions:
    """The turns of one scheduler's sessions."""

    def __init__(self, scheduler: Queues) -> None:
        self.scheduler = scheduler
        self.cache = scheduler.cache
        self.parked: list[Request] = []
        self.leaving: list[str] = []
        """Sessions parked since the last planning: the worker has to keep what it knows of their states."""

        self.rolled_back: list[str] = []
        """Sessions whose states lie elsewhere since the last planning."""

    def tell(self, plan: Plan) -> None:
        """What the worker has to know of requests that are not in the plan."""
        scheduler = self.scheduler
        plan.removed, scheduler.removed = scheduler.removed, []
        plan.finished, scheduler.finished = scheduler.finished, []
        plan.parked, self.leaving = self.leaving, []
        plan.rolled_back, self.rolled_back = self.rolled_back, []

    def park(self, request: Request) -> None:
        """A turn ended; no step of it is in flight, and what it computed is there for others, too."""
        assert request.in_flight == 0
        if self.cache.layout.prefix_caching:
            self.cache.publish(request.name, request.tags, request.settled)
        self.scheduler.running.remove(request)
        self.scheduler.removed.append(request.name)
        self.leaving.append(request.name)
        self.parked.append(request)
        request.drafts = 0

    def resume(self, request: Request, prompt: Sequence[int], max_new_tokens: int) -> None:
        """The next turn: `prompt` behind everything that the client has seen."""
        self.parked.remove(request)
        request.learn(prompt)
        request.prompt_length = len(request.tokens)
        request.total = request.prompt_length + max_new_tokens
        self.scheduler.enqueue(request)

    def holds(self, request: Request) -> bool:
        """Whether a request that does not run holds blocks."""
        return request.session and request.name in self.cache.groups[0].tables

    def admit(self, plan: Plan, request: Request, limits: Mapping[str, int]) -> bool:
        """Let a turn go on with what its session kept; False, and nothing has changed, if budget or pool do not allow
        it, or if a planned step copies from a state that this one would write."""
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
        """Where a chunk has to end so that it fills the state column it starts in, or finds ahead; 0 for anywhere.

        Rejected drafts leave a running column behind the state's own. A chunk that steps over it would publish it with
        whatever it holds; scratch columns move away by themselves.
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

    def give_way(self, plan: Plan, to: Request) -> bool:
        """Take the blocks of one session that does not run: the one parked longest, else the last that waits. False if
        there is none besides the one that needs them."""
        for request in [*self.parked, *reversed(self.scheduler.waiting)]:
            if request is not to and self.holds(request):
                self.lose(request)
                plan.preempted.append(request.name)
                return True
        return False

    def lose(self, request: Request) -> None:
        """A session that does not run loses its caches."""
        self.cache.free(request.name)
        request.rewind()

    def lose_all(self) -> None:
        """Every session that does not run loses its caches."""
        for request in [*self.parked, *self.scheduler.waiting]:
            if self.holds(request):
                self.lose(request)

    def truncate(self, request: Request, length: int) -> bool:
        """Forget the tokens of a parked session from `length` on; False, and nothing has changed, if its states cannot
        follow."""
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
        """Most tokens, at most `length`, of which every group has everything that the next one needs."""
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
        """The session ends, in whatever state it is; what the worker knows of it goes with the next plan."""
        if request in self.parked:
            self.parked.remove(request)
        self.scheduler.removed.append(request.name)
        self.cache.free(request.name)
