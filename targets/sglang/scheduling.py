"""SGLang's own `Scheduler` without its constructor, which would load a model and open sockets.

Its methods plan, admit, chunk, retract, abort and process results; its result processor finishes requests and publishes
checkpoints. Replaced are the model (`run_batch`: see device.py) and the output to the client (`stream_output`,
`send_abort_output`). Any attribute that is not set here is a feature that is switched off. SGLang's two event loops are
endless; `Skeleton.turn` is one iteration of them, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler

from ...reference.prefix_cache import Key
from ...reference.tokens import Truth
from ..base.observe import Content, View
from .compat import parts, scheduler_api
from .compat.engine import SglangEngine
from .stubs import OFF


class Client:
    """The outputs that the clients of all requests have received."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        self.outputs: list[tuple[str, list[int]]] = []
        self.ended: list[str] = []
        self.failed: list[str] = []
        self.handed_over: dict[str, int] = {}
        """First tokens that clients have from a prefill server."""
        self.scored: list[tuple[str, list[int]]] = []
        """The tokens whose log-probabilities clients received as those of their prompts, since `take_scored`."""
        self._got_logprobs: set[str] = set()
        self._over: set[str] = set()
        self._past: dict[int, Any] = {}
        """Turns that ended: a result that was in flight then may name them once more."""

    def stream_output(self, requests: Any, return_logprob: Any = False, skip: Any = None) -> None:
        """Receive the new tokens of a processed batch; an error has none."""
        for request in requests:
            name = request.client_name
            if request is skip or name in self._over or id(request) in self._past:
                continue
            failed = scheduler_api.is_error(request)
            scored = None if failed else scheduler_api.scored_tokens(request)
            if name not in self._got_logprobs and scored is not None:
                self._got_logprobs.add(name)
                self.scored.append((name, scored))
            tokens = [] if failed else self.tokens_of(request)
            if tokens and tokens[0] == self.handed_over.pop(name, None):
                self.sent[name] = 1
            if len(tokens) > self.sent.get(name, 0):
                self.outputs.append((name, tokens[self.sent.get(name, 0) :]))
                self.sent[name] = len(tokens)
            if request.finished():
                self.end(name, failed)
                self._past[id(request)] = request

    def tokens_of(self, request: Any) -> list[int]:
        """Return the output tokens of a request that its client may see."""
        return list(scheduler_api.client_tokens(request))

    def _stream_output_generation(self, requests: Any, return_logprob: Any, is_idle_batch: bool = False) -> None:
        """Receive what an idle batch delivers: nothing."""
        self.stream_output(requests)

    def begin(self, name: str) -> None:
        """Begin the next turn of a session's client."""
        self._over.discard(name)
        self.sent[name] = 0

    def end(self, name: str, failed: bool = False) -> None:
        """Note that a request has ended or was aborted, or that it failed: its client gets an error."""
        if name not in self._over:
            self._over.add(name)
            (self.failed if failed else self.ended).append(name)

    def leave(self, name: str) -> None:
        """Drop what a client that has left would receive."""
        self.outputs = [output for output in self.outputs if output[0] != name]
        self.ended, self.failed = ([one for one in ends if one != name] for ends in (self.ended, self.failed))

    def take(self) -> tuple[list[tuple[str, list[int]]], list[str], list[str]]:
        """Return what was received since the last call: tokens, ends, errors."""
        taken = self.outputs, self.ended, self.failed
        self.outputs, self.ended, self.failed = [], [], []
        return taken

    def take_scored(self) -> list[tuple[str, list[int]]]:
        """Return the log-probabilities of prompts that were received since the last call."""
        taken, self.scored = self.scored, []
        return taken


