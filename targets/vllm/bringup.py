"""Builds one real engine: runner with shadow model, caches, captured graphs, scheduler.

The rest of a GPU worker's start-up (loading weights, profiling memory) is left out; the steps of `EngineCore` between
runner and scheduler are done here in the same order.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.v1.structured_output import StructuredOutputManager

from ..base.protocol import TargetError
from ..base.trace import Config, Group
from . import graphs, kernels
from .configuration import configure
from .counterparts.no_store import NullStore
from .layout import layout_of
from .options import (
    drafts_on_device,
    has_adapters,
    has_graphs,
    has_peer,
    is_v2,
    options_of,
    reports_all,
    stages,
    windows_are_last,
)
from .rows.contracts import contract
from .runner_adapter import RunnerAdapter, RunnerV1, RunnerV2
from .shadow import patches
from .shadow.drafter import Drafter, Speculator, device_proposer, ngram_proposer, set_draft_counts
from .shadow.layers import ShadowAttention, ShadowModel
from .shadow.recorder import Recorder
from .sizes import block_size, head_size, layer_groups
from .versions import as_on_gpu, compat, features, old_releases
from .versions.wrapping import replaced

_CPU = torch.device("cpu")
_MEMORY = 1 << 30


def _check_triton() -> None:
    """Raise TargetError where vLLM has disabled Triton: its placeholders crash in every trace, in vLLM's own code."""
    from vllm.triton_utils import HAS_TRITON

    if HAS_TRITON:
        return
    try:
        number = version("vllm")
        why = f"its version {number} is that of a CPU build" if "cpu" in number else "vllm/triton_utils/importing.py"
    except PackageNotFoundError:
        why = "its package metadata (vllm-*.dist-info) is missing"
    if find_spec("triton") is None:
        why = f"there is no triton for {sys.executable}"
    raise TargetError(f"vLLM cannot be driven here: it has disabled Triton ({why})")


@cache
def prepare_process() -> None:
    """Patch vLLM and set up its "distributed" environment of one process, once. Raises TargetError without Triton."""
    from vllm.v1.sample.sampler import Sampler

    _check_triton()
    torch.set_num_threads(1)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    kernels.install()
    patches.install()
    graphs.prepare_process()
    # Tiles spread a copy of megabytes over a GPU; a tag is 8 bytes, and each tile is a call of the interpreter.
    as_on_gpu.copy_in_one_tile()
    as_on_gpu.sample_in_torch()
    # The only compiled operator on the greedy path of the V1 runner.
    Sampler.greedy_sample = staticmethod(partial(torch.argmax, dim=-1))
    # The rendezvous has one participant. Its file is deleted now, since a worker may be killed at any time.
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    # Modules live as long as the process: garbage collections need not scan them.
    gc.collect()
    gc.freeze()


def kv_connector() -> Any:
    """Return the module of the connector, which only releases with its API can import."""
    from .counterparts import kv_connector as module

    return module


