"""SGLang behind the `Target` protocol: one turn of its event loop per step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...reference.tokens import Truth
from ..base.observe import Content, Delivered, Effect, Planned, PlannedRow, Record, SlotContent, StateContent, View
from ..base.trace import Abort, Arrive, Config, Event, Evict, Preempt, ResetPrefixCache, Resume, Step, fits
from .compat import scheduler_api, session_api, tree_api
from .compat.engine import STATES, SglangEngine
from .device import Device
from .scheduling import Skeleton
from .views import Host


class SglangTarget:
    """One engine for one trace."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.engine = SglangEngine(config)
        self.layout = self.engine.layout
        self.device = Device(self.engine)
        self.scheduler = Skeleton(self.engine, self.device, config.max_num_batched_tokens)
        self.sessions = self._sessions()
        self.host = Host(self.engine, self.scheduler, self.sessions)
        self.step = 0
        self._names: set[str] = set()
        self._processing = -1
        self._handlers: dict[type[Event], Callable[[Any], list[Record]]] = {
            Arrive: self.arrive,
            Resume: self.resume,
            Step: self.run_step,
            Preempt: self.preempt,
            Abort: self.abort,
            ResetPrefixCache: self.reset_prefix_cache,
            Evict: self.evict,
        }

    def _sessions(self) -> Any:
        """None for a release without sessions that own their records."""
        if not session_api.has_sessions():
            return None
        from .sessions import Sessions

        return Sessions(self.engine)

    def apply(self, event: Event) -> Effect:
        """Apply an event."""
        return Effect(self._handlers[type(event)](event))

    def arrive(self, event: Arrive) -> list[Record]:
        """Queue a request; no-op for a name that was used before."""
        if event.name in self._names or not fits(self.config, event):
            return []
        self._names.add(event.name)
        truth = Truth(event.prompt)
        if event.session:
            self._queue(event.name, truth, self.sessions.begin(event, truth))
        else:
            tokens = truth.tokens[: truth.prompt_length]
            self._queue(event.name, truth, scheduler_api.make_request(event.name, tokens, event.max_new_tokens))
        return []

    def resume(self, event: Resume) -> list[Record]:
        """Queue the next turn of a parked session."""
        sessions = self.sessions
        if event.name in sessions.parked() and fits(self.config, event, sessions.known(event.name)):
            self.scheduler.client.begin(event.name)
            request = sessions.go_on(event)
            self._queue(event.name, sessions.truths[event.name], request)
        return []

    def _queue(self, name: str, truth: Truth, request: Any) -> None:
        if self.scheduler.model_worker is not None:
            self.scheduler.model_worker.ngram_corpus.truths[name] = truth
        self.host.requests[name] = request
        self.scheduler._add_request_to_queue(request)

    def run_step(self, event: Step) -> list[Record]:
        """Plan, execute, process. With overlap, the processed batch is the previous one."""
        scheduler = self.scheduler
        if not scheduler.busy:
            self._tick()
            return []
        most = self.config.max_num_batched_tokens
        page = self.engine.sizes.page
        # The server requires a multiple of the page size.
        budget = max(min(event.budget or most, most) // page, 1) * page
        scheduler.chunked_prefill_size = budget
        records = self.device.records = []
        waiting = {one.hybridfuzz_name for one in scheduler.waiting_queue}
        before = {one.hybridfuzz_name for one in scheduler.live()}
        kept = self.sessions.records() if self.sessions is not None else {}
        batch = scheduler.plan()
        if scheduler.model_worker is not None:
            scheduler.model_worker.ngram_corpus.event = event
        self.device.step, self.device.pad_to = self.step, event.pad_to
        queued = [one.hybridfuzz_name for one in scheduler.waiting_queue]
        preempted = tuple(name for name in queued if name in before)
        rows = tuple(self._row(batch, index, waiting, kept) for index in range(len(batch.reqs))) if batch else ()
        records.append(Planned(self.step, rows, preempted, budget, self.view()))
        scheduler.turn(batch)
        outputs, ended = scheduler.client.take()
        if self.sessions is not None and not self.sessions.requests.keys().isdisjoint(ended):
            # A client is slower than a step: whatever is in flight ends before the next turn arrives.
            self.device.drain()
        if outputs or ended:
            records.append(Delivered(self.step, outputs, ended))
        self.step += 1
        self._tick()
        return records

    def _tick(self) -> None:
        if self.sessions is not None:
            self.sessions.tick({one.hybridfuzz_name for one in self.scheduler.live()})

    def _row(self, batch: Any, index: int, waiting: set[str], kept: dict[str, Any]) -> PlannedRow:
        name = batch.reqs[index].hybridfuzz_name
        drafts = self.engine.sizes.drafts
        if drafts and not batch.forward_mode.is_extend():
            return PlannedRow(name, self.scheduler.expected(batch.reqs[index]), drafts, drafts - 1, False, 0)
        length = int(batch.seq_lens_cpu[index])
        if not batch.forward_mode.is_extend():
            return PlannedRow(name, length - 1, 1, 0, False, 0)
        count = batch.extend_lens[index]
        admitted, start = name in waiting, length - count
        if admitted and name in kept and batch.reqs[index].kv is kept[name]:
            return PlannedRow(name, start, count, 0, True, 0, kept=start)
        return PlannedRow(name, start, count, 0, admitted, start if admitted else 0)

    def preempt(self, event: Preempt) -> list[Record]:
        """Retract a request when the next decode is prepared."""
        if event.name in self.host.requests:
            self.scheduler.retract_next.append(event.name)
        return []

    def abort(self, event: Abort) -> list[Record]:
        """Abort a request: a waiting one ends at once, a running one with its next result."""
        if event.name in self.host.requests:
            self.scheduler.abort_request(scheduler_api.abort_message(event.name))
            self.scheduler.client.take()
        # A session that timed out holds nothing, but its client could still come back.
        if self.sessions is not None:
            self.sessions.close(event.name)
        return []

    def reset_prefix_cache(self, event: ResetPrefixCache) -> list[Record]:
        """Flush the cache, which SGLang does only when it is idle."""
        if not self.scheduler.busy:
            scheduler_api.flush(self.scheduler)
        return []

    def evict(self, event: Evict) -> list[Record]:
        """Evict the given number of pages of tokens, and as many states."""
        tree_api.evict(self.engine.cache, event.blocks * self.engine.sizes.page, event.blocks)
        return []

    def view(self) -> View:
        """Return the host's metadata."""
        return self.host.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a slot or page."""
        states, sizes = self.engine.states, self.engine.sizes
        if group == STATES:
            window = tuple(states.window[layer, block].tolist())
            return StateContent(int(states.temporal[layer, block]), window)
        start = (block - sizes.first_page) * sizes.page
        return SlotContent(states.keys[layer][start : start + sizes.page].tolist())

    def close(self) -> None:
        """Do nothing: the engine is garbage-collected."""