class Skeleton(Scheduler):
    """The scheduler of one engine."""

    make_client = Client
    truths: Mapping[str, Truth] = MappingProxyType({})
    """What the clients of requests know and what the model will say, by name."""
    host_view: Callable[[], View]
    """Returns the host's metadata at this moment."""

    def __init__(
        self,
        engine: SglangEngine,
        device: Any,
        max_tokens: int,
        worker: Any = None,
        grammars: Any = None,
    ) -> None:
        sizes = engine.sizes
        self.device_model = device
        self.client = self.make_client()
        self.req_to_token_pool = engine.rows
        self.token_to_kv_pool_allocator = engine.allocator
        self.tree_cache = engine.cache
        self.server_args = engine.arguments
        self.model_config = parts.model_config(sizes)
        self.page_size = sizes.page
        self.max_running_requests = sizes.rows
        self.max_prefill_tokens = sizes.prefill_tokens
        self.chunked_prefill_size = max_tokens if sizes.chunked else None
        self.enable_overlap = sizes.overlap
        self.memory, self.enable_unified_memory = engine.memory, sizes.unified != "no"
        # Only `event_loop_overlap` sets it: the loops of servers with one part of serving do not.
        self.enable_skip_finishing_decode = sizes.overlap and sizes.disaggregation == "no"
        self.is_generation = True
        self.schedule_policy = sizes.order
        self.device = "cpu"
        self.forward_ct = 0
        self.processed_tokens_counter = 0
        self.waiting_queue: list[Any] = []
        self.running_batch = ScheduleBatch(reqs=[], batch_is_full=False)
        self.last_batch: Any = None
        self.cur_batch: Any = None
        self.chunked_req: Any = None
        self.result_queue: deque[Any] = deque()
        self._is_settled = False
        self.retract_next: list[str] = []
        self.gave_way: list[str] = []
        """Requests that were queued again since the list was last cleared, without a retraction."""
        self.output_streamer = self.client
        self.stream_output = self.client.stream_output
        scheduler_api.complete(self, sizes)
        self.grammar_manager: Any = grammars(self) if grammars else OFF
        self.model_worker: Any = self._speculate(engine, worker) if sizes.drafts else None

    def _speculate(self, engine: SglangEngine, worker: Any) -> Any:
        """Set up speculation's worker, and what `Scheduler.run_batch` needs to launch it."""
        device = self.device_model
        self.pp_group = SimpleNamespace(is_last_rank=True)
        self.device_module = SimpleNamespace(Event=lambda: device.last)
        self.batch_record_buf, self.batch_record_ct = [None, None], 0
        self.future_map = self.spec_algorithm.create_future_map(self.device, engine.rows)
        # Every forward publishes its new lengths: waiting for them is waiting for the forward.
        self.future_map.publish_ready = SimpleNamespace(wait=device.drain, synchronize=device.drain, record=int)
        # The host's copy of the lengths is made as on CUDA: of all rows, on a stream of its own behind that event, and
        # read by the batch's request rows on the host.
        self.future_map.fwd_prepare_d2h_stream = SimpleNamespace(wait_event=lambda event: event.wait(), synchronize=int)
        self.future_map.new_seq_lens_cpu_pinned = torch.zeros_like(self.future_map.new_seq_lens_buf)
        self.future_map.new_seq_lens_buf.zero_()  # the length of a row that no forward has published is the same always
        return worker(engine, device, self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None if name in scheduler_api.ABSENT else OFF

    def run_batch(self, batch: Any, *arguments: Any, **keywords: Any) -> Any:
        """Pass a batch to the device; with speculation SGLang's own method does."""
        if self.model_worker is not None:
            return super().run_batch(batch, *arguments, **keywords)
        self.forward_ct += 1
        batch.forward_iter, batch.launch_ts = self.forward_ct, float(self.forward_ct)
        launched = self.device_model.launch(batch)
        if self.enable_overlap:
            self.memory.launched(self.device_model.last, batch)
        else:
            self.device_model.mask(launched)
        return launched

    def send_abort_output(self, abort: Any, request: Any) -> None:
        """Note that a request has ended outside of the output stream."""
        self.client.end(request.client_name)

    def process_batch_result(self, batch: Any, result: Any, *arguments: Any) -> None:
        """Process a result, as Scheduler.process_batch_result without its metrics."""
        scheduler_api.process_result(self, batch, result)

    def update_running_batch(self, batch: Any) -> Any:
        """Retract the requests that the trace names before the next decode is prepared, as if memory had run out."""
        wanted, self.retract_next = self.retract_next, []
        # SGLang retracts no request while the token in flight ends a row, since that frees memory.
        if wanted and not scheduler_api.finishing(self, batch):
            for name in wanted:
                batch = self._retract(batch, name)
        return super().update_running_batch(batch)

    def _retract(self, batch: Any, name: str) -> Any:
        """Run one iteration of `ScheduleBatch.retract_decode`'s loop for a given request. The last row stays."""
        if sum(not request.finished() for request in batch.reqs) < 2:
            return batch
        for index, request in enumerate(batch.reqs):
            if request.client_name == name and not request.finished():
                batch.release_req(index, len(batch.reqs) - 1, *scheduler_api.release_arguments(self))
                batch.filter_batch(keep_indices=[other for other in range(len(batch.reqs)) if other != index])
                batch.batch_is_full = False
                self._add_request_to_queue(request, is_retracted=True)
                break
        return batch

    def plan(self, peers_run: bool = False) -> Any:
        """Return the next batch, None if there is none; with work on other data-parallel ranks an idle one."""
        self.dp_attn_adapter.peers_run = peers_run
        if self.grammar_manager:
            self.grammar_manager.grammar_backend.executor.tick()
        return self.next_batch()

    def next_batch(self) -> Any:
        """Return the next batch that SGLang plans, None if there is none."""
        return scheduler_api.plan(self)

    def waits(self, batch: Any) -> bool:
        """Return True if the previous batch is processed before a planned one is launched."""
        return self.enable_overlap and scheduler_api.waits(self, batch)

    def settle(self, batch: Any) -> bool:
        """Process the previous batch if a planned one waits for that; return True if so. It is processed once."""
        if not self._is_settled and self.waits(batch):
            self._process_oldest()
            self.memory.compact()
            self._is_settled = True
        return self._is_settled

    def turn(self, batch: Any) -> None:
        """Run the rest of an iteration of `event_loop_normal` or `event_loop_overlap`, after planning."""
        self.cur_batch = batch
        if not self.enable_overlap:
            if batch:
                self.process_batch_result(batch, self.run_batch(batch))
            self.last_batch = batch
            return
        early, self._is_settled = self.settle(batch), False
        result = None
        if batch:
            result = self.run_batch(batch)
            self.result_queue.append((batch.copy(), result))
        if self.last_batch and not early:
            self._process_oldest()
        if result is not None and self.model_worker is None:
            # As `launch_batch_sample_if_needed`: what may be sampled follows from the last batch's results.
            self.device_model.mask(result)
        self.last_batch = batch

    def _process_oldest(self) -> None:
        batch, result = self.result_queue.popleft()
        self.process_batch_result(batch, result)

    def expected(self, request: Any) -> int:
        """Return the computed tokens of a request after everything in flight has run, if all its drafts are right."""
        expected: int = request.kv.kv_committed_len
        for batch, _ in self.result_queue:
            if batch.forward_mode.is_decode():
                expected += self.model_worker.draft_token_num * (request in batch.reqs)
            else:
                expected += request in (batch.decoding_reqs or ())
        return expected

    def live(self) -> list[Any]:
        """Return the unfinished requests that are not waiting, in batch order."""
        batches = [self.running_batch.reqs]
        batches += [self.last_batch.reqs] if self.last_batch else []
        batches += [[self.chunked_req]] if self.chunked_req else []
        seen: dict[int, Any] = {id(one): one for reqs in batches for one in reqs}
        waiting = {id(one) for one in self.queued()}
        return [one for key, one in seen.items() if not one.finished() and key not in waiting]

    def queued(self) -> list[Any]:
        """Return the requests that wait, those whose grammars are being compiled last."""
        return [*self.waiting_queue, *self.grammar_manager.grammar_queue]

    @property
    def busy(self) -> bool:
        """Return True if another turn has work to do."""
        return bool(
            self.queued() or self.chunked_req or self.last_batch or self.result_queue or self.running_batch.reqs
        )

    @property
    def may_be_flushed(self) -> bool:
        """Return True if SGLang flushes the cache of a server that is paused (`is_fully_idle`)."""
        holds = any(one.kv.holds_kv for one in self.waiting_queue)
        return not (holds or self.grammar_manager.grammar_queue)

    def sent(self) -> Mapping[Key, Sequence[Content]]:
        """Return what another server has received of the content of the pools."""
        return {}

    @property
    def is_sending(self) -> bool:
        """Return True if another server receives content of the pools, which is locked for that long."""
        return False

    def leftovers(self) -> dict[str, int]:
        """Return the sizes of what must be empty once no request is alive."""
        return {}
