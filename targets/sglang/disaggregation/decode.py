"""The decode side of prefill/decode disaggregation (`--disaggregation-mode decode`).

The queues for preallocation, transfer and retracted requests, the pool of request rows, the batch that needs no prefill
and the backup of what is retracted are SGLang's. The prefill server and the network are stand-ins: `Receiver` is what
SGLang asks for a request's content. Some turns after SGLang has named the places for it, the content of the prompt is
there, as the reference knows it: in these places and nowhere else.

A prefill server also samples the first token of an answer. Clients have it as soon as SGLang names the places: from
then on a request has one token more than its prompt, and all but that one are loaded. SGLang's own output of it is
dropped, if it is the same.

How long a handshake and a transfer take follows from the first token of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from sglang.srt.disaggregation import decode, utils
from sglang.srt.disaggregation.base import KVPoll
from sglang.srt.disaggregation.base.conn import StateType
from sglang.srt.managers import scheduler as scheduling
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.runtime_context import get_disagg, get_parallel

from ....reference.layout import cdiv
from ....reference.tokens import EMPTY, chain, window_of
from ...base.observe import Delivered, Loaded, Planned, PlannedRow
from ...base.protocol import EngineError
from ..compat.engine import ATTENTION, STATES, SglangEngine
from ..compat.memory import ForwardStream, SchedulerStream
from ..scheduling import Skeleton

HOST, PORT = "prefill", 8998
"""Of the prefill server, by which requests name it."""
BEHIND = 0x0BAD0BAD0BAD
"""In the slots of the last page behind a prompt: a transfer copies whole pages, whatever they hold."""
HANDSHAKES = 2
"""Turns that a handshake takes are fewer than these."""
TRANSFERS = 3
"""Turns that a transfer takes at most; at least one, since the network is slower than the scheduler."""


class Places(NamedTuple):
    """What SGLang tells the prefill server of a request: pages from the token `first` on, a state slot, and where the
    first token of the answer is written. `step` and `turn`: when it did."""

    pages: tuple[int, ...]
    slots: tuple[int, ...]
    first: int
    metadata: int
    step: int
    turn: int


class Manager:
    """SGLang's connection to prefill servers. There is one, which always answers."""

    supports_host_destination = enable_deferred_decode_kv_release = False

    def __init__(self, kv_args: Any, mode: Any, server_args: Any, is_mla_backend: bool = False) -> None:
        self.kv_args = kv_args
        self.prefill_info_table: dict[str, Any] = {}
        self.side: DecodeSide

    def try_ensure_parallel_info(self, address: str) -> bool:
        """Learn what the prefill server at an address is like: it has one rank."""
        self.prefill_info_table[address] = SimpleNamespace(dp_size=1, follow_bootstrap_room=True)
        return True

    def submit_prefill_recompute(self, receiver: Receiver, payload: dict[str, Any]) -> None:
        """Let the prefill server compute the tokens of a request again."""
        receiver.tokens = tuple(payload["input_ids"])


class Receiver:
    """The transfer of one request, as SGLang polls it."""

    require_staging = supports_host_destination = abort_notified = False

    def __init__(self, mgr: Manager, bootstrap_addr: str, bootstrap_room: int) -> None:
        self.kv_mgr, self.side = mgr, mgr.side
        self.request = self.side.rooms[bootstrap_room]
        self.conclude_state: Any = None
        self.tokens: tuple[int, ...] = ()
        """What the prefill server computes in place of the prompt."""
        self.places: Places | None = None
        first = self.request.origin_input_ids[0]
        self.handshake, self.transfer = first % HANDSHAKES, 1 + first % TRANSFERS
        self._began = self.side.turn

    def init(self, prefill_dp_rank: int) -> None:
        """Begin the handshake."""
        self._began = self.side.turn

    def poll(self) -> Any:
        """Return how far the transfer is; it ends here."""
        turn = self.side.turn
        if self.conclude_state is not None:
            return self.conclude_state
        if self.places is None:
            return KVPoll.WaitingForInput if turn >= self._began + self.handshake else KVPoll.Bootstrapping
        if turn < self.places.turn + self.transfer:
            return KVPoll.Transferring
        self.side.write(self.request, self.places, self.tokens)
        self.conclude_state = KVPoll.Success
        return self.conclude_state

    def send_metadata(
        self, kv_indices: Any, aux_index: int, state_indices: Any = None, decode_prefix_len: int = 0, **more: Any
    ) -> None:
        """Tell the prefill server where the content of the request belongs."""
        assert not more, more
        kinds = self.kv_mgr.kv_args.state_types
        assert kinds == [StateType.MAMBA], kinds
        slots = tuple([int(slot) for slot in state_indices[0]])
        side = self.side
        self.places = Places(
            tuple(kv_indices.tolist()), slots, decode_prefix_len, aux_index, side.device.step, side.turn
        )
        side.begin(self.request, decode_prefix_len)

    def failure_exception(self) -> None:
        """Raise the reason why a transfer failed."""
        raise ConnectionError("the transfer was aborted")

    def abort(self) -> None:
        """Break the transfer off."""
        self.conclude_state = KVPoll.Failed

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        """Tell the prefill server that the transfer is broken off: it writes no more."""

    def clear(self) -> None:
        """Do nothing: the receiver is garbage-collected."""


