"""SGLang's server around its scheduler, without processes and sockets: one turn of the event loop per step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...reference.layout import cdiv
from ...reference.tokens import Truth
from .compat import scheduler_api, tree_api
from .compat.engine import SglangEngine
from .compat.sizes import Sizes, routing_key_of
from .device import Device
from .inputs import keys_of
from .sampling import GREEDY, sampling_of
from .scheduling import Skeleton
from .sessions import Sessions

TAGS = 2
"""Sessions that requests name, by their first token."""


class Server:
    """One engine with its scheduler. A request has the name of its client."""

    def __init__(
        self,
        sizes: Sizes,
        max_tokens: int,
        sessions: type[Sessions] | None = None,
        worker: Any = None,
        graphs: Any = None,
        tier: Any = None,
        grammars: Any = None,
        scheduler: type[Skeleton] = Skeleton,
        shapes: Any = None,
    ) -> None:
        """`max_tokens`: most prompt tokens of a step. The others are classes: of sessions, of speculation's worker, of
        the runner of captured decode graphs, of the host tier, of the manager of grammars, of the scheduler, of what
        changes the logits of requests.

        Each may be None where it is not used, and must be on a release that does not have it.
        """
        self.max_tokens = max_tokens
        self.engine = SglangEngine(sizes)
        self.device = Device(self.engine, graphs and graphs(self.engine))
        self.tier = self.device.tier = tier and tier(self.engine, self.device)
        self.truths: dict[str, Truth] = {}
        """What each client knows and what the model will say, which is drafted."""
        self.scheduler = scheduler(self.engine, self.device, max_tokens, worker, grammars)
        self.sessions: Any = sessions and sessions(self.engine)
        self.shapes: Any = shapes and shapes(sizes)
        self.device.shapes = self.shapes
        self.scheduler.truths = self.truths
        if self.scheduler.model_worker is not None:
            self.scheduler.model_worker.wanted.truths = self.truths
        self.requests: dict[str, Any] = {}
        """The last request of each client."""
        self.priorities: dict[str, int | None] = {}
        self.tags: dict[str, str] = {}
        """The session that a request names; one that is aborted closes it."""
        self.steps = 0

    def add(
        self,
        name: str,
        truth: Truth,
        max_new_tokens: int,
        session: bool = False,
        stops: tuple[int, ...] = (),
        priority: int | None = None,
        is_string: bool = False,
        min_tokens: int = 0,
        structured: int = 0,
        bad_grammar: int = 0,
        scored_from: int | None = None,
    ) -> None:
        """Queue a request, or a turn of a session; `truth` is what its client has, then what the model will say.

        With `is_string` the scheduler gets `stops` as one text, and no token ids to stop at. The turns of a
        session have the priority of the first. A grammar is compiled in `structured` steps less one; in
        `bad_grammar` less one it turns out to be none. `scored_from`: `logprob_start_len`, the position after
        which the client wants the log-probabilities of the prompt; None if it wants none.
        """
        tokens = truth.tokens[: truth.prompt_length]
        endless = self.engine.sizes.endless and not session
        # What a client that asks for these gets by chance depends on what is withheld.
        is_sampled = self.engine.sizes.sampled != "no" and not (min_tokens or structured or bad_grammar)
        chance = sampling_of(name) if is_sampled else GREEDY
        shape = None if self.shapes is None else self.shapes.shape(name, truth, max_new_tokens)
        processor = shape and shape.processor
        sampling = scheduler_api.make_sampling(max_new_tokens, stops, endless, is_string, min_tokens, chance, shape)
        if session:
            self.scheduler.client.begin(name)
            request, tokens = self.sessions.turn(name, truth, sampling, processor)
        else:
            tags, strips = self.engine.sizes.tags, self.engine.sizes.strips
            keys = keys_of(truth, self.engine.sizes.tenant)
            request = scheduler_api.make_request(name, tokens, sampling, keys, scored_from, strips, processor)
            if tags:
                request.session_id = self.tags[name] = str(tokens[0] % TAGS)
                request.session_generation = self.engine.cache.ensure_session_generation(request.session_id)
        self.engine.inputs.attach(request, truth, tokens)
        self.truths[name] = truth
        if self.scheduler.model_worker is not None:
            self.scheduler.model_worker.wanted.chances[name] = chance
        request.priority = self.priorities.setdefault(name, priority)
        if self.engine.sizes.order == "routing-key":
            request.routing_key = routing_key_of(name) or None
        self.requests[name] = request
        if wait := structured or bad_grammar:
            ends = () if is_string else stops
            self.scheduler.grammar_manager.ask(request, truth, ends, wait - 1, not bad_grammar)
            if self.scheduler.grammar_manager.process_req_with_grammar(request):
                return
        self.scheduler._add_request_to_queue(request)

    def plan(
        self,
        budget: int = 0,
        drafts: int = 0,
        right: int = 0,
        per_request: Mapping[str, tuple[int, int]] | None = None,
        pad_to: int = 0,
    ) -> Any:
        """Return the next batch, None if there is none. Of `drafts` proposed tokens the first `right` are right.

        budget       most prompt tokens, 0 for the server's own
        per_request  (drafts, right) of single requests
        pad_to       rows of a captured graph, to which the batch is padded
        """
        scheduler = self.scheduler
        if self.engine.sizes.chunked:
            scheduler.chunked_prefill_size = self.budget(budget)
        self.device.step, self.device.pad_to = self.steps, pad_to
        batch = scheduler.plan()
        if scheduler.model_worker is not None:
            wanted = scheduler.model_worker.wanted
            wanted.count, wanted.right, wanted.per_request = drafts, right, per_request or {}
        return batch

    def idle(self, rows: int) -> None:
        """Take part in the step of other data-parallel ranks, the largest of which has `rows` rows.

        No-op with requests, and with n-gram drafts: SGLang refuses them with data-parallel attention.
        """
        scheduler, sizes = self.scheduler, self.engine.sizes
        refused = sizes.drafts and sizes.drafter == "ngram"
        if not (refused or scheduler.queued() or scheduler.live()):
            self.device.step, self.device.pad_to = self.steps, rows
            self.turn(scheduler.plan(peers_run=True))

    def budget(self, wanted: int) -> int:
        """Return the most prompt tokens of a step. The server requires a multiple of the page size.

        A mixed step counts every row that decodes: its budget has room for one page more.
        """
        sizes = self.engine.sizes
        least = cdiv(sizes.rows, sizes.page) + 1 if sizes.mixed else 1
        return max(min(wanted or self.max_tokens, self.max_tokens) // sizes.page, least) * sizes.page

    def turn(self, batch: Any) -> tuple[list[tuple[str, list[int]]], list[str], list[str]]:
        """Execute and process; with overlap the processed batch is the previous one. Return (new tokens by client,
        clients whose request has ended, clients that got an error)."""
        self.scheduler.turn(batch)
        outputs, ended, failed = self.received()
        self.steps += 1
        self.tick(idle=not batch)
        return outputs, ended, failed

    def received(self) -> tuple[list[tuple[str, list[int]]], list[str], list[str]]:
        """Return what clients have received, after they have reacted to it."""
        outputs, ended, failed = self.scheduler.client.take()
        if self.sessions is not None and not self.sessions.requests.keys().isdisjoint([*ended, *failed]):
            # A client is slower than a step: whatever is in flight ends before the next turn arrives.
            self.device.drain()
        for name in (*ended, *failed) if self.sessions is not None else ():
            if self.sessions.has_aborted_turn(name):
                self.sessions.abort_turn(name, is_over=True)
            elif name in failed:
                self.sessions.close(name)  # its client does
        return outputs, ended, failed

    def tick(self, idle: bool = True) -> None:
        """End a turn, without a batch if it was `idle`: sessions end, and time out for lack of room; copies go on."""
        if self.tier is not None:
            self.tier.tick(idle)
            if not self.scheduler.busy:
                self.engine.cache.check_hicache_events()
        if not self.scheduler.busy:
            self.engine.memory.compact()
        self._end_sessions()

    def _end_sessions(self) -> None:
        if self.sessions is not None:
            self.sessions.tick({one.client_name for one in self.scheduler.live()})

    def retract(self, name: str) -> None:
        """Retract a request when the next decode is prepared."""
        if name in self.requests:
            self.scheduler.retract_next.append(name)

    def abort(self, name: str, keeps_session: bool = False) -> None:
        """Abort a request, or close a session: a waiting request ends at once, a running one with its next result.

        With `keeps_session` a turn is aborted and its session goes on.
        """
        if name in self.requests:
            self.scheduler.abort_request(scheduler_api.abort_message(name))
            self.scheduler.client.leave(name)
        if keeps_session and self.sessions is not None and name in self.sessions.requests:
            self.device.drain()  # a client is slower than a step
            there = [*self.scheduler.live(), *self.scheduler.queued()]
            self.sessions.abort_turn(name, all(one.client_name != name for one in there))
            return
        if name in self.tags:
            self.engine.cache.release_radix_session(self.tags[name])
        # A session that timed out holds nothing, but its client could still come back.
        if self.sessions is not None:
            self.sessions.close(name)

    def flush(self) -> None:
        """Flush the cache, which SGLang does only when it is idle, and clear the storage if clients do both."""
        if not self.scheduler.busy and self._finish_copies():
            scheduler_api.flush(self.scheduler)
        self._clear_storage()

    def pause(self) -> tuple[list[tuple[str, list[int]]], list[str], list[str]]:
        """Pause generation, and continue. Return what clients receive, as `turn` does."""
        with self._paused() as received:
            return received

    def pause_and_flush(self) -> tuple[list[tuple[str, list[int]]], list[str], list[str]]:
        """Pause generation, flush the cache if SGLang would, and continue. Return what clients receive, as `turn` does.

        SGLang flushes while it is paused although requests wait, unless one of them has a row, as a turn has whose
        session keeps its record, waits for its grammar, or has something fetched from a storage (`is_fully_idle`).
        """
        with self._paused() as received:
            if self._finish_copies() and self.scheduler.may_be_flushed:
                scheduler_api.flush(self.scheduler)
            self._clear_storage()
            return received

    @contextmanager
    def _paused(self) -> Iterator[tuple[list[tuple[str, list[int]]], list[str], list[str]]]:
        """Hold while generation is paused. What clients receive comes before; their sessions time out behind it."""
        scheduler_api.pause(self.scheduler)
        yield self.received()
        scheduler_api.go_on(self.scheduler)
        self._end_sessions()

    def _finish_copies(self) -> bool:
        """Let copies, and what a storage does, end. Return True if nothing is fetched for a request that waits."""
        if self.tier is None:
            return True
        self.tier.finish(self.scheduler.queued())
        return bool(self.tier.is_done())

    def _clear_storage(self) -> None:
        """Clear the storage, at any time, as `clear_hicache_storage_wrapped` does."""
        if self.engine.sizes.storage_cleared and self.engine.sizes.storage != "no":
            self.engine.cache.clear_storage_backend()
            self.tier.storage.has_gaps = True

    def switch_storage(self) -> None:
        """Detach the storage, or attach it again; no-op while SGLang would refuse it (`is_fully_idle`): while anything
        runs, waits or is copied, or the storage does something that the tree knows of."""
        if self.engine.sizes.storage != "no" and not self.scheduler.busy and self.tier.is_done():
            scheduler_api.switch_storage(self.scheduler, self.engine.sizes)
            self.tier.storage.after_switch()

    def evict(self, pages: int) -> None:
        """Evict the given number of pages of tokens, and as many states and pages of windows.

        With a storage behind it, the host gives up as much.
        """
        cache, sizes = self.engine.cache, self.engine.sizes
        tokens = pages * sizes.page
        windows = tokens if sizes.sliding else 0
        tree_api.evict(cache, tokens, pages, windows)
        if sizes.storage != "no":
            tree_api.evict_host(cache, tokens, pages, windows)
