"""Builds one real engine with a real model: runner, caches, captured graphs, scheduler.

`EngineCore` and `Worker` are left out as in the CPU adapter: loading checkpoints, profiling memory, warming up. Between
traces `reset` restores model, runner and every buffer to what they were when they were built (`snapshot`), fills the
caches and makes a new scheduler. `benchmarks/gpu_engines.py --proof` compares the results with those of new engines.
"""

from __future__ import annotations

import ast
import gc
import inspect
import logging
import os
import sys
import tempfile
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.v1.structured_output import StructuredOutputManager

from ...base.trace import Config
from .. import graphs
from ..counterparts.no_store import NullStore
from ..layout import layout_of
from ..models import STATE_KIND, fill_weights, mixer
from ..options import drafts_on_device, has_graphs, is_v2
from ..rows.contracts import contract
from ..shadow import patches
from ..shadow.drafter import Drafter, Speculator, device_proposer, ngram_proposer, set_draft_counts
from ..versions import compat
from ..versions.wrapping import replaced
from . import memories, replay
from .configuration import configure, is_piecewise
from .devices import BATCH_INVARIANT
from .mirror import Mirror, MirrorAttention, MirrorMamba, MirrorRecorder, RealV1, RealV2, storages
from .real_model import RealModel, watch_sampling
from .snapshot import Snapshot

_MEMORY = 1 << 30
Fill = Literal["zero", "random", "nan"]


@cache
def prepare_process(device: str) -> None:
    """Install hooks on vLLM's functions and set up a "distributed" environment of one process, once."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    if device == "interpreter":
        from .interpreted import prepare

        prepare()
    else:
        torch.accelerator.set_device_index(0)
    if device == "cuda" and os.environ.get(BATCH_INVARIANT) == "1":
        from vllm.model_executor.determinism.batch_invariant import init_batch_invariance

        init_batch_invariance()  # as vLLM's worker does
    _patch_models()
    memories.install()  # before the hooks, which see work once
    patches.install()
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    if device == "cuda":
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("cuda:0"))
    gc.collect()
    gc.freeze()


def _patch_models() -> None:
    """Leave out two checks. Qwen3-Next looks for a layer with experts, which ours lacks. The chunked kernels of a gated
    delta net refuse float32, which they can compute: with it rounding stays far below a defect."""
    from vllm.model_executor.models import qwen3_next

    for one in vars(qwen3_next).values():
        if isinstance(one, type) and "set_moe_parameters" in vars(one):
            one.set_moe_parameters = lambda self: None  # type: ignore[attr-defined]
    from vllm.third_party.flash_linear_attention.ops.chunk import chunk_gated_delta_rule

    _leave_out(inspect.unwrap(chunk_gated_delta_rule), lambda line: "!= torch.float32" in line)


def _leave_out(function: Any, unwanted: Callable[[str], bool]) -> None:
    """Leave assertions out of a function, in place, for all modules that have imported it."""
    tree = ast.parse(inspect.getsource(function))
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    asserts = [line for line in definition.body if isinstance(line, ast.Assert) and unwanted(ast.unparse(line))]
    definition.body = [line for line in definition.body if line not in asserts]
    made: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, made)
    function.__code__ = made[definition.name].__code__


@cache
def _proposer_module() -> Any:
    """Return a stand-in for the module of vLLM's n-gram proposer, which needs numba. Several engines are open at once:
    the proposers of all are `NgramProposer`s."""
    module: Any = types.ModuleType("vllm.v1.spec_decode.ngram_proposer")
    module.NgramProposer = type("NgramProposer", (), {})
    sys.modules[module.__name__] = module
    return module


class SpeculatorOn(Speculator):
    """The V2 drafter, with proposals on the runner's device."""

    def propose(self, input_batch: Any, *rest: Any, dummy_run: bool = False, **keywords: Any) -> torch.Tensor:
        """[requests, k] token ids."""
        return super().propose(input_batch, *rest, dummy_run=dummy_run, **keywords).to(self.runner.device)


