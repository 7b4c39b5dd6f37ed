"""SGLang behind the `Target` protocol: one turn of its event loop per step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import no_grad

from ...reference.tokens import Truth
from ..base.observe import (
    Content,
    Delivered,
    Effect,
    Planned,
    PlannedRow,
    Record,
    SideBySide,
    SlotContent,
    StateContent,
    View,
)
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Step,
    SwitchStorage,
    fits,
    has_stop_string,
    least_tokens,
    logprob_start,
    stop_tokens_of,
)
from .compat import scheduler_api, session_api
from .compat.engine import STATES, WINDOW, layout_of
from .compat.sizes import Sizes, sizes_of
from .host_view import Host
from .kit_limits import BOTH
from .scheduling import Skeleton
from .serving import Server
from .sessions import Sessions


class SglangTarget:
    """One engine for one trace."""

    def __init__(self, config: Config) -> None:
        self.config = config
        sizes = sizes_of(config)
        self._has_pair = sizes.tree_core == BOTH and sizes.caching
        if self._has_pair:
            from .core_pair import register

            register()
        self.layout = layout_of(sizes)
        parts = (
            _sessions(),
            _worker(sizes),
            _graphs(sizes),
            _tier(sizes),
            _grammars(),
            _scheduler(sizes),
            _shapes(sizes),
        )
        self.server = server = Server(sizes, config.max_num_batched_tokens, *parts)
        self.engine, self.device, self.scheduler = server.engine, server.device, server.scheduler
        self.sessions = server.sessions
        self.host = Host(server)
        self.scheduler.host_view = self.host.view
        self._truths = server.truths
        """What each client knows and what the model will say."""
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Arrive: self.arrive,
            Resume: self.resume,
            Step: self.run_step,
            Preempt: self.preempt,
            Abort: self.abort,
            ResetPrefixCache: self.reset_prefix_cache,
            Evict: self.evict,
            DummyRun: self.dummy_run,
            Pause: self.pause,
            SwitchStorage: self.switch_storage,
        }

    def apply(self, event: Event) -> Effect:
        """Apply an event. Launches are executed in it if it makes SGLang wait for them."""
        records: list[Record] = []
        self.device.records = records
        with no_grad():  # as SGLang's event loop, unless a server asks for inference mode
            self._handlers[type(event)](event)
        if self._has_pair:
            records.append(self._compared())
        return Effect(records)

    def _compared(self) -> Record:
        """Return what the two cores of the tree answered since the last event."""
        core = self.engine.cache.tree_core
        core.agree()
        answers, difference = core.take()
        if difference is None:
            return SideBySide(self.server.steps, answers)
        one, other = f"Python: {difference.python}", f"Rust: {difference.rust}"
        return SideBySide(self.server.steps, answers, difference.operation, one, other)

    def arrive(self, event: Arrive) -> None:
        """Queue a request; no-op for a name that was used before."""
        if event.name not in self._truths and fits(self.config, event):
            truth = self._truths[event.name] = Truth(event.prompt)
            stops = stop_tokens_of(event, truth)
            priority = event.priority if self.config.policy == "priority" else None
            asked = event.session, stops, priority, has_stop_string(event), least_tokens(event)
            more = event.structured, event.bad_grammar, logprob_start(event)
            self.server.add(event.name, truth, event.max_new_tokens, *asked, *more)
            self._deliver(self.server.steps - 1, *self.server.received())  # the error of one that is refused at once

    def resume(self, event: Resume) -> None:
        """Queue the next turn of a parked session."""
        name, sessions = event.name, self.sessions
        if sessions is not None and name in sessions.parked() and fits(self.config, event, sessions.known(name)):
            truth = self._truths[name] = sessions.had(name).continued(sessions.known(name), event.prompt)
            stops = stop_tokens_of(event, truth)
            asked = None, has_stop_string(event), least_tokens(event), event.structured
            self.server.add(name, truth, event.max_new_tokens, True, stops, *asked)

    def run_step(self, event: Step) -> None:
        """Plan, execute, process. With overlap, the processed batch is the previous one."""
        scheduler, server = self.scheduler, self.server
        if not scheduler.busy:
            server.tick()
            return
        records = self.device.records
        waiting = {one.client_name for one in scheduler.queued()}
        before = {one.client_name for one in scheduler.live()}
        kept = self.sessions.records() if self.sessions is not None else {}
        scheduler.gave_way.clear()
        batch = server.plan(event.budget or 0, event.drafts, event.right, event.per_request, event.pad_to)
        queued = [one.client_name for one in scheduler.queued()]
        again = scheduler.gave_way
        preempted = tuple(name for name in dict.fromkeys((*queued, *again)) if name in before)
        waiting.update(again)
        # A request may end between the plan and the launch, which has its row all the same.
        held = self.host.tables() if scheduler.waits(batch) else {}
        scheduler.settle(batch)
        gone = {one.client_name for one in batch.reqs if one.finished()} if held else set()
        rows = tuple(
            self._row(batch, index, waiting, kept)
            for index, one in enumerate(batch.reqs if batch else ())
            if one.client_name not in gone
        )
        step, budget, view = server.steps, server.budget(event.budget or 0), self.view()
        left = {name: table for name, table in held.items() if name in gone}
        records.append(Planned(step, rows, preempted, budget, view, left))
        self._deliver(step, *server.turn(batch))

    def _row(self, batch: Any, index: int, waiting: set[str], kept: dict[str, Any]) -> PlannedRow:
        name = batch.reqs[index].client_name
        drafts = self.engine.sizes.drafts
        if drafts and not batch.forward_mode.is_extend():
            return PlannedRow(name, self.scheduler.expected(batch.reqs[index]), drafts, drafts - 1, False, 0)
        length = int(batch.seq_lens_cpu[index])
        if not batch.forward_mode.is_extend():
            return PlannedRow(name, length - 1, 1, 0, False, 0)
        count = batch.extend_lens[index]
        if drafts and batch.reqs[index] in (batch.decoding_reqs or ()):
            return PlannedRow(name, self.scheduler.expected(batch.reqs[index]), count, 0, False, 0)
        admitted, start = name in waiting, length - count
        if admitted and name in kept and batch.reqs[index].kv is kept[name]:
            return PlannedRow(name, start, count, 0, True, 0, kept=start)
        instead = scheduler_api.instead(batch.reqs[index])
        if instead:
            self._truths[name] = self._truths[name].instead(instead)
        return PlannedRow(name, start, count, 0, admitted, start if admitted else 0, instead=instead)

    def preempt(self, event: Preempt) -> None:
        """Retract a request when the next decode is prepared."""
        self.server.retract(event.name)

    def abort(self, event: Abort) -> None:
        """Abort a request: a waiting one ends at once, a running one with its next result."""
        self.server.abort(event.name, event.keeps_session)

    def reset_prefix_cache(self, event: ResetPrefixCache) -> None:
        """Flush the cache, which SGLang does only when it is idle, or paused."""
        if event.preempt_running and scheduler_api.pauses():
            self._deliver(self.server.steps - 1, *self.server.pause_and_flush())
        else:
            self.server.flush()

    def pause(self, event: Pause) -> None:
        """Pause generation, and continue."""
        self._deliver(self.server.steps - 1, *self.server.pause())

    def switch_storage(self, event: SwitchStorage) -> None:
        """Detach the storage, or attach it again."""
        self.server.switch_storage()

    def _deliver(self, step: int, outputs: list[tuple[str, list[int]]], ended: list[str], failed: list[str]) -> None:
        """Record what clients received in a step, if anything."""
        scored = self.scheduler.client.take_scored()
        if outputs or ended or failed or scored:
            self.device.records.append(Delivered(step, outputs, ended, failed, scored))

    def evict(self, event: Evict) -> None:
        """Evict the given number of pages of tokens, and as many states."""
        self.server.evict(event.blocks)

    def dummy_run(self, event: DummyRun) -> None:
        """Take part in a step of other data-parallel ranks; no-op with requests of its own."""
        self.server.idle(event.rows)

    def view(self) -> View:
        """Return the host's metadata."""
        return self.host.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a slot or page."""
        states, sizes, memory = self.engine.states, self.engine.sizes, self.engine.memory
        if group == STATES and self.engine.checkpoints is not None and block >= sizes.first_checkpoint:
            return StateContent(*self.engine.checkpoints.read(layer, block))
        if group == STATES:
            [place] = memory.places_of([block])
            return StateContent(int(states.temporal[layer, place]), tuple(states.window[layer, place].tolist()))
        if group == WINDOW:
            keys, start = states.window_keys, memory.first_window_token(block - sizes.first_window_page)
        else:
            keys, start = states.keys, memory.first_token(block - sizes.first_page)
        return SlotContent(keys[layer][start : start + sizes.page].tolist())

    def close(self) -> None:
        """Do nothing: the engine is garbage-collected."""


def _worker(sizes: Sizes) -> Any:
    """Return the class of speculation's worker, None without speculation: not every release can import it."""
    if not sizes.drafts:
        return None
    if sizes.drafter == "eagle":
        from .eagle import EagleWorker

        return EagleWorker
    from .speculation import Worker

    return Worker


