"""The real engine behind the `Target` protocol: the loop of `EngineCore` between scheduler and runner, step by step.

With `async_depth` 1 a step is executed, and its results reach the scheduler, after the next step was scheduled, as in
`EngineCore.step_with_batch_queue` with a worker in another process.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from msgspec import structs
from vllm.v1.request import Request, RequestStatus

from ...reference.batch import original_name
from ...reference.tokens import Truth
from ..base.observe import Content, Delivered, Effect, Planned, PlannedRow, Record, View
from ..base.protocol import EngineStalled
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    Preempt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Step,
    TraceError,
    Turn,
    fits,
)
from .counterparts.sampling import sampling_parameters
from .host_view import Host, KeyBook
from .options import has_images, offloads, offloads_simply, options_of, reports_all
from .pool_reader import Admissions
from .shadow import patches
from .versions import compat, features

if TYPE_CHECKING:
    from .counterparts.no_store import NullStore

STEPS_PER_TOKEN = 3
"""Steps allowed inside one event, per token that the requests may have: as for draining, a request may be preempted."""
WAITING_STEPS_MAX = 64
"""Further steps allowed inside one event: a load takes 5 at most, a send 2 (`kv_connector`)."""


def _shadow_engine(config: Config) -> Any:
    from .shadow_kit import shadow_engine  # never in a process that has a GPU

    return shadow_engine(config)


def _failed(output: Any) -> bool:
    """Return True if a request ended with an error."""
    return output.finish_reason is not None and output.finish_reason.name == "ERROR"


class InFlight(NamedTuple):
    """A step that is planned and not executed yet.

    sent    the worker's copy of the plan
    pad_to  number of rows on the other ranks
    masks   bitmasks of structured output, None without any
    resets_encoder  the encoder cache is reset behind it
    """

    step: int
    plan: Any
    sent: Any
    pad_to: int
    masks: Any
    resets_encoder: bool = False


class VllmTarget:
    """One engine for one trace."""

    def __init__(self, config: Config, engine: Any = None) -> None:
        """`engine` is one with a real model (`gpu`), None for one with shadow layers."""
        torch.manual_seed(0)  # where a wrong state leaves random sampling a choice, it chooses the same in each run
        self.config = config
        self.engine = engine = engine or _shadow_engine(config)
        self.layout = engine.layout
        self.scheduler = engine.scheduler
        self.keys = KeyBook(engine.hash_block_size, engine.drafter.truths, self.layout.lookahead)
        self.hasher = self.keys.recording(engine.hasher) if engine.hasher else None
        self.host = Host(engine.scheduler, engine.worker, self.keys)
        self.admissions = Admissions(engine.scheduler)
        self.store: NullStore = engine.store
        self.inputs = getattr(engine, "inputs", None)
        self.host.stored = lambda: self.store.stored(self.keys)
        if offloads(config) or offloads_simply(config):
            self.host.tier = self.store
        self.host.loading, self.host.saving = self.store.loading, self.store.saving
        if has_images(config):
            self.host.images = self.inputs
        self.sessions = self._sessions()
        if reports_all(config):
            from .cache_events import Subscriber

            self.host.subscriber = Subscriber(engine.scheduler)
        self.structured: Any = None
        """What gives requests their structured output, once one of them has it."""
        self.front_end: Any = None
        """What finds stop strings, once a request has one."""
        self.step = 0
        self.in_flight: deque[InFlight] = deque()
        self._arrivals: dict[str, float] = {}
        self._priorities: dict[str, int] = {}
        self._scheduling = False
        self._preempted: list[str] = []
        self._watch_preemption()
        self._layers = {(layer.group, layer.index): layer for layer in engine.layers}
        self._handlers: dict[type[Event], Callable[..., list[Record]]] = {
            Arrive: self.arrive,
            Step: self.run_step,
            Preempt: self.preempt,
            Abort: self.abort,
            DummyRun: self.dummy_run,
            ResetPrefixCache: self.reset_prefix_cache,
            Evict: self.evict,
            ExternalLoad: self.external_load,
            Resume: self.resume,
            ResetEncoderCache: self.reset_encoder_cache,
        }
        patches.activate(engine.recorder)

    def _sessions(self) -> Any:
        """Return None for a release whose streaming sessions are not driven."""
        if not features.has_sessions():
            return None
        from .counterparts.sessions import Sessions

        sessions = Sessions(self.config, self.scheduler, self.host)
        self.host.idle = sessions.idle
        return sessions

    def _watch_preemption(self) -> None:
        preempt = self.scheduler._preempt_request

        def preempt_request(request: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._scheduling:
                self._preempted.append(request.request_id)
            return preempt(request, *arguments, **keywords)

        self.scheduler._preempt_request = preempt_request

    def apply(self, event: Event) -> Effect:
        """Apply an event."""
        self.refused = ""
        return Effect(self._handlers[type(event)](event), self.refused)

    def arrive(self, event: Arrive) -> list[Record]:
        """Queue a request; no-op for a name that was used before."""
        truths = self.engine.drafter.truths
        if event.name in truths or not fits(self.config, event):
            return []
        truth = truths[event.name] = Truth(event.prompt)
        self._priorities[event.name] = event.priority
        self._add(event, truth, 0, event.session)
        return []

    def _add(self, turn: Turn, truth: Truth, first: int, session: bool) -> None:
        """Add a request, or the next turn of a session, with the prompt of `truth` from position `first` on."""
        name = turn.name
        # vLLM's front end gives all samples of a prompt the time at which their client came.
        alike = self._arrivals.get(original_name(name)) if name not in self._arrivals else None
        self._arrivals[name] = arrival = alike or 1.0 + max(self._arrivals.values(), default=0.0)
        # vLLM hashes a new turn's tokens alone, too, and never uses that.
        hasher = self.engine.hasher if name in self.scheduler.requests else self.hasher
        arguments = compat.request_arguments(hasher, self._priorities[name], arrival)
        if session and self.sessions:
            arguments["resumable"] = True
        if self.inputs:
            arguments |= self.inputs.arguments(truth, first)
        tokens = truth.tokens[first : truth.prompt_length]
        chosen = sampling_parameters(self.config, turn, truth, self.engine.drafter.decoys)
        if truth.reasons_until:
            arguments["reasoning_parser_kwargs"] = {"truth": truth}
        request = Request(name, tokens, chosen, **arguments)
        bad = turn.bad_grammar if isinstance(turn, Arrive) else 0
        if turn.structured or bad:
            self._begin_structured(request, (turn.structured or bad) - 1)
        if chosen.stop:
            self._begin_string(request, tokens, chosen, session)
        self.scheduler.add_request(request)

    def _begin_string(self, request: Request, prompt: list[int], chosen: Any, session: bool) -> None:
        if session:  # `AsyncLLM._validate_streaming_input_sampling_params`
            raise TraceError(f"{request.request_id}: vLLM refuses stop strings in a session")
        if self.front_end is None:
            from .counterparts.stop_strings import FrontEnd

            self.front_end = FrontEnd(self.scheduler)
        self.front_end.add(request, prompt, chosen)

    def _begin_structured(self, request: Request, wait: int) -> None:
        if self.structured is None:
            from .counterparts.structured import StructuredOutputs

            self.structured = StructuredOutputs(self.scheduler, self.engine.drafter.truths)
        self.structured.begin(request, wait)

    def resume(self, event: Resume) -> list[Record]:
        """Send the next turn of an idle session; no-op for others."""
        known = self.sessions.idle.get(event.name) if self.sessions else None
        if known is None or not fits(self.config, event, known):
            return []
        records: list[Record] = []
        if not self.sessions.is_open(event.name):
            self._let_go(event.name, records)
        kept, again = self.sessions.begin_turn(event.name)
        if again:
            self.engine.worker.forget(event.name)
        truths = self.engine.drafter.truths
        truth = truths[event.name] = truths[event.name].continued(kept, event.prompt)
        self.keys.forget(event.name, kept)
        self._add(event, truth, kept - again, session=True)
        return records

    def _let_go(self, name: str, records: list[Record]) -> None:
        """Run what is left of a session that timed out: vLLM's front end makes ids unique, a trace's names are not."""

        def is_gone() -> bool:
            # vLLM keeps the request until its blocks have been transferred, and a connector is told of its end in the
            # next step. Results are processed after the next step was planned, as `EngineCore.step_with_batch_queue`
            # does while there are requests.
            in_flight = any(name in one.plan.num_scheduled_tokens for one in self.in_flight)
            is_kept = self.store.is_connected and name in self.scheduler.finished_req_ids
            return name not in self.scheduler.requests and not (in_flight or is_kept or self.store.knows(name))

        records += self._run_until(is_gone, Step(), f"the timed out session {name}")

    def has_work(self) -> bool:
        """Return True if there are requests, ended ones that the worker has not dropped yet, or results in flight."""
        return bool(self.scheduler.has_requests() or self.in_flight)

    def _is_idle(self) -> bool:
        return not self.has_work()

    def run_step(self, event: Step) -> list[Record]:
        """Schedule and execute one step, and process the results that are due. As the engine's loop, go on until the
        transfers of requests that ended are over if there is nothing else to do."""
        records, scheduler = self._run_step(event), self.scheduler

        def has_other_work() -> bool:
            over = not (scheduler.has_finished_requests() or self.store.has_jobs())
            return bool(scheduler.has_unfinished_requests() or over)

        if self.store.is_connected:
            # What a connector has under way for no request in the end is M9's.
            excused = lambda: not scheduler.has_finished_requests()  # noqa: E731
            records += self._run_until(has_other_work, event, "the transfers of requests that ended", excused)
        return records

    def _run_until(
        self, done: Callable[[], bool], event: Step, what: str, excused: Callable[[], bool] = lambda: False
    ) -> list[Record]:
        """Run steps until `done`. Raises EngineStalled, which names `what`, if the engine does not get there, unless it
        is `excused` by then."""
        records: list[Record] = []
        tokens = self.config.max_model_len * len(self.scheduler.requests)
        bound = STEPS_PER_TOKEN * tokens + WAITING_STEPS_MAX
        for _ in range(bound):
            if done():
                return records
            records += self._run_step(event)
        if not excused():
            raise EngineStalled(f"{what} did not end within {bound} steps")
        return records

    def _run_step(self, event: Step) -> list[Record]:
        if not self.has_work():
            return []
        budget = min(event.budget or self.config.max_num_batched_tokens, self.config.max_num_batched_tokens)
        self.scheduler.max_num_scheduled_tokens = budget
        self.engine.drafter.event = event
        plan = self._schedule()
        records: list[Record] = [self._planned(plan, budget), *self.store.early()]
        # Results are processed after the next schedule(), so the worker gets a copy, as in a process of its own: later
        # changes by the scheduler must not reach it.
        sent = pickle.loads(pickle.dumps(plan)) if self.config.async_depth else plan
        # A step samples behind the results of the one before if its bitmasks depend on them.
        is_late = self.structured is not None and plan.pending_structured_output_tokens
        masks = self.structured.masks(plan) if self.structured and not is_late else None
        self.in_flight.append(InFlight(self.step, plan, sent, event.pad_to, masks))
        self.step += 1
        for _ in range(len(self.in_flight) - self._left_in_flight(plan, is_late)):
            self._complete(records)
        if is_late:
            drafts = self.config.num_speculative_tokens > 0
            late = self.structured.late_masks(plan, self.engine.worker, drafts)
            self.in_flight[-1] = self.in_flight[-1]._replace(masks=late)
        return records

    def _left_in_flight(self, plan: Any, is_late: bool) -> int:
        """Return the steps that stay in flight behind a planned one, as in `EngineCore.step_with_batch_queue`.

        Where two may stay, one without tokens takes a place in the queue like any other while there are requests. A
        step that samples behind results waits for the oldest ones.
        """
        depth = self.config.async_depth
        if plan.total_num_scheduled_tokens or (depth > 1 and self.scheduler.has_requests()):
            return min(depth, len(self.in_flight) - is_late)
        return 0

    def _schedule(self) -> Any:
        self._preempted, self.admissions.counts = [], {}
        # Sessions only, and none whose load broke off: these are admitted anew.
        holding = getattr(self.scheduler, "kv_holding_waiting", ())
        self._resuming = {one.request_id for one in holding if one.resumable and one.num_computed_tokens}
        self._scheduling = True
        self.store.begin_planning(self.step)
        if self.structured:
            self.structured.begin_planning()
        try:
            return self.scheduler.schedule()
        finally:
            self._scheduling = False

    def _planned(self, plan: Any, budget: int) -> Planned:
        fresh = {one.req_id for one in plan.scheduled_new_reqs}
        fresh |= set(getattr(plan.scheduled_cached_reqs, "resumed_req_ids", ()))
        rows = []
        for name, count in plan.num_scheduled_tokens.items():
            start = self.scheduler.requests[name].num_computed_tokens - count
            drafts = len(plan.scheduled_spec_decode_tokens.get(name, ()))
            waited = self.store.ends_wait(name)
            admitted = name in fresh and not waited
            counts = self.admissions.counts.get(name, (-1, -1))
            kept = start if admitted and name in self._resuming else 0
            loaded = self.store.joined.get(name, 0)
            hit = start - loaded if admitted and not kept else 0
            cut = self.structured.cut.pop(name, 0) if self.structured else 0
            rows.append(PlannedRow(name, start, count, drafts, admitted, hit, *counts, loaded, kept, cut))
        for row in self.store.started:
            estimated, taken = self.admissions.counts[row.name]
            rows.append(structs.replace(row, estimated=estimated, taken=taken))
        copies = {copy[1]: copy[0] for copy in getattr(plan, "kv_cache_block_copies", None) or ()}
        view = structs.replace(self.view(), copies=copies) if copies else self.view()
        self.engine.recorder.planned(self.step, view.tables)
        return Planned(self.step, tuple(rows), tuple(self._preempted), budget, view)

    def _complete(self, records: list[Record]) -> None:
        """Execute the oldest planned step, pass its results to the scheduler and record the client's outputs."""
        oldest = self.in_flight.popleft()
        plan, recorder = oldest.plan, self.engine.recorder
        recorder.begin_step(oldest.step)
        output = self.engine.worker.execute(oldest.sent, oldest.pad_to, oldest.masks)
        if oldest.resets_encoder:
            self.engine.worker.reset_encoder_cache()
        drafts = {name: len(tokens) for name, tokens in plan.scheduled_spec_decode_tokens.items()}
        # Copied: the scheduler truncates these lists at the end of a request.
        sampled: dict[str, Sequence[int]] = {}
        for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            sampled[name] = tuple(tokens)
        records += recorder.end_step(drafts, sampled)
        outputs = compat.client_outputs(self.scheduler.update_from_output(plan, output))
        records.append(self._delivered(oldest.step, outputs))
        if self.config.num_speculative_tokens and not self.config.async_depth and plan.total_num_scheduled_tokens:
            self.engine.worker.pass_drafts(self.scheduler)

    def _delivered(self, step: int, outputs: Sequence[Any]) -> Delivered:
        """Return what clients get of a step's outputs."""
        shown = self.front_end.process(outputs) if self.front_end else {}
        tokens, finished, failed, behind = [], [], [], []
        for one in outputs:
            name = one.request_id
            core = list(one.new_token_ids), one.finish_reason is not None, 0
            new, is_over, more = shown.get(name, core)
            if new:
                tokens.append((name, new))
            if _failed(one):
                failed.append(name)
            elif is_over:
                finished.append(name)
            if more:
                behind.append((name, more))
        if self.sessions:
            self.sessions.note_ends(finished)
        return Delivered(step, tokens, finished, failed, behind=behind)

    def preempt(self, event: Preempt) -> list[Record]:
        """Preempt a running request between two steps; no-op for others."""
        request = self.scheduler.requests.get(event.name)
        if request is not None and request in self.scheduler.running:
            arguments: dict[str, bool] = {}
            if features.can_preempt_in_flight(self.scheduler):
                # As `schedule()` does.
                arguments = {"drop_stale_output": getattr(self.scheduler, "requires_kv_delivery", False)}
            elif any(event.name in one.plan.num_scheduled_tokens for one in self.in_flight):
                return []
            # As `reset_prefix_cache` does: the request may be resumed in the next step.
            self.scheduler.prev_step_scheduled_req_ids.discard(event.name)
            self.scheduler.running.remove(request)
            self.scheduler._preempt_request(request, time.monotonic(), **arguments)
        return []

    def abort(self, event: Abort) -> list[Record]:
        """Abort requests; their results in flight are dropped. Close a session."""
        if self.sessions:
            self.sessions.idle.pop(event.name, None)
        names = [name for name in (event.name, *event.together) if name in self.scheduler.requests]
        if names:
            self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)
            if self.front_end:
                self.front_end.abort(names)
        return []

    def dummy_run(self, event: DummyRun) -> list[Record]:
        """Take part in the other data-parallel ranks' step while idle, after dropping the rows of ended requests."""
        if self.scheduler.has_unfinished_requests() or not event.uniform_decode:
            return []
        records = self._run_until(self._is_idle, Step(), "the steps before a dummy run")
        return [*records, *self._dummy_batch(event.rows)]

    def _dummy_batch(self, rows: int) -> list[Record]:
        """Execute one dummy run beside ranks with `rows` rows."""
        recorder = self.engine.recorder
        recorder.begin_step(self.step)
        self.engine.worker.dummy_run(rows)
        self.step += 1
        return list(recorder.end_dummy_run())

    def reset_prefix_cache(self, event: ResetPrefixCache) -> list[Record]:
        """Reset the prefix cache; vLLM refuses while requests hold blocks, unless they are preempted first."""
        if options_of(self.config).reset == "direct":
            return self._reset(event)
        # As `EngineCore.pause_scheduler`, mode "keep" or "wait": requests stop where they are, or no further ones are
        # admitted; once nothing is left to do the cache is cleared.
        from vllm.v1.core.sched.interface import PauseState

        self.scheduler.set_pause_state(PauseState.PAUSED_ALL if event.preempt_running else PauseState.PAUSED_NEW)
        records = self._run_until(self._is_idle, Step(), "the pause before a reset of the prefix cache")
        records += self._reset(event)
        if has_images(self.config):
            self._reset_encoder_cache()
        self.scheduler.set_pause_state(PauseState.UNPAUSED)
        return records

    def reset_encoder_cache(self, event: ResetEncoderCache) -> list[Record]:
        """Reset the encoder cache."""
        self._reset_encoder_cache()
        return []

    def _reset_encoder_cache(self) -> None:
        """Reset the scheduler's part at once, the worker's behind the steps that it was sent."""
        self.scheduler.reset_encoder_cache()
        if self.in_flight:
            self.in_flight[-1] = self.in_flight[-1]._replace(resets_encoder=True)
        else:
            self.engine.worker.reset_encoder_cache()

    def _reset(self, event: ResetPrefixCache) -> list[Record]:
        arguments = {"reset_connector": True} if self.store.is_connected else {}
        try:
            self.scheduler.reset_prefix_cache(reset_running_requests=event.preempt_running, **arguments)
        except RuntimeError as error:
            # The running requests are preempted. vLLM names one reason, "requests waiting for remote KV transfer";
            # sessions that hold blocks without running are another.
            if not (self.store.is_connected or self.sessions) or "Failed to reset KV cache even" not in str(error):
                raise
            self.refused = str(error)
        return []

    def external_load(self, event: ExternalLoad) -> list[Record]:
        """Store the first tokens of a request outside the pool; no-op without a connector."""
        request = self.scheduler.requests.get(event.name)
        if request is not None:
            self.store.announce(event, request.all_token_ids)
        return []

    def evict(self, event: Evict) -> list[Record]:
        """Evict free blocks that have keys."""
        self.host.pool.evict_oldest(event.blocks)
        return []

    def view(self) -> View:
        """Return the host's metadata."""
        return self.host.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a page."""
        content: Content = self._layers[group, layer].read(block)
        return content

    def close(self) -> None:
        """Stop recording; the rest is garbage-collected."""
        try:
            self.store.close()
        finally:
            patches.activate(None)
