"""A small engine: vLLM's own scheduler, cache manager and model runner on a CPU, around stand-in layers.

(This file is inlined into reproducers, behind `layers`; nothing imports it.)
"""

import pickle
import sys
import time
import types

import torch
import vllm.v1.worker.cpu.shm  # noqa: F401  vLLM's own stand-ins for CUDA events, streams and pinned memory
from vllm.config import DeviceConfig, set_current_vllm_config
from vllm.sampling_params import SamplingParams
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker import cpu_model_runner, gpu_model_runner
from vllm.v1.worker.cpu.model_runner import CPUModelRunner
from vllm.v1.worker.gpu import model_runner

from ..graphs import Padding, capture, prepare_process, widen
from ..settings import build, cache_config, model_config
from ..versions.compat import block_hasher, load_v2_model, plan_cache, prepare_zeroing, scheduler_arguments
from .config import drafts_as_eagle, prepare
from .connector import begin_worker, connect
from .layers import Model, State, fold, takes


class Engine:
    """Scheduler and model runner, step by step as `EngineCore` drives them."""

    def __init__(self, sizes, model, layers, runner, mixer, conv_width, async_depth=0, **more):
        """`layers`: (kind, tokens of a block) of each layer, from bottom to top; `model`: a hybrid model's config.json,
        whose layers are never built."""
        self.is_v2, self.k, self.async_depth = runner == "v2", sizes.num_drafts, async_depth
        self.budget, self.read_rows = sizes.max_num_batched_tokens, more["read_rows"]
        self.tokens, self.batch, self.computed, self.reads, self.attended, self.in_flight = {}, [], [], [], [], []
        self.writes, self.is_dummy, self.padding = [], False, None
        self.drafts = self.right = self.steps = self.executing = 0
        self.per_request = {}
        self.priorities = {}
        self.idle, self.stored, self.load_delays, self.failing = 0, [], {}, set()
        self.sync_load_tokens = more.get("sync_load_tokens", 0)
        folder = prepare(runner, model)
        if self.is_v2 and drafts_as_eagle():
            sizes = sizes._replace(method="mtp")
        self.config = build(
            sizes, model_config(sizes, folder), cache_config(sizes), device_config=DeviceConfig("cpu")
        )  # fmt: skip
        if policy := more.get("load_failure"):
            connect(self, self.config, policy)
        with set_current_vllm_config(self.config):
            self.build(Model(self, layers, mixer, conv_width, sizes), sizes)

    def build(self, model, sizes):
        """Build the runner with its caches, filled with random bytes, and the scheduler."""
        self.build_v2(model) if self.is_v2 else self.build_v1(model)
        runner, config = self.runner, self.config
        plan = plan_cache(config, runner.get_kv_cache_spec(), 1 << 30)
        worker = plan.worker
        if config.kv_transfer_config:
            begin_worker(config, worker)
        if sizes.ring:  # no kernel is called, and the one for CPUs cannot replay inputs
            gpu_model_runner.initialize_mamba_ssu_backend = lambda *_, **__: None
        runner.initialize_kv_cache(worker)
        prepare_zeroing(runner, worker)
        self.groups = [group.layer_names for group in worker.kv_cache_groups]
        generator = torch.Generator().manual_seed(1)
        for layer in model.layers:
            cache = layer.kv_cache if isinstance(layer.kv_cache, torch.Tensor) else layer.kv_cache[0]
            torch.empty(0, dtype=torch.uint8).set_(cache.untyped_storage()).random_(0, 256, generator=generator)
        if sizes.graph_rows:
            self.padding = Padding()
            prepare_process()
            capture(runner, self, self.is_v2)
            widen(runner, self.is_v2, self.padding)
        self.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=plan.scheduler,
            structured_output_manager=StructuredOutputManager(config),
            block_size=plan.block_size,
            log_stats=False,
            **scheduler_arguments(plan),
        )
        caching, self.hash_unit = config.cache_config.enable_prefix_caching, plan.hash_block_size
        self.hasher = block_hasher(config, plan.hash_block_size) if caching else None

    def build_v2(self, model):
        engine = self

        class Drafter:
            num_query_per_req, num_extra_query_per_req, supports_mm_inputs = 1, 0, False
            draft_logits = pcp_manager = None

            def init_cudagraph_manager(self, *_):
                pass

            def propose(self, batch, *_, dummy_run=False, **__):
                lengths = [0] * len(batch.req_ids)
                if not dummy_run:
                    lengths = engine.runner.req_states.total_len.gpu[batch.idx_mapping].tolist()
                rows = [
                    engine.propose(name, length, engine.k) for name, length in zip(batch.req_ids, lengths, strict=True)
                ]
                return torch.tensor(rows, dtype=torch.int64)

        model_runner.init_speculator = lambda *_: Drafter()
        self.runner = runner = CPUModelRunner(self.config, torch.device("cpu"))
        load_v2_model(runner, model)
        prepare = runner.prepare_inputs

        def prepare_inputs(*arguments, **keywords):
            batch = prepare(*arguments, **keywords)
            self.batch = list(batch.req_ids)
            return batch

        runner.prepare_inputs = prepare_inputs

    def build_v1(self, model):
        engine = self

        class Proposer:
            def __init__(self, *_, **__):
                pass

            def load_model(self, *_, **__):
                pass

            def propose(self, *arguments, **_):
                sampled, lengths = arguments[1:3] if isinstance(arguments[0], int) else arguments[:2]
                names = engine.runner.input_batch.req_ids
                rows = [(name, int(lengths[row]), bool(sampled[row])) for row, name in enumerate(names)]
                return [engine.propose(name, length, engine.wanted(name)) if one else [] for name, length, one in rows]

        if self.async_depth:  # host and "device" copies of buffers are apart, as on a GPU
            cpu_model_runner.CPUModelRunner._postprocess_tensors = lambda runner: None
        if self.k and self.async_depth:
            self.draft_on_device()
        module = types.ModuleType("vllm.v1.spec_decode.ngram_proposer")  # the real one needs numba
        module.NgramProposer = Proposer
        sys.modules[module.__name__] = module
        cpu_model_runner.get_model = lambda **_: model
        self.runner = cpu_model_runner.CPUModelRunner(self.config, torch.device("cpu"))
        self.runner.load_model()
        if self.k and self.async_depth:
            # vLLM reads it before the first batch that the drafter handles, and leaves it uninitialized.
            self.runner._num_valid_draft_tokens_cpu.fill_(self.k)

    def draft_on_device(self):
        """Replace the kernel of vLLM's n-gram drafter on the device, for a V1 runner that schedules ahead."""
        engine, zeros = self, torch.zeros

        class Proposer(gpu_model_runner.NgramProposerGPU):
            def __init__(self, vllm_config, device, *_):
                self.vllm_config, self.device, self.k, self.min_n = vllm_config, device, engine.k, 1

            def load_model(self, *_, **__):
                pass

            def kernel(self, lengths, *_):
                names = engine.runner.input_batch.req_ids
                rows = [engine.propose(*one, self.k) for one in zip(names, lengths.tolist(), strict=True)]
                return torch.tensor(rows, dtype=torch.int32), torch.full((len(rows),), self.k, dtype=torch.int32)

        gpu_model_runner.NgramProposerGPU = Proposer

        def unpinned(*arguments, pin_memory=False, **more):
            return zeros(*arguments, **more)

        torch.zeros = unpinned  # there is no GPU

    def note_slots(self, layer, row, size, pages, tags):
        """Record what a row attends to in an attention layer: its blocks, and the content of each position."""
        name = self.batch[row] if row < len(self.batch) else None
        self.attended.append((self.executing, name, layer, size, pages, tags))

    def begin_forward(self, computed):
        if self.is_dummy:
            self.batch = []
        elif not self.is_v2:
            self.batch = list(self.runner.input_batch.req_ids)
        self.batch, self.computed = self.batch[: len(computed)], computed

    def note(self, layer, row, block, state):
        """Record the initial state of a row in a state layer."""
        name = self.batch[row] if row < len(self.batch) else None
        self.reads.append((self.executing, name, layer, block, state))

    def note_write(self, layer, row, block):
        """Record that a row stores a state."""
        name = self.batch[row] if row < len(self.batch) else None
        self.writes.append((self.executing, name, layer, block))

    def says(self, name, position):
        """Return the token at a position of a request."""
        known = self.tokens.get(name, ())
        return known[position] if position < len(known) else 0

    def wanted(self, name):
        """Return the number of drafts in this step."""
        return min(self.per_request.get(name, (self.drafts, self.right))[0], self.k)

    def propose(self, name, length, count):
        """Return drafts, of which the first `right` are the tokens that the model will sample."""
        right = self.per_request.get(name, (self.drafts, self.right))[1]
        said = [self.says(name, length + index) for index in range(count)]
        return [one if index < right else (one - 1) % 126 + 2 for index, one in enumerate(said)]

    def state(self, name, depth):
        """Return the correct recurrent state of a request after `depth` tokens."""
        return fold(self.tokens[name][:depth])

    def initial_states(self, step, name, group):
        """Return (layer, block, state) of the initial states of a request in a step, in the layers of a group."""
        layers = self.groups[group]
        return [(one[2], one[3], one[4]) for one in self.reads if one[:2] == (step, name) and one[2] in layers]

    def slots(self, step, name, group):
        """Return (layer, position, block, content) of all that a request attends to in a step, in a group's layers."""
        for at, who, layer, size, pages, tags in self.attended:
            if (at, who) == (step, name) and layer in self.groups[group]:
                yield from ((layer, one, pages[one // size], tag) for one, tag in enumerate(tags))

    def written(self, step, name, group):
        """Return the blocks in which the layers of a group store states for a request in a step; None: for no one."""
        layers = self.groups[group]
        return [one[3] for one in self.writes if one[:2] == (step, name) and one[2] in layers]

    def published(self, group, block, name, depth):
        """Return the states of a group in a block, none unless its key is that of a request's first `depth` tokens."""
        key, _ = self.key(block)
        hashes = self.request(name, self.tokens[name][: depth + 1], 1, session=False).block_hashes
        # The key of a block that is larger than the unit of hashes ends with that of its last unit.
        if key is None or not kv_cache_utils.get_block_hash(key).endswith(hashes[depth // self.hash_unit - 1]):
            return []
        layers = self.config.compilation_config.static_forward_context
        return [int(layers[name].states[block]) for name in self.groups[group]]

    def describe(self, state):
        """Describe a state in words."""
        for name, tokens in self.tokens.items():
            for depth in range(1, len(tokens) + 1):
                if fold(tokens[:depth]) == state:
                    return f"the state of {name} after {depth} tokens"
        return f"content of no known prefix ({state:#x})"

    def add(self, name, prompt, says, new_tokens, stop=None, priority=0, session=False):
        """Add a request; the model will sample the tokens `says`. A session waits for its next turn when it ends.

        `stop` is its stop token."""
        self.tokens[name] = prompt + says
        self.priorities[name] = priority
        self.submit(name, prompt, new_tokens, session, stop)

    def resume(self, name, kept, prompt, says, new_tokens, stop=None):
        """Send the next turn of a session: `prompt` follows the first `kept` tokens. Nothing unless it is idle."""
        request = self.scheduler.requests.get(name)
        if request is None or request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
            return
        assert request.num_tokens - 1 == kept, "vLLM drops the token that was sampled last"
        self.tokens[name] = self.tokens[name][:kept] + prompt + says
        self.submit(name, prompt, new_tokens, True, stop)

    def submit(self, name, prompt, new_tokens, session, stop):
        self.scheduler.add_request(self.request(name, prompt, new_tokens, session, stop))

    def request(self, name, prompt, new_tokens, session, stop=None):
        wanted = {"pooling_params": None, "block_hasher": self.hasher, "eos_token_id": None}
        wanted |= {"priority": self.priorities[name], "arrival_time": float(len(self.tokens))}
        wanted |= {"resumable": True} if session else {}
        known = {key: value for key, value in wanted.items() if takes(Request.__init__, key)}
        stops = [stop] if stop else None
        sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True, stop_token_ids=stops)
        return Request(name, prompt, sampling, **known)

    def begin_replay(self, adapters):
        """Do nothing: a captured graph is about to be replayed."""

    def step(self, budget=None, drafts=0, right=0, per_request=(), pad_to=0):
        """Schedule and, when due, execute and update. The first `right` of `drafts` proposed tokens are right.

        `pad_to`: rows of the largest batch among data-parallel ranks, to whose graph this one is padded.
        """
        self.drafts, self.right, self.per_request = drafts, right, dict(per_request)
        self.scheduler.max_num_scheduled_tokens = min(budget or self.budget, self.budget)
        plan = self.scheduler.schedule()
        # With asynchronous scheduling the worker is another process and gets a copy.
        sent = pickle.loads(pickle.dumps(plan)) if self.async_depth else plan
        self.in_flight.append((self.steps, plan, sent, pad_to))
        self.steps += 1
        self.idle = 0 if plan.num_scheduled_tokens else self.idle + 1
        while len(self.in_flight) > (self.async_depth if plan.total_num_scheduled_tokens else 0):
            self.complete()

    def complete(self):
        """Execute the oldest scheduled step and pass its results to the scheduler."""
        self.executing, plan, sent, pad_to = self.in_flight.pop(0)
        if self.padding:
            self.padding.begin(pad_to)
        output = self.runner.execute_model(sent)
        if output is None:
            output = self.runner.sample_tokens(None)
        output = output.get_output() if hasattr(output, "get_output") else output
        self.scheduler.update_from_output(plan, output)
        if self.k and not self.async_depth and plan.total_num_scheduled_tokens:
            proposals = self.runner.take_draft_token_ids()
            if proposals is not None:
                self.scheduler.update_draft_token_ids(proposals)

    def preempt(self, name):
        """Preempt a request between two steps."""
        scheduler, request = self.scheduler, self.scheduler.requests.get(name)
        if request in scheduler.running:
            scheduler.prev_step_scheduled_req_ids.discard(name)  # as `reset_prefix_cache` does
            scheduler.running.remove(request)
            more = {"drop_stale_output": getattr(scheduler, "requires_kv_delivery", False)}
            known = takes(scheduler._preempt_request, "drop_stale_output")
            scheduler._preempt_request(request, time.monotonic(), **(more if known else {}))

    def abort(self, name):
        """Abort a request."""
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def dummy_run(self, rows=0):
        """Run a step without requests, as on an idle data-parallel rank beside ones with `rows` rows."""
        while self.scheduler.has_requests():
            self.step()
        query = getattr(self.runner, "uniform_decode_query_len", 0) or getattr(self.runner, "decode_query_len", 1)
        self.executing, self.is_dummy = self.steps, True
        if self.padding:
            self.padding.begin(rows)
        self.runner._dummy_run(query, uniform_decode=True)
        self.is_dummy, self.steps = False, self.steps + 1

    def reset_prefix_cache(self, preempt_running):
        more = {"reset_connector": True} if self.config.kv_transfer_config else {}
        self.scheduler.reset_prefix_cache(reset_running_requests=preempt_running, **more)

    def store(self, name, length, delay=0, fails=False):
        """Store the first tokens of a request outside the pool, as another engine would have computed them.

        A load takes `delay` more steps; with `fails` the request's first one fails.
        """
        self.stored.append(self.tokens[name][:length])
        self.load_delays[name] = delay
        if fails:
            self.failing.add(name)

    def write_states(self, name, depth, blocks):
        """Write the state of a request after `depth` tokens into a block of each group of state layers."""
        for names, block in zip(self.groups, blocks, strict=True):
            for layer in (self.config.compilation_config.static_forward_context[one] for one in names):
                if isinstance(layer, State):
                    layer.states[block] = self.state(name, depth)

    def unfinished(self):
        """Return the names of the requests that have not ended."""
        return [name for name in self.tokens if name in self.scheduler.requests]

    def key(self, block):
        """Return a block's key, None without one, and the number of references to the block."""
        one = self.scheduler.kv_cache_manager.block_pool.blocks[block]
        return one.block_hash, one.ref_cnt

    def evict(self, count):
        """Evict the keys of up to `count` free blocks, oldest first."""
        pool = self.scheduler.kv_cache_manager.block_pool
        free = [block for block in pool.free_block_queue.get_all_free_blocks() if block.block_hash is not None]
        pool.evict_blocks({block.block_id for block in free[:count]})