class Engine:
    """The parts of one engine, for one trace."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.is_v2 = is_v2(config)
        self.recorder = Recorder()
        self._draft_layers: list[Any] = []
        self.drafter = Drafter(config.num_speculative_tokens, config.max_model_len)
        prepare_process()
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if self.is_v2 else "0"
        compat.lay_out_windows("DS" if windows_are_last(config) else "SD")
        self.vllm_config = vllm_config = configure(config, self.is_v2)
        self.store = self._connect()
        # vLLM collects garbage to measure the memory of a loaded model, which would take most of the start-up time.
        with (
            set_current_vllm_config(vllm_config),
            replaced((gc, "collect", lambda *_: 0)),
            self._as_one_of_two(),
        ):
            model = self._build_model()
            self.runner = self._build_v2(model) if self.is_v2 else self._build_v1(model)
            if has_adapters(config) and has_graphs(config):
                self._capture_with_adapters()
            with compat.too_small_is_a_refusal():
                plan = compat.plan_cache(vllm_config, self.runner.get_kv_cache_spec(), _MEMORY)
            if features.has_connectors():
                kv_connector().begin_worker(vllm_config, plan.worker)
            with replaced(*as_on_gpu.without_replay_kernel()):
                self.runner.initialize_kv_cache(plan.worker)
            if options_of(config).metadata == "shared":
                as_on_gpu.share_state_indices(self.runner)
            self.cache_config = plan.worker
            compat.prepare_zeroing(self.runner, plan.worker)
            self.layers = [*model.layers, *self._draft_layers]
            self._attach_layers(plan.worker)
            self._fill_pool()
            ranks = self._other_ranks()
            ranks.begin_capture()
            if has_graphs(config):
                graphs.capture(self.runner, self.recorder, self.is_v2)
                if isinstance(ranks, graphs.Padding):
                    graphs.widen(self.runner, self.is_v2, ranks)
            self.scheduler = self._build_scheduler(plan)
            caching = config.enable_prefix_caching
            self.hasher = compat.block_hasher(vllm_config, plan.hash_block_size) if caching else None
        self.hash_block_size = plan.hash_block_size
        self.layout = layout_of(config, self.is_v2, plan.worker)
        self.store.attach(self.layout, self.layers)
        kind = RunnerV2 if self.is_v2 else RunnerV1
        self.worker: RunnerAdapter = kind(self.runner, self.recorder)
        self.worker.ranks = ranks
        self.inputs = self.worker.inputs = self._take_inputs()
        attention_layers = [layer for layer in self.layers if isinstance(layer, ShadowAttention)]
        mamba_block_size = vllm_config.cache_config.mamba_block_size
        self.recorder.attach(config, self.layout, self.worker, attention_layers, mamba_block_size, self.inputs)

    def _build_scheduler(self, plan: Any) -> Any:
        config, vllm_config = self.config, self.vllm_config
        # The one worker here is the last stage of a pipeline; the others would only pass activations on.
        parallel = vllm_config.parallel_config
        with replaced((parallel, "pipeline_parallel_size", stages(config))):
            return vllm_config.scheduler_config.get_scheduler_cls()(
                vllm_config=vllm_config,
                kv_cache_config=plan.scheduler,
                structured_output_manager=StructuredOutputManager(vllm_config),
                block_size=plan.block_size,
                log_stats=reports_all(config),
                **({"include_finished_set": True} if reports_all(config) else {}),
                **compat.scheduler_arguments(plan),
            )

    def _capture_with_adapters(self) -> None:
        from .counterparts.inputs import capture_with_adapters

        capture_with_adapters(self.vllm_config, self.runner)

    def _take_inputs(self) -> Any:
        """Return what token ids stand for, None if for themselves."""
        if options_of(self.config).inputs == "tokens":
            return None
        from .counterparts.inputs import Inputs

        inputs = Inputs(self.config, self.drafter.truths)
        inputs.prepare(self.scheduler, self.runner)
        return inputs

    def _connect(self) -> Any:
        if not features.has_connectors():
            return NullStore()
        return kv_connector().connect(self.vllm_config, self.config, self.recorder, self.drafter.truths)

    def _as_one_of_two(self) -> AbstractContextManager[None]:
        if not has_peer(self.config):
            return nullcontext()
        from .counterparts.peer import one_of_two

        return one_of_two(self.vllm_config)

    def _other_ranks(self) -> graphs.Ranks:
        """Return the other data-parallel ranks."""
        if not has_peer(self.config):
            return graphs.Padding()
        from .counterparts.peer import Peer

        return Peer(self.runner, self.is_v2, graphs.query_length(self.runner))

    def _build_model(self) -> ShadowModel:
        return ShadowModel(
            self.vllm_config,
            self.recorder,
            self.config,
            layer_groups(self.config),
            contract(
                options_of(self.config).mixer,
                self.config.conv_width,
                self.config.mamba_cache_mode,
                block_size(self.config, "mamba"),
            ),
        )

    def _build_v2(self, model: Any) -> Any:
        from vllm.v1.worker.cpu.model_runner import CPUModelRunner
        from vllm.v1.worker.gpu import model_runner

        drafting = [group for group in self.config.groups if group.draft]
        speculator: Any = self._build_mtp(drafting[0]) if drafting else Speculator(self.drafter)
        with replaced((model_runner, "init_speculator", lambda *_: speculator)):
            runner = CPUModelRunner(self.vllm_config, _CPU)
            compat.load_v2_model(runner, model)
        speculator.runner = runner
        self._draft_layers = [speculator.layer] if drafting else []
        return runner

    def _build_mtp(self, form: Group) -> Any:
        """Return vLLM's own MTP speculator, whose layer has a group of its own."""
        from .shadow.draft_model import ShadowMtp

        words = head_size(self.config, form.block_size)
        return ShadowMtp(self.vllm_config, _CPU, self.drafter, self.recorder, form, words)

    def _build_v1(self, model: Any) -> Any:
        from vllm.v1.worker import cpu_model_runner, gpu_model_runner

        proposer = ngram_proposer(self.drafter, self)
        old_releases.stand_in_for_ngram(proposer)  # the real module needs numba
        early = ((gpu_model_runner, "NgramProposer", proposer),) if hasattr(gpu_model_runner, "NgramProposer") else ()
        with replaced(
            (cpu_model_runner, "get_model", lambda **_: model),
            *early,
            *self._drafting_on_device(),
            *as_on_gpu.apart_buffers(self.config.async_depth > 0),
        ):
            runner = old_releases.v1_runner()(self.vllm_config, _CPU)
            runner.load_model()
        set_draft_counts(runner, self.config)
        return runner

    def _drafting_on_device(self) -> Sequence[tuple[Any, str, Any]]:
        """Return the replacements that a drafter on the device needs, as for `replaced`."""
        if not drafts_on_device(self.config):
            return ()
        from vllm.v1.worker import gpu_model_runner

        proposer = device_proposer(self.drafter, self, gpu_model_runner.NgramProposerGPU)
        zeros = as_on_gpu.without_pinning(torch.zeros)
        return (gpu_model_runner, "NgramProposerGPU", proposer), (torch, "zeros", zeros)

    def _attach_layers(self, cache_config: Any) -> None:
        layers = self.vllm_config.compilation_config.static_forward_context
        for group, spec in enumerate(cache_config.kv_cache_groups):
            for index, name in enumerate(spec.layer_names):
                layers[name].attach(group, index)

    def _fill_pool(self) -> None:
        """Fill the caches with random bytes, the same in every run: zeroed memory hides bugs."""
        generator = torch.Generator().manual_seed(1)
        filled: set[int] = set()
        for layer in self.layers:
            cache = compat.bound_cache(layer.kv_cache)
            storage = (cache if isinstance(cache, torch.Tensor) else cache[0]).untyped_storage()
            if storage.data_ptr() not in filled:
                filled.add(storage.data_ptr())
                torch.empty(0, dtype=torch.uint8).set_(storage).random_(0, 256, generator=generator)
