"""The scheduler: decides how many tokens each request computes in the next step.

Running requests come first, then waiting ones. If the pool has no block for a running request, the last (FCFS) or
least important (priority) one is preempted. Preemption is by recomputation: the victim loses its blocks and waits.
While a step in flight pins blocks a request does not preempt itself but waits: restarted it would need as many blocks,
so it could preempt itself for ever.
With steps in flight the scheduler plans on certain (`low`) and optimistic (`high`) progress, see `block_tables.Span`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from ....reference.tokens import EMPTY
from ...base.observe import PlannedRow, Table
from ...base.trace import Config
from ..offload.connector import Connector
from ..plan import Grammar, Load, Plan, Request, ScheduledRow
from .block_tables import Span
from .cache_manager import Allocation, CacheManager, Hit
from .sessions import Sessions


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Queues and progress of all requests."""

    sessions_class: ClassVar[type[Sessions]] = Sessions

    def __init__(self, config: Config, cache: CacheManager, connector: Connector) -> None:
        self.config = config
        self.cache = cache
        self.connector = connector
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.removed: list[str] = []
        """Requests that the worker must drop from its batch with the next plan."""
        self.finished: list[str] = []
        self.compiling: list[Request] = []
        """Requests whose grammars are being compiled: they do not wait for blocks yet."""
        self.arrivals = 0
        self.chunk_grid = self.find_chunk_grid()
        self.sessions = self.sessions_class(self)

    def find_chunk_grid(self) -> int:
        """Return the grid of chunk ends in tokens: the block size of all mamba groups, whose states are kept there."""
        return max((group.block_size for group in self.cache.groups if group.kind == "mamba"), default=1)

    def add(
        self,
        name: str,
        prompt: list[int],
        max_new_tokens: int,
        priority: int,
        session: bool = False,
        stops: tuple[int, ...] = (),
        min_tokens: int = 0,
        reads_cache: bool = True,
        compiling: int = 0,
        compiles: bool = True,
        grammar: Grammar | None = None,
    ) -> None:
        """Queue a new request. Unless it `reads_cache`, it computes its whole prompt. `compiling`: in this planning
        from now on its grammar is compiled, or turns out not to compile; 0 if it has none."""
        total = len(prompt) + max_new_tokens
        request = Request(
            name, [], [EMPTY], total, priority, self.arrivals, len(prompt), session=session, stops=stops,
            free_from=len(prompt) + min_tokens, reads_cache=reads_cache, compiling=compiling,
            compiles=compiles, grammar=grammar,
        )  # fmt: skip
        request.append_tokens(prompt)
        self.arrivals += 1
        self.requests[name] = request
        self.await_grammar(request)

    def await_grammar(self, request: Request) -> None:
        """Queue a request, once its grammar is compiled."""
        if request.compiling:
            self.compiling.append(request)
        else:
            self.enqueue(request)

    def enqueue(self, request: Request, front: bool = False) -> None:
        """Put a request into the waiting queue: by priority, or in order of arrival with the preempted in front."""
        self.waiting.insert(0 if front else len(self.waiting), request)
        if self.config.policy == "priority":
            self.waiting.sort(key=self.rank)

    @staticmethod
    def rank(request: Request) -> tuple[int, int]:
        """Return the sort key of importance: low priority value first, then arrival."""
        return request.priority, request.arrival

    def schedule(self, step: int, budget: int, limits: Mapping[str, int]) -> Plan:
        """Plan the next step with at most `budget` tokens; `limits` caps the tokens of single requests."""
        self.cache.pool.published_this_step.clear()
        plan = Plan(step, budget)
        plan.refused = self.compile_grammars()
        if self.schedule_running(plan, limits) and not plan.preempted:
            self.schedule_waiting(plan, limits)
            while not self.running and self.waiting and self.sessions.preempt_session(plan, self.waiting[0]):
                self.schedule_waiting(plan, limits)
        self.sessions.report_changes(plan)
        plan.zero = self.cache.take_blocks_to_zero()
        for row in plan.rows.values():
            request = self.requests[row.name]
            request.low += row.count - row.drafts
            request.high += row.count
            request.in_flight += 1
            request.optimistic += row.optimistic
        return plan

    def compile_grammars(self) -> list[str]:
        """Go on compiling, and queue those that are done; return those whose grammars turned out not to compile."""
        for request in self.compiling:
            request.compiling -= 1
        done = [request for request in self.compiling if not request.compiling]
        self.compiling = [request for request in self.compiling if request.compiling]
        for request in done:
            if request.compiles:
                self.enqueue(request)
        return [request.name for request in done if not request.compiles]

    def schedule_running(self, plan: Plan, limits: Mapping[str, int]) -> bool:
        """Plan the running requests in order; preempt if the pool has too few blocks.

        Return False if one of them was preempted itself or waits for pinned blocks.
        """
        position = 0
        while position < len(self.running) and plan.budget > 0:
            request = self.running[position]
            count, drafts = self.wanted(request, plan.budget, limits)
            if count > 0 and not self.place_running(plan, request, count, drafts):
                return False
            # Preempting a request before this one moves this one forward.
            position = self.running.index(request) + 1 if request in self.running else position
        return True

    def place_running(self, plan: Plan, request: Request, count: int, drafts: int) -> bool:
        """Allocate for a running request and add its row.

        Return False if the request was preempted itself or waits for blocks that a step in flight has pinned.
        """
        name, groups = request.name, self.cache.groups
        while True:
            before = [len(group.tables[name]) for group in groups]
            allocation = self.cache.allocate(name, request.tags, self.span(request, count, drafts), None)
            if allocation is not None:
                appended = [group.tables[name][length:] for group, length in zip(groups, before, strict=True)]
                self.place(plan, request, count, drafts, appended, None, allocation)
                return True
            if self.sessions.preempt_session(plan, request):
                continue
            victim = self.pick_victim()
            if victim is request and self.cache.partial.pins:
                return False
            self.preempt(victim, plan)
            if victim is request:
                return False

    def pick_victim(self) -> Request:
        """Return the request to preempt when a running request needs a block."""
        return max(self.running, key=self.rank) if self.config.policy == "priority" else self.running[-1]

    def schedule_waiting(self, plan: Plan, limits: Mapping[str, int]) -> None:
        """Admit waiting requests while budget, batch and pool allow."""
        for request in list(self.waiting):
            if plan.budget <= 0 or len(self.running) >= self.config.max_num_seqs:
                break
            if request.session and self.sessions.holds(request):
                if self.sessions.admit(plan, request, limits):
                    continue
                break
            hit = self.find_hit(request)
            if hit.defer:
                continue
            longer = self.extend_hit(request, hit)
            if longer.defer:
                continue
            if self.admit(plan, request, longer, limits):
                continue
            if longer is hit:
                break
            # The longer hit took too many blocks, or its loads were aborted. The shorter hit may be evicted by now.
            hit = self.find_hit(request)
            if hit.defer or not self.admit(plan, request, hit, limits):
                break

    def find_hit(self, request: Request) -> Hit:
        """Return the longest hit of a waiting request; an empty one if it does not read the cache."""
        return self.cache.find_hit(request.tags, len(request.tokens)) if request.reads_cache else self.cache.no_hit()

    def extend_hit(self, request: Request, hit: Hit) -> Hit:
        """Return a longer hit, with content from the external store or from inside a block, or `hit` itself."""
        if not request.reads_cache:
            return hit
        external = self.connector.find(request.tags, hit.length, len(request.tokens))
        if external:
            return self.cache.extend_hit(hit, request.tags, external)
        return self.cache.extend_inside(hit, request.tags, len(request.tokens))

    def admit(self, plan: Plan, request: Request, hit: Hit, limits: Mapping[str, int]) -> bool:
        """Admit a waiting request from a hit. Return False if budget or pool do not allow it."""
        request.settled = request.low = request.high = hit.length + hit.external
        count, _ = self.wanted(request, plan.budget, limits, fresh=True)
        allocation = None
        if count > 0:
            allocation = self.cache.allocate(request.name, request.tags, self.span(request, count, 0), hit)
        loads = self.commit_loads(request, hit, allocation) if allocation else None
        if allocation is None or loads is None:
            request.settled = request.low = request.high = 0
            return False
        self.place(plan, request, count, 0, None, hit, allocation, loads)
        return True

    def commit_loads(self, request: Request, hit: Hit, allocation: Allocation) -> list[Load] | None:
        """Return the loads of an admission. None if they are aborted: the allocation is then undone."""
        if not hit.external:
            return []
        if self.connector.commit(request.name):
            return self.connector.loads(request.tags, hit.length, hit.length + hit.external, allocation.to_load)
        self.cache.withdraw(request.name)
        self.cache.free(request.name)
        return None

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
        """Add a row to the plan.

        `appended` is None for an admitted request, of which the worker gets the whole table: it starts from `hit` or,
        without one, from the blocks that its session kept.
        """
        fresh = None
        if appended is None:
            self.waiting.remove(request)
            self.running.append(request)
            fresh = (list(request.tokens), self.cache.tables(request.name), request.prompt_length)
        samples = request.high + count - drafts >= len(request.tokens) + request.optimistic
        observed = PlannedRow(
            request.name, request.high, count, drafts, fresh is not None, hit.length if hit else 0,
            allocation.estimated, allocation.taken, hit.external if hit else 0,
            request.high if fresh and hit is None else 0,
        )  # fmt: skip
        table = self.cache.tables(request.name) if self.connector.saves else ()
        plan.rows[request.name] = ScheduledRow(
            request.name, count, drafts, request.epoch, fresh, appended or (), observed, request.high,
            drafts + 1 if samples else 0, loads, allocation.copies, allocation.pins, table,
            request.total if request.session else 0, request.stops if request.session else (), *self.withheld(request),
            request.grammar,
        )  # fmt: skip
        plan.budget -= count

    def withheld(self, request: Request) -> tuple[tuple[int, ...], int]:
        """Return the tokens that the worker does not sample, and the position from which on it may."""
        return request.stops, request.free_from

    def span(self, request: Request, count: int, drafts: int) -> Span:
        """Return the tokens that a step of `count` tokens covers."""
        low, high = request.low + count - drafts, request.high + count
        partial = self.cache.partial.boundary(request.prompt_length)
        return Span(request.settled, low, high, min(low, len(request.tokens)), partial)

    def wanted(self, request: Request, budget: int, limits: Mapping[str, int], fresh: bool = False) -> tuple[int, int]:
        """Return (input tokens, drafts among them) that the request gets from a remaining budget; (0, 0) for none."""
        expected = len(request.tokens) + request.optimistic
        if expected >= request.total and request.in_flight:
            return 0, 0
        drafts = 0 if fresh else self.draft_count(request)
        count = min(expected + drafts - request.high, budget, limits.get(request.name, budget))
        count = min(count, self.config.long_prefill_token_threshold or count)
        if self.is_prefill(request, count):
            return self.align_chunk(request, count), 0
        return count, max(count - 1, 0)

    def draft_count(self, request: Request) -> int:
        """Return how many drafts the next step verifies; with steps in flight they are placeholders."""
        if request.high + 1 < len(request.tokens) + request.optimistic:
            return 0
        if self.config.async_depth:
            return self.config.num_speculative_tokens if request.high >= request.prompt_length else 0
        return request.drafts

    def is_prefill(self, request: Request, count: int) -> bool:
        """Return True if the step computes known tokens other than the last sampled one."""
        return request.high + 1 < len(request.tokens) + request.optimistic or request.high < request.prompt_length

    def align_chunk(self, request: Request, count: int) -> int:
        """Return the tokens of a prefill chunk, cut in mode align to end on the grid or inside the block it starts in.

        The prompt's last partial block is exempt: decoding carries its state to the boundary.
        """
        if self.config.mamba_cache_mode != "align" or not self.cache.layout.prefix_caching:
            return count
        start, known = request.high, len(request.tokens)
        prefill_end = max(request.prompt_length, known - 1)
        if start >= prefill_end:
            return count
        partial = self.cache.partial.boundary(request.prompt_length)
        held = self.sessions.end_of_held_columns(request) if request.session else 0
        return chunk_end(start, start + count, prefill_end, known, self.chunk_grid, partial, held) - start

    def preempt(self, request: Request, plan: Plan | None = None) -> None:
        """Free all blocks of a running request and put it in front of the waiting queue."""
        self.running.remove(request)
        if plan is not None:
            plan.preempted.append(request.name)
            row = plan.rows.pop(request.name, None)
            if row is not None:
                self.cache.withdraw(request.name)
                self.cache.partial.withdraw(row.copies)
                self.cache.partial.unpin(row.pins)
                plan.budget += row.count
        self.cache.free(request.name)
        self.removed.append(request.name)
        request.rewind()
        self.enqueue(request, front=True)

    def settle(self, row: ScheduledRow, sampled: Sequence[int]) -> tuple[list[int], bool]:
        """Apply the result of a verified step. Return (new tokens for the client, finished)."""
        request = self.requests.get(row.name)
        if request is None or request.epoch != row.epoch:
            return [], False
        accepted = max(len(sampled) - 1, 0)
        request.in_flight -= 1
        request.optimistic -= row.optimistic
        request.settled += row.count - row.drafts + accepted
        request.low += accepted
        request.high -= row.drafts - accepted
        new = self.within_answer(request, sampled)
        request.append_tokens(new)
        finished = bool(new) and (len(request.tokens) >= request.total or new[-1] in request.stops)
        if finished:
            (self.sessions.park if request.session else self.finish)(request)
        return new, finished

    def within_answer(self, request: Request, sampled: Sequence[int]) -> list[int]:
        """Return the sampled tokens without those behind the end of the answer."""
        new = list(sampled)[: request.total - len(request.tokens)]
        end = next((count for count, token in enumerate(new, 1) if token in request.stops), len(new))
        return new[:end]

    def refuse(self, names: Sequence[str]) -> list[str]:
        """End requests whose grammars do not compile; return those that their clients have not ended before."""
        refused = [name for name in names if name in self.requests and not self.requests[name].compiles]
        for name in refused:
            self.finish(self.requests[name])
        return refused

    def finish(self, request: Request) -> None:
        """End a request and release its blocks."""
        del self.requests[request.name]
        self.finished.append(request.name)
        self.dequeue(request)
        if request.session:
            self.sessions.close(request)
        else:
            self.cache.free(request.name)

    def dequeue(self, request: Request) -> None:
        """Take a request out of the queue that it is in, or out of the batch."""
        if request in self.running:
            self.running.remove(request)
            self.removed.append(request.name)
        elif request in self.waiting:
            self.waiting.remove(request)
        elif request in self.compiling:
            self.compiling.remove(request)


def chunk_end(start: int, end: int, prefill_end: int, known: int, grid: int, partial: int, held: int) -> int:
    """Return the end of a chunk from `start` that could reach `end`: the first boundary at which a state must be kept.

    prefill_end  end of the known tokens to prefill; a chunk that does not reach it ends on the grid
    known        number of tokens with known ids; their last boundary is a stop
    grid         tokens between two states
    partial      the prompt's last boundary on a finer grid, 0 if there is none
    held         end of a held column that must not be stepped over, 0 if there is none
    """
    if end < prefill_end and end // grid * grid > start:
        end = end // grid * grid
    stops = [known // grid * grid, held]
    if partial > stops[0]:
        stops.append(partial)
    if start % grid:
        stops.append((start // grid + 1) * grid)
    return min([stop for stop in stops if start < stop < end], default=end)