class RealEngine:
    """The parts of one engine, for one trace at a time. Call `reset` before the first one, too."""

    scheduler: Any
    hasher: Any
    store = NullStore()
    """The content of a KV connector: none here."""

    def __init__(self, config: Config, device: str) -> None:
        self.config = config
        self.is_v2 = is_v2(config)
        self.is_interpreted = device == "interpreter"
        self.device = torch.device("cpu" if self.is_interpreted else "cuda:0")
        self.recorder = MirrorRecorder()
        self._cached_pages: list[torch.Tensor] = []
        self.drafter = Drafter(config.num_speculative_tokens, config.max_model_len)
        prepare_process(device)
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if self.is_v2 else "0"
        os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1" if is_piecewise(config) else "0"
        if is_piecewise(config):
            replay.watch_pieces()
        self.vllm_config = vllm_config = configure(config, self.device)
        with set_current_vllm_config(vllm_config), replaced((gc, "collect", lambda *_: 0)):
            model = self._build_model()
            self.real = RealModel(model)
            self.runner = self._build_v2(model) if self.is_v2 else self._build_v1(model)
            with compat.too_small_is_a_refusal():
                plan = compat.plan_cache(vllm_config, self.runner.get_kv_cache_spec(), _MEMORY)
            self.runner.initialize_kv_cache(plan.worker)
            if plan.worker.needs_kv_cache_zeroing and hasattr(self.runner, "_init_kv_zero_meta"):
                self.runner._init_kv_zero_meta()
            self._groups = plan.worker.kv_cache_groups
            self.layout = layout_of(config, self.is_v2, plan.worker)
            self._build_mirror(plan.worker)
            padding = graphs.Padding()
            if has_graphs(config):
                self._capture()
                graphs.widen(self.runner, self.is_v2, padding)
        self._plan = plan
        self.hash_block_size = plan.hash_block_size
        watch_sampling(self.runner, self.real, self.is_v2)
        kind = RealV2 if self.is_v2 else RealV1
        self.worker: RealV1 | RealV2 = kind(self.runner, self.recorder)
        self.worker.ranks = padding
        attention_layers = [layer for layer in self.layers if isinstance(layer, MirrorAttention)]
        mamba_block_size = vllm_config.cache_config.mamba_block_size
        self.recorder.attach(config, self.layout, self.worker, attention_layers, mamba_block_size, None)
        self._cached_pages = self._find_pages()
        self._snapshot = Snapshot([self], [cache for layer in self.layers for cache in self.caches(layer.layer_name)])

    def reset(self, fill: Fill) -> None:
        """Restore the engine to what it was when it was built. `fill` is what cache memory holds."""
        memories.activate(None)
        config, plan = self.vllm_config, self._plan
        if not self.is_interpreted:
            torch.accelerator.synchronize()
        snapshot, self.scheduler, self.hasher = self._snapshot, None, None
        snapshot.restore()
        self._snapshot = snapshot
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if self.is_v2 else "0"
        self.fill_pool(fill)
        with set_current_vllm_config(config):
            self.scheduler = config.scheduler_config.get_scheduler_cls()(
                vllm_config=config,
                kv_cache_config=plan.scheduler,
                structured_output_manager=StructuredOutputManager(config),
                block_size=plan.block_size,
                hash_block_size=plan.hash_block_size,
                log_stats=False,
            )
            caching = self.config.enable_prefix_caching
            self.hasher = compat.block_hasher(config, plan.hash_block_size) if caching else None

    def close(self) -> None:
        """Let go of model, graphs, caches and snapshot. Their parts refer to each other: the garbage collector takes
        them, once nothing of this process refers to them (`engines`)."""
        if not self.is_interpreted:
            torch.accelerator.synchronize()
        patches.activate(None)
        memories.activate(None)
        self.real.close()
        self.recorder.worker = None
        vars(self).clear()

    def _build_model(self) -> Any:
        from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
        from vllm.utils.torch_utils import set_default_torch_dtype

        model_config = self.vllm_config.model_config
        with set_default_torch_dtype(model_config.dtype), self.device:
            model = initialize_model(vllm_config=self.vllm_config)
        fill_weights(model, mixer(self.config))
        process_weights_after_loading(model, model_config, self.device)
        return model.eval()

    def _build_v2(self, model: Any) -> Any:
        from vllm.v1.worker.gpu import model_runner

        speculator = SpeculatorOn(self.drafter)
        if self.is_interpreted:
            from vllm.v1.worker.cpu.model_runner import CPUModelRunner as Runner
        else:
            Runner = model_runner.GPUModelRunner
        with replaced((model_runner, "init_speculator", lambda *_: speculator)):
            runner = Runner(self.vllm_config, self.device)
            compat.load_v2_model(runner, model)
        speculator.runner = runner
        return runner

    def _build_v1(self, model: Any) -> Any:
        from vllm.v1.worker import gpu_model_runner

        module = _proposer_module()
        proposer = type("Proposer", (ngram_proposer(self.drafter, self), module.NgramProposer), {})
        with replaced((module, "NgramProposer", proposer), *self._drafting_on_device()):
            if self.is_interpreted:
                from .interpreted import runner_v1

                runner = runner_v1(self.vllm_config, self.device, model, apart=self.config.async_depth > 0)
            else:
                runner = gpu_model_runner.GPUModelRunner(self.vllm_config, self.device)
                runner.load_model(model=model)
        set_draft_counts(runner, self.config)
        return runner

    def _drafting_on_device(self) -> Sequence[tuple[Any, str, Any]]:
        """What has to be exchanged for a drafter on the device."""
        if not drafts_on_device(self.config):
            return ()
        from vllm.v1.worker import gpu_model_runner

        proposer = device_proposer(self.drafter, self, gpu_model_runner.NgramProposerGPU)
        kernel = proposer.kernel  # type: ignore[attr-defined]

        def on_device(*arguments: Any) -> tuple[torch.Tensor, ...]:
            return tuple(one.to(self.device) for one in kernel(*arguments))

        proposer.kernel = on_device  # type: ignore[attr-defined]
        return ((gpu_model_runner, "NgramProposerGPU", proposer),)

    def _capture(self) -> None:
        if self.is_interpreted:
            graphs.capture(self.runner, self.recorder, self.is_v2)
        else:
            replay.capture(self.runner, self.real, self.recorder, self.is_v2)

    def _build_mirror(self, cache_config: Any) -> None:
        config, groups = self.config, cache_config.kv_cache_groups
        window, k = config.conv_width - 1, config.num_speculative_tokens
        name = mixer(config)
        kind = contract(STATE_KIND.get(name, name), config.conv_width)
        block_size = max(group.block_size for group in self.layout.groups if group.kind == "attention")
        words = max(2 * block_size, window + k + 1)
        slots = max(group.layers for group in self.layout.groups)
        self.recorder.storages = storages(cache_config.num_blocks, slots, words, seed=1)
        layers: dict[str, MirrorMamba | MirrorAttention] = {}
        contexts = self.vllm_config.compilation_config.static_forward_context
        for group, spec in enumerate(groups):
            for index, name in enumerate(spec.layer_names):
                place, storage = (group, index), self.recorder.storages[index]
                layer: MirrorMamba | MirrorAttention
                if self.layout.groups[group].kind == "mamba":
                    layer = MirrorMamba(name, self.recorder, storage, window, k, kind, place)
                else:
                    size = self.layout.groups[group].block_size
                    layer = MirrorAttention(name, storage, size, place, contexts[name])
                layers[name] = self.recorder.layers[place] = layer
        in_order = [layers[name] for name in contexts if name in layers]
        self.layers = in_order
        self.real.mirror = Mirror(self.recorder, in_order)

    def caches(self, layer_name: str) -> Sequence[torch.Tensor]:
        """A layer's cache tensors: one of attention, window and temporal state of a state layer."""
        cached = self.vllm_config.compilation_config.static_forward_context[layer_name].kv_cache
        return (cached,) if isinstance(cached, torch.Tensor) else tuple(cached)

    def temporal(self, group: int, layer: int) -> torch.Tensor:
        """[blocks, ...] bits of a state layer's temporal states; of a layer with windows only: of these."""
        state = self.caches(self.recorder.layers[group, layer].layer_name)[-1]
        return state.view({2: torch.int16, 4: torch.int32}[state.element_size()])

    def storages(self) -> list[torch.Tensor]:
        """The bytes of all caches, one tensor for each allocation."""
        found = {pages.untyped_storage().data_ptr(): pages.untyped_storage() for pages in self._cached_pages}
        return [torch.empty(0, dtype=torch.uint8, device=self.device).set_(one) for one in found.values()]

    def pages(self) -> Sequence[torch.Tensor]:
        """[blocks, bytes] of each layer slot: all pages, which the layers of all groups share."""
        return self._cached_pages

    def fill_pool(self, fill: Fill) -> None:
        """Fill all cache memory, the null block included."""
        for pages in self._cached_pages:
            pages[:] = fill_bytes(pages.shape[1], self.device, fill)

    def _find_pages(self) -> list[torch.Tensor]:
        found: dict[int, torch.Tensor] = {}
        for spec in self._groups:
            for name in spec.layer_names:
                parts = self.caches(name)
                first = min(parts, key=lambda part: part.data_ptr())
                raw = torch.empty(0, dtype=torch.uint8, device=self.device).set_(first.untyped_storage())
                page, word = spec.kv_cache_spec.page_size_bytes, first.element_size()
                shape, strides = (len(first), page), (first.stride(0) * word, 1)
                found[first.data_ptr()] = raw.as_strided(shape, strides, first.storage_offset() * word)
        return list(found.values())


@cache
def fill_bytes(count: int, device: torch.device, fill: Fill) -> torch.Tensor:
    """One page; random values are finite in every dtype that a cache has."""
    if fill == "zero":
        return torch.zeros(count, dtype=torch.uint8, device=device)
    if fill == "nan":
        return torch.full((count,), 0xFF, dtype=torch.uint8, device=device)  # NaN in 16, 32 and 64 bits
    generator = torch.Generator().manual_seed(1)
    # Each byte below 0x40: between 0 and about 2 in bfloat16 and float32.
    return torch.randint(0, 0x40, (count,), dtype=torch.uint8, generator=generator).to(device)
