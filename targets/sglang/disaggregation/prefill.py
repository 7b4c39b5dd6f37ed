"""The scheduler of a prefill server (`--disaggregation-mode prefill`).

SGLang's own queues and methods (`PrefillBootstrapQueue`, `SchedulerDisaggregationPrefillMixin`): requests wait until
their decode server has answered, are computed up to their first token, and hold what they have until it was sent.
Only the network is a stand-in (sender.py). A client gets the first token from the decode server, which has it from the
metadata of the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.disaggregation import prefill
from sglang.srt.disaggregation.base.conn import KVArgs
from sglang.srt.disaggregation.utils import KVClassType
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.observability.scheduler_stage_metrics import SchedulerStageMetricsRecorder
from sglang.srt.runtime_context import get_parallel

from ....reference.prefix_cache import Key
from ...base.observe import Content
from ..compat.engine import ATTENTION, SglangEngine
from ..scheduling import Client, Skeleton
from ..stubs import OFF
from .sender import Manager, Peer, Sender, pace_of

DECODE_SERVER = "decode"
CLASSES = {KVClassType.KVARGS: KVArgs, KVClassType.MANAGER: Manager, KVClassType.SENDER: Sender}


class _Alone:
    """The group of a rank that is the only one."""

    @staticmethod
    def size() -> int:
        """Return the number of its ranks."""
        return 1


class _Known(SimpleNamespace):
    """A namespace whose other attributes are switched off."""

    def __getattr__(self, name: str) -> Any:
        return OFF


class Mark:
    """An event on the stream of forwards (`torch.cuda.Event`): over when what was launched before it has run."""

    launch: Any = None

    def record(self, stream: Any) -> None:
        """Note the last launch."""
        self.launch = stream.last

    def query(self) -> bool:
        """Return True if it has run."""
        return self.launch is None or bool(self.launch.query())


class _Torch:
    """Torch with events of our device."""

    cuda = SimpleNamespace(Event=Mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class PrefillClient(Client):
    """The clients of a prefill server and of the decode servers behind it."""

    def tokens_of(self, request: Any) -> list[int]:
        """Return the first token as the decode server has it."""
        token = request.disagg_kv_sender.token if request.disagg_kv_sender is not None else None
        return [] if token is None else [token]


class PrefillSkeleton(Skeleton):
    """The scheduler of a prefill server."""

    make_client = PrefillClient

    def __init__(self, engine: SglangEngine, *parts: Any) -> None:
        super().__init__(engine, *parts)
        prefill.get_kv_class = lambda backend, kind: CLASSES[kind]
        prefill.torch = _Torch()
        sizes, device = engine.sizes, self.device_model
        get_parallel().override_permanently(tp_rank=0, pp_rank=0, pp_size=1, dp_rank=0)
        self.attn_tp_cpu_group = self.attn_cp_cpu_group = _Alone()
        self.forward_stream, self.sliding_window_size = device, max(sizes.sliding - 1, 0) or None
        self.kv_shard_widening, self.kv_checksum_computer = 1, None
        self.enable_continuous_input_polling = False
        self.scheduler_stage_metrics = SchedulerStageMetricsRecorder(enabled=False)
        runner = _Known(
            effective_logical_max_total_num_tokens=sizes.pages * sizes.page,
            kv_cache_dtype_str="int64",
        )
        self.tp_worker = _Known(model_runner=runner)
        attention = [number for number, (group, _) in enumerate(engine.layers) if group == ATTENTION]
        self.model_config.hf_text_config.full_attention_layer_ids = attention
        self.model_config.num_hidden_layers = len(engine.layers)
        Scheduler.init_disaggregation(self)
        self.manager: Manager = self.disagg_prefill_bootstrap_queue.kv_manager
        self.manager.engine = engine
        self._rooms = 0

    def _add_request_to_queue(self, request: Any, is_retracted: bool = False) -> None:
        """Queue a request. Its client, or a router, has told both servers of each other."""
        if request.bootstrap_room is None:
            self._rooms += 1
            request.bootstrap_host, request.bootstrap_room = DECODE_SERVER, self._rooms
        name, truth = request.client_name, self.truths[request.client_name]
        self.manager.peers[request.bootstrap_room] = Peer(name, truth, pace_of(name, truth))
        super()._add_request_to_queue(request, is_retracted)

    def abort_request(self, message: Any) -> None:
        """Abort a request, or let its decode server, which the client has told, end the transfer."""
        for sender in list(self.manager.senders):
            if sender.pace.withdraws and f"{sender.name}." == message.rid:
                sender.withdraw()
                return
        super().abort_request(message)

    def optimistic_release_and_requeue(self, req: Any) -> None:
        """Queue a request again whose decode server has not answered. A planning that does it may admit it at once."""
        self.gave_way.append(req.client_name)
        super().optimistic_release_and_requeue(req)

    def next_batch(self) -> Any:
        """Return the next batch, as the event loops get it."""
        self.waiting_queue.extend(self.disagg_prefill_bootstrap_queue.pop_bootstrapped())
        plan = self.get_next_disagg_prefill_batch_to_run(running_batch=self.running_batch, last_batch=self.last_batch)
        self.running_batch = plan.running_batch
        return plan.batch_to_run

    def run_batch(self, batch: Any, *arguments: Any, **keywords: Any) -> Any:
        """Launch a batch; before that, what its requests have from the cache is sent (`Scheduler.run_batch`)."""
        load_pending = batch.hicache_consumer_index >= 0
        for request in batch.reqs:
            self.maybe_send_cached_prefix_chunk(request, allow_send=not load_pending)
        return super().run_batch(batch, *arguments, **keywords)

    def process_batch_result(self, batch: Any, result: Any, *arguments: Any) -> None:
        """Process a result, as `Scheduler.process_batch_result` without its metrics."""
        if not batch.forward_mode.is_extend():
            super().process_batch_result(batch, result, *arguments)
            return
        self.process_batch_result_disagg_prefill(batch, result)
        self.tree_cache.flush_pending_backups()
        self._maybe_clear_mm_inputs(batch)

    def waits(self, batch: Any) -> bool:
        """Return False: the loop of a prefill server asks no batch whether it may overlap with the one before it."""
        return False

    def turn(self, batch: Any) -> None:
        """Run the rest of an iteration of `event_loop_normal_disagg_prefill`, or of `..._overlap_...`, after
        planning. Then the network goes on."""
        self.cur_batch = batch
        result = self.run_batch(batch) if batch else None
        if batch and self.enable_overlap:
            self.result_queue.append((batch.copy(), result))
        if self.enable_overlap and self.last_batch:
            self._process_oldest()
        elif batch and not self.enable_overlap:
            self.process_batch_result(batch, result)
        self.process_disagg_prefill_inflight_queue()
        if result is not None and self.enable_overlap:
            self.device_model.mask(result)
        self.last_batch = batch
        self.manager.tick()

    def live(self) -> list[Any]:
        """Return the unfinished requests that are not waiting; those that are being sent last."""
        live = super().live()
        return live + [one for one in self.disagg_prefill_inflight_queue if one not in live]

    def queued(self) -> list[Any]:
        """Return the requests that wait."""
        return [*super().queued(), *self.disagg_prefill_bootstrap_queue.queue]

    @property
    def busy(self) -> bool:
        """Return True if another turn has work to do."""
        return bool(super().busy or self.disagg_prefill_inflight_queue or self.manager.arrived)

    @property
    def may_be_flushed(self) -> bool:
        """Return True if SGLang flushes the cache of a server that is paused."""
        queues = self.disagg_prefill_inflight_queue or self.disagg_prefill_bootstrap_queue.queue
        return bool(super().may_be_flushed and not queues and self.chunked_req is None)

    def sent(self) -> Mapping[Key, Sequence[Content]]:
        """Return what decode servers have received."""
        return self.manager.received()

    @property
    def is_sending(self) -> bool:
        """Return True if something is being sent."""
        return any(sender.is_sending for sender in self.manager.senders)

    def leftovers(self) -> dict[str, int]:
        """Return the sizes of what must be empty once no request is alive."""
        buffers = self.req_to_metadata_buffer_idx_allocator
        return {
            "metadata buffers": buffers.size - buffers.available_size(),
            "requests with a part sent": len(self.disagg_prefill_pending_chunk_rids),
            "connections": len(self.manager.senders),
        }
