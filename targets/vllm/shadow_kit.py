"""The kit of shadow layers: vLLM's scheduler and CPU runner around layers that compute exact tags.

`prepare_process` replaces parts of torch.cuda and of vLLM for the whole process: never in one that has a GPU.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from importlib import metadata
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
from vllm.config import VllmConfig

from ...reference.layout import Layout
from ..base.protocol import TargetError
from ..base.trace import Config, Group
from . import graphs, interpreted_kernels
from .engine import Engine, begin_process
from .options import drafts_on_device, is_v2, options_of
from .rows.contracts import contract
from .runner_adapter import RunnerAdapter, RunnerV1, RunnerV2
from .shadow import patches
from .shadow.drafter import Drafter, Speculator, device_proposer, drafting_plainly, ngram_proposer
from .shadow.layers import ShadowModel
from .shadow.recorder import Recorder
from .shadow_config import configure
from .sizes import block_size, head_size, layer_groups
from .versions import as_on_gpu, compat, old_releases
from .versions.wrapping import replaced


def shadow_engine(config: Config) -> Engine:
    """Return a new engine with shadow layers, for one trace."""
    prepare_process()
    engine = Engine(config, ShadowKit(config))
    engine.begin()
    return engine


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


def _look_for_plugins_once() -> None:
    """Let vLLM find plugins of samplers among the installed packages once, not for each engine."""
    once: Any = cache(metadata.entry_points)
    metadata.entry_points = once
    with suppress(ImportError):  # V2 has them since 0.31
        from vllm.v1.worker.gpu.sample.logits_processor import loader

        loader.entry_points = once


@cache
def prepare_process() -> None:
    """Patch vLLM and set up its "distributed" environment of one process, once. Raises TargetError without Triton."""
    from vllm.v1.sample.sampler import Sampler

    _check_triton()
    torch.set_num_threads(1)
    logging.getLogger("vllm").setLevel(logging.ERROR)
    interpreted_kernels.interpret()
    patches.install()
    graphs.provide_pool()
    # Tiles spread a copy of megabytes over a GPU; a tag is 8 bytes, and each tile is a call of the interpreter.
    as_on_gpu.copy_in_one_tile()
    as_on_gpu.sample_in_torch()
    # The only compiled operator on the greedy path of the V1 runner.
    Sampler.greedy_sample = staticmethod(partial(torch.argmax, dim=-1))
    _look_for_plugins_once()
    as_on_gpu.inspect_models_here()
    begin_process()


class ShadowKit:
    """Shadow layers for one engine, on a CPU."""

    device = torch.device("cpu")

    def __init__(self, config: Config) -> None:
        self._config = config
        self.drafter = Drafter(config.num_speculative_tokens, config.max_model_len)
        self.recorder = Recorder()
        self.layers: Sequence[Any] = ()
        self._drafting: Any = None
        """The drafter, if it has a layer."""

    def configure(self) -> VllmConfig:
        """Return vLLM's configuration of this engine."""
        return configure(self._config, is_v2(self._config))

    def model(self, vllm_config: VllmConfig) -> ShadowModel:
        """Return the model of shadow layers."""
        config = self._config
        kind = contract(
            options_of(config).mixer, config.conv_width, config.mamba_cache_mode, block_size(config, "mamba")
        )
        model = ShadowModel(vllm_config, self.recorder, config, layer_groups(config), kind, self.drafter.decoys)
        self.layers = list(model.layers)
        return model

    def speculator(self, vllm_config: VllmConfig) -> Any:
        """Return the V2 runner's drafter: our own, or vLLM's MTP around a layer with a group of its own."""
        drafting = [group for group in self._config.groups if group.draft]
        return self._mtp(vllm_config, drafting[0]) if drafting else Speculator(self.drafter)

    def _mtp(self, vllm_config: VllmConfig, form: Group) -> Any:
        from .shadow.draft_model import ShadowMtp

        words = head_size(self._config, form.block_size)
        self._drafting = ShadowMtp(vllm_config, self.device, self.drafter, self.recorder, form, words)
        return self._drafting

    def runner_v2(self) -> Any:
        """Return vLLM's runner for CPUs."""
        from vllm.v1.worker.cpu.model_runner import CPUModelRunner

        return CPUModelRunner

    def runner_v1(self, vllm_config: VllmConfig, model: Any) -> Any:
        """Return vLLM's runner for CPUs with the model."""
        from vllm.v1.worker import cpu_model_runner, gpu_model_runner

        proposer = ngram_proposer(self.drafter)
        old_releases.stand_in_for_ngram(proposer)  # the real module needs numba
        early = ((gpu_model_runner, "NgramProposer", proposer),) if hasattr(gpu_model_runner, "NgramProposer") else ()
        with replaced(
            (cpu_model_runner, "get_model", lambda **_: model),
            *early,
            *self._drafting_on_device(),
            *drafting_plainly(vllm_config, self._config),
            *as_on_gpu.apart_buffers(self._config.async_depth > 0),
        ):
            runner = old_releases.v1_runner()(vllm_config, self.device)
            runner.load_model()
        return runner

    def _drafting_on_device(self) -> Sequence[tuple[Any, str, Any]]:
        """Return the replacements that a drafter on the device needs, as for `replaced`."""
        if not drafts_on_device(self._config):
            return ()
        from vllm.v1.worker import gpu_model_runner

        proposer = device_proposer(self.drafter, gpu_model_runner.NgramProposerGPU)
        zeros = as_on_gpu.without_pinning(torch.zeros)
        return (gpu_model_runner, "NgramProposerGPU", proposer), (torch, "zeros", zeros)

    def allocating(self) -> AbstractContextManager[None]:
        """Keep vLLM from choosing a kernel for Mamba decodes: shadow layers call none."""
        return replaced(*as_on_gpu.without_replay_kernel())

    def attach(self, vllm_config: VllmConfig, layout: Layout, cache_config: Any) -> None:
        """Give each layer its place, and fill the caches with random bytes."""
        if self._drafting:
            self.layers = [*self.layers, self._drafting.layer]
        layers = vllm_config.compilation_config.static_forward_context
        for group, spec in enumerate(cache_config.kv_cache_groups):
            for index, name in enumerate(spec.layer_names):
                layers[name].attach(group, index)
        self._fill_pool()

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

    def capture(self, runner: Any) -> None:
        """Record the runner's graphs: the arguments of kernels that a replay reads again."""
        graphs.capture(runner, self.recorder, is_v2(self._config))

    def adapter(self, runner: Any) -> RunnerAdapter:
        """Return how the target speaks to the runner."""
        kind = RunnerV2 if is_v2(self._config) else RunnerV1
        return kind(runner, self.recorder)