_CLASSES = {utils.KVClassType.MANAGER: Manager, utils.KVClassType.RECEIVER: Receiver}


def _kv_class(backend: Any, kind: Any) -> Any:
    return _CLASSES.get(kind) or utils.get_kv_class(backend, kind)


class _Relay:
    """What SGLang keeps of the first tokens of answers for the next forward (`FutureMap`)."""

    def __init__(self, tokens: dict[int, int]) -> None:
        self.tokens = tokens

    def stash(self, rows: Any, payload: Any) -> None:
        """Note the token of each row."""
        self.tokens.update(zip(rows.tolist(), payload.bonus_tokens.tolist(), strict=True))


def _copied(value: Any) -> Any:
    """Return tensors, in tuples and lists of any depth, as copies."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make(map(_copied, value))
    return type(value)(map(_copied, value)) if isinstance(value, tuple | list) else value


class DecodeSide:
    """What a decode server has beside its scheduler: SGLang's queues, and the stand-ins for the rest."""

    def __init__(self, scheduler: DecodeSkeleton, engine: SglangEngine) -> None:
        self.scheduler: Any = scheduler
        self.engine = engine
        self.device = scheduler.device_model
        self.rooms: dict[int, Any] = {}
        """Requests by the number of their transfer."""
        self.turn = 0
        self.started: list[PlannedRow] = []
        """Rows of the requests whose load began in this turn."""
        self.answered: set[str] = set()
        """Clients that have the first token of their answer."""
        self.first: list[tuple[str, int]] = []
        """First tokens that clients got in this turn."""
        self.restored: list[Loaded] = []
        """What was loaded back in this turn for requests that were retracted."""
        scheduler.max_total_num_tokens = engine.sizes.pages * engine.sizes.page
        scheduler.schedule_stream, scheduler.forward_stream = SchedulerStream(), ForwardStream(self.device.drain)
        if scheduler.model_worker is None:
            scheduler.future_map = _Relay(self.device.relay)
        else:
            # What the first draft follows from: a tag is the draft model's hidden state.
            scheduling.ModelConfig = SimpleNamespace(from_server_args=lambda *arguments, **more: None)
            scheduling.get_draft_recurrent_hidden_state_spec_from_config = lambda *arguments: (1, torch.int64)
        decode.get_kv_class = _kv_class
        # Of one process there is no group to agree with.
        utils.dist = SimpleNamespace(get_world_size=lambda group: 1, ReduceOp=utils.dist.ReduceOp)
        group = SimpleNamespace(world_size=1, cpu_group=None)
        get_parallel().override_permanently(attn_tp_group=group, pp_rank=0, pp_size=1, dp_rank=0, attn_tp_size=1)
        scheduler.init_disaggregation()
        # Made with the first turn (`process_decode_queue`), unless there seems to be one already.
        scheduler.polling_count, scheduler.polling_interval = 0, get_disagg().disaggregation_decode_polling_interval
        self.waits, self.transfers = scheduler.disagg_decode_prealloc_queue, scheduler.disagg_decode_transfer_queue
        self.waits.kv_manager.side = self

    def attach(self, request: Any) -> None:
        """Give a request its prefill server, and watch the backup of what it loses when it is retracted."""
        request.bootstrap_host, request.bootstrap_port = HOST, PORT
        request.bootstrap_room = len(self.rooms) + 1
        self.rooms[request.bootstrap_room] = request
        request.offload_kv_cache = partial(self._back_up, request, request.offload_kv_cache)
        request.load_kv_cache = partial(self._restore, request, request.load_kv_cache)

    def queued(self) -> list[Any]:
        """Return the requests in SGLang's queues."""
        waits = [*self.waits.retracted_queue, *self.waits.held_rebootstrap_reqs]
        return waits + [one.req for one in (*self.transfers.queue, *self.waits.queue)]

    def is_busy(self) -> bool:
        """Return True if SGLang's queues hold a request that keeps the server from being idle while it is paused."""
        return bool(self.waits.retracted_queue or self.transfers.queue or self.waits.queue)

    def plan(self) -> Any:
        """Return the next batch, as in an iteration of SGLang's event loops for decode servers."""
        scheduler = self.scheduler
        self.turn += 1
        self.waits.prefetch_prefill_dp_rank_queries()
        scheduler.process_decode_queue()
        self._record()
        made = scheduler.get_next_disagg_decode_batch_to_run(running_batch=scheduler.running_batch)
        scheduler.running_batch = made.running_batch
        return made.batch_to_run

    def update(self, batch: Any, update: Callable[[Any], Any]) -> Any:
        """Prepare the next decode; SGLang itself retracts the requests that the trace names, as if memory ran out.

        If it must first wait for a step in flight, it retracts them in a later turn.
        """
        wanted = {one for one in batch.reqs if one.client_name in self.scheduler.retract_next and not one.finished()}
        if not wanted:
            self.scheduler.retract_next = []
            return update(batch)
        has_room, order = batch.check_decode_mem, batch._get_decode_retraction_order

        def has_room_without(selected_indices: Any = None) -> bool:
            rows = batch.reqs if selected_indices is None else [batch.reqs[index] for index in selected_indices]
            is_asked = len(rows) > 1 and not wanted.isdisjoint(rows)
            return not is_asked and has_room(selected_indices)

        def last(rows: Any) -> Any:
            return sorted(order(rows), key=lambda index: rows[index] in wanted)

        batch.check_decode_mem, batch._get_decode_retraction_order = has_room_without, last
        try:
            updated = update(batch)
        finally:
            del batch.check_decode_mem, batch._get_decode_retraction_order
        if updated is not None:
            self.scheduler.retract_next = []
        return updated

    def _record(self) -> None:
        """Record what is loaded since this turn: before anything else is planned, which may already be for it."""
        records, step = self.device.records, self.device.step
        records.extend(Delivered(step, [(name, [token])], []) for name, token in self.first)
        if self.started:
            records.append(Planned(step, tuple(self.started), (), 0, self.scheduler.host_view()))
        records.extend(self.restored)
        self.started, self.first, self.restored = [], [], []

    def _wait(self, name: str, hit: int, external: int, restored: bool = False) -> None:
        self.started.append(PlannedRow(name, hit + external, 0, 0, True, hit, external=external, restored=restored))

    def begin(self, request: Any, hit: int) -> None:
        """Note a transfer behind a hit: of the prompt, or also of the answer so far, which is computed again."""
        name, truth = request.client_name, self.scheduler.truths[request.client_name]
        length, is_again = truth.prompt_length, getattr(request, "pd_rebootstrap_in_progress", False)
        if is_again:
            length += len(request.output_ids)
        self._wait(name, hit, length - hit, restored=is_again)
        if name not in self.answered:
            self.answered.add(name)
            truth.reach(length + 1)
            self.scheduler.client.handed_over[name] = truth.tokens[length]
            self.first.append((name, truth.tokens[length]))

    def write(self, request: Any, places: Places, tokens: tuple[int, ...]) -> None:
        """Write what the prefill server has to the places that SGLang named, and the first token of the answer."""
        truth, name = self.scheduler.truths[request.client_name], request.client_name
        length = len(tokens) or truth.prompt_length
        truth.reach(length + 1)
        tags = truth.tags[: length + 1]
        if tokens and tokens != tuple(truth.tokens[:length]):
            tags = [EMPTY, *chain(EMPTY, tokens)]
        sizes, states = self.engine.sizes, self.engine.states
        self._check(places)
        column = places.first // sizes.page
        for page in places.pages[: cdiv(length, sizes.page) - column]:
            content = tags[1:][column * sizes.page : (column + 1) * sizes.page]
            cells = content + [BEHIND] * (sizes.page - len(content))
            start = page * sizes.page
            for layer, (keys, values) in enumerate(zip(states.keys, states.values, strict=True)):
                keys[start : start + sizes.page] = values[start : start + sizes.page] = cells
                block = sizes.first_page + page
                self.device.records.append(
                    Loaded(places.step, name, ATTENTION, layer, column, block, slots=len(content))
                )
            column += 1
        for slot in places.slots:
            for layer in range(sizes.state_layers):
                states.temporal[layer, slot] = tags[length]
                states.window[layer, slot] = window_of(tags[1:], sizes.window + 1)
                self.device.records.append(Loaded(places.step, name, STATES, layer, 0, slot, temporal=True, conv=True))
        buffers = self.scheduler.disagg_metadata_buffers
        buffers.output_ids[places.metadata, 0] = truth.tokens[length]
        buffers.bootstrap_room[places.metadata, 0] = request.bootstrap_room
        if sizes.drafts:
            from ..eagle import handed_over

            likely, guesses, hidden = handed_over(tags[length], truth.tokens[length], truth.key, sizes.breadth)
            buffers.output_topk_p[places.metadata, : sizes.breadth] = likely
            buffers.output_topk_index[places.metadata, : sizes.breadth] = guesses
            buffers.output_hidden_states[places.metadata] = hidden

    def _check(self, places: Places) -> None:
        """Raise EngineError for a place that is not there: what a network card would write to is another's memory."""
        sizes = self.engine.sizes
        pages = [page for page in places.pages if not 0 <= page < sizes.num_pages]
        slots = [slot for slot in places.slots if not 0 <= slot < sizes.num_slots]
        if pages or slots:
            raise EngineError(f"a transfer is to go to pages {pages} and state slots {slots}, which do not exist")

    def _back_up(self, request: Any, copy: Any, *arguments: Any) -> None:
        self.device.drain()  # `get_cpu_copy` synchronizes the device
        copy(*arguments)
        # Without an accelerator what is "copied" to the CPU may be the memory itself.
        request.kv.retraction_backup = _copied(request.kv.retraction_backup)

    def _restore(self, request: Any, copy: Any, *arguments: Any) -> None:
        self.device.drain()
        copy(*arguments)
        name, sizes, step = request.client_name, self.engine.sizes, self.device.step
        length = request.seqlen - 1
        self._wait(name, 0, length, restored=True)
        if self.scheduler.model_worker is not None:
            self.scheduler.model_worker.wanted.stale.add(name)  # SGLang drafts from what it got with the prompt
        locations = self.engine.rows.req_to_token[request.kv.req_pool_idx, : length : sizes.page].tolist()
        for column, location in enumerate(locations):
            block, slots = sizes.first_page + location // sizes.page, min(sizes.page, length - column * sizes.page)
            for layer in range(sizes.attention_layers):
                self.restored.append(Loaded(step, name, ATTENTION, layer, column, block, slots=slots))
        for layer in range(sizes.state_layers):
            slot = int(request.kv.mamba_pool_idx)
            self.restored.append(Loaded(step, name, STATES, layer, 0, slot, temporal=True, conv=True))


class DecodeSkeleton(Skeleton):
    """The scheduler of a decode server."""

    def __init__(self, engine: SglangEngine, *parts: Any) -> None:
        super().__init__(engine, *parts)
        self.side = DecodeSide(self, engine)

    def _add_request_to_queue(self, request: Any, is_retracted: bool = False) -> None:
        """Queue a request. Its client, or a router, has told both servers of each other."""
        if request.bootstrap_room is None:
            self.side.attach(request)
        super()._add_request_to_queue(request, is_retracted)

    def update_running_batch(self, batch: Any) -> Any:
        """Prepare the next decode; SGLang itself retracts the requests that the trace names."""
        return self.side.update(batch, partial(Scheduler.update_running_batch, self))

    def next_batch(self) -> Any:
        """Return the next batch, as the event loops get it."""
        return self.side.plan()

    def queued(self) -> list[Any]:
        """Return the requests that wait, those whose grammars are being compiled last."""
        return [*self.waiting_queue, *self.side.queued(), *self.grammar_manager.grammar_queue]

    @property
    def may_be_flushed(self) -> bool:
        """Return True if SGLang flushes the cache of a server that is paused."""
        return bool(super().may_be_flushed and not self.side.is_busy())