def _graphs(sizes: Sizes) -> Any:
    """Return the class of the runner of captured graphs, None without them: not every release can import it."""
    if not sizes.graphs or not scheduler_api.captures():
        return None
    from .graphs import Graphs

    return Graphs


def _tier(sizes: Sizes) -> Any:
    """Return the class of the host tier, None without one: not every release can import it."""
    if sizes.hicache == "no":
        return None
    from .host_tier import HostTier
    from .storage import FileStorage

    return partial(HostTier, storage=FileStorage) if sizes.storage != "no" else HostTier


def _grammars() -> Any:
    """Return the class of the manager of grammars, None for a release that is not driven with them."""
    if not scheduler_api.is_driven_fully():
        return None
    from .grammars import Grammars

    return Grammars


def _shapes(sizes: Sizes) -> Any:
    """Return the class of what clients ask for that changes logits, None where they ask for nothing."""
    if sizes.logits == "plain":
        return None
    from .logit_shapes import LogitShapes

    return LogitShapes


def _scheduler(sizes: Sizes) -> type[Skeleton]:
    """Return the class of the scheduler: not every release can import that of a part of serving."""
    if sizes.disaggregation == "prefill":
        from .disaggregation.prefill import PrefillSkeleton

        return PrefillSkeleton
    if sizes.disaggregation == "decode":
        from .disaggregation.decode import DecodeSkeleton

        return DecodeSkeleton
    return Skeleton


def _sessions() -> type[Sessions] | None:
    """Return the class of sessions, None for a release without sessions that own their records."""
    return Sessions if session_api.has_sessions() else None
