"""The kit of a real model: vLLM's own layers, kernels and graphs, on a GPU or in Triton's interpreter.

Shadow layers run beside them on the host (`mirror`).
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import types
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_dp_group
from vllm.ir import set_default_torch_wrap

from ....reference.layout import Layout
from ...base.trace import Config, Group
from .. import graphs
from ..engine import begin_process
from ..models import STATE_KIND, fill_weights, mixer
from ..options import drafts_on_device, has_images, is_jittered, is_v2, ring_entries
from ..rows.contracts import contract
from ..shadow import patches
from ..shadow.drafter import Drafter, Speculator, device_proposer, drafting_plainly, ngram_proposer
from ..versions.wrapping import replaced
from . import adapters, images, jitter, memories, replay
from .mirror import Mirror, MirrorAttention, MirrorMamba, MirrorRecorder, RealV1, RealV2, storages
from .placement import own_index
from .real_config import configure, is_piecewise
from .real_model import RealModel
from .source_edits import leave_out
from .stand_ins import BATCH_INVARIANT


@cache
def prepare_process(device: str) -> None:
    """Install hooks on vLLM's functions and set up a "distributed" environment of one process, once."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    if device == "interpreter":
        from .interpreted import prepare

        prepare()
    else:
        torch.accelerator.set_device_index(own_index())
        jitter.install()
    if device == "cuda" and os.environ.get(BATCH_INVARIANT) == "1":
        from vllm.model_executor.determinism.batch_invariant import init_batch_invariance

        init_batch_invariance()  # as vLLM's worker does
    _patch_models()
    memories.install()  # before the hooks, which see work once
    patches.install()
    begin_process()
    # Data-parallel ranks exchange the sizes of their batches on the device of their group: vLLM takes the first GPU.
    get_dp_group().device = torch.device("cpu") if device == "interpreter" else torch.device("cuda", own_index())
    if device == "cuda":
        from vllm.v1.worker.workspace import init_workspace_manager

        init_workspace_manager(torch.device("cuda", own_index()))


def _patch_models() -> None:
    """Leave out two checks. Qwen3-Next looks for a layer with experts, which ours lacks. The chunked kernels of a gated
    delta net refuse float32, which they can compute: with it rounding stays far below a defect."""
    from vllm.model_executor.models import qwen3_next

    for one in vars(qwen3_next).values():
        if isinstance(one, type) and "set_moe_parameters" in vars(one):
            one.set_moe_parameters = lambda self: None  # type: ignore[attr-defined]
    from vllm.third_party.flash_linear_attention.ops.chunk import chunk_gated_delta_rule

    leave_out(inspect.unwrap(chunk_gated_delta_rule), lambda line: "!= torch.float32" in line)


def _strip_loaders(model: torch.nn.Module) -> None:
    """Make plain parameters of those that know how to load a checkpoint: each use of one of these is a call of Python,
    in all a tenth of an eager forward's time."""
    for module in model.modules():
        for name, one in module._parameters.items():
            if one is not None and type(one) is not torch.nn.Parameter:
                module._parameters[name] = torch.nn.Parameter(one.data, requires_grad=False)


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
        proposed = super().propose(input_batch, *rest, dummy_run=dummy_run, **keywords)
        jitter.behind_read()
        return proposed.to(self.drafter.runner.device)


class RealKit:
    """A model of vLLM's own for one engine. `real` is that model, wrapped, once it is built."""

    real: RealModel

    def __init__(self, config: Config, device: str) -> None:
        self._config = config
        self.drafter = Drafter(config.num_speculative_tokens, config.max_model_len)
        self.is_interpreted = device == "interpreter"
        self.device = torch.device("cpu") if self.is_interpreted else torch.device("cuda", own_index())
        self.recorder = MirrorRecorder()
        self.layers: Sequence[MirrorMamba | MirrorAttention] = ()
        self.jitter = jitter.Jitter() if is_jittered(config) else None
        self.head: Any = None
        """The speculator with a real MTP head, if the drafter is one (`draft_head`)."""

    def configure(self) -> VllmConfig:
        """Return vLLM's configuration of this engine."""
        os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1" if is_piecewise(self._config) else "0"
        if is_piecewise(self._config):
            replay.watch_pieces()
        if has_images(self._config):
            images.prepare()
        made = configure(self._config, self.device)
        set_default_torch_wrap(made.compilation_config.ir_enable_torch_wrap)  # as vLLM's worker does
        return made

    def model(self, vllm_config: VllmConfig) -> Any:
        """Return the model, with weights that we generate."""
        if vllm_config.lora_config:
            adapters.prepare_kernels()
        model = self._initialized(vllm_config, vllm_config.model_config)
        self.real = RealModel(model, self._token_ids)
        return model

    def _token_ids(self, count: int) -> torch.Tensor:
        """The token ids of the batch in the buffer of the runner, of which a model with images is given embeddings."""
        runner = self.drafter.runner
        ids: torch.Tensor = runner.input_buffers.input_ids if is_v2(self._config) else runner.input_ids.gpu
        return ids[:count]

    def _initialized(self, vllm_config: VllmConfig, model_config: Any) -> Any:
        """Return a model of vLLM's with weights that we generate, in place of `get_model`."""
        from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
        from vllm.utils.torch_utils import set_default_torch_dtype

        with set_default_torch_dtype(model_config.dtype), self.device:
            model = initialize_model(vllm_config=vllm_config, model_config=model_config)
        fill_weights(model, mixer(self._config), apart=model_config is not vllm_config.model_config)
        process_weights_after_loading(model, model_config, self.device)
        _strip_loaders(model)
        return model.eval()

    def speculator(self, vllm_config: VllmConfig) -> Any:
        """Return the V2 runner's drafter: our own, or vLLM's MTP head in a group of its own."""
        if not any(group.draft for group in self._config.groups):
            return SpeculatorOn(self.drafter)
        from .draft_head import RealMtp

        self.head = RealMtp(vllm_config, self.device, self.drafter, self.recorder, self._initialized)
        return self.head

    def runner_v2(self) -> Any:
        """Return vLLM's runner for the device."""
        if self.is_interpreted:
            from vllm.v1.worker.cpu.model_runner import CPUModelRunner

            return CPUModelRunner
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner

        return GPUModelRunner

    def runner_v1(self, vllm_config: VllmConfig, model: Any) -> Any:
        """Return vLLM's runner for the device, with the model."""
        from vllm.v1.worker import gpu_model_runner

        module = _proposer_module()
        proposer = type("Proposer", (ngram_proposer(self.drafter), module.NgramProposer), {})
        plainly = drafting_plainly(vllm_config, self._config)
        with replaced((module, "NgramProposer", proposer), *self._drafting_on_device(), *plainly):
            if self.is_interpreted:
                from .interpreted import runner_v1

                return runner_v1(vllm_config, self.device, model, apart=self._config.async_depth > 0)
            runner = gpu_model_runner.GPUModelRunner(vllm_config, self.device)
            runner.load_model(model=model)
        return runner

    def _drafting_on_device(self) -> Sequence[tuple[Any, str, Any]]:
        """Return what has to be exchanged for a drafter on the device, as for `replaced`."""
        if not drafts_on_device(self._config):
            return ()
        from vllm.v1.worker import gpu_model_runner

        proposer = device_proposer(self.drafter, gpu_model_runner.NgramProposerGPU)
        kernel = proposer.kernel  # type: ignore[attr-defined]

        def on_device(*arguments: Any) -> tuple[torch.Tensor, ...]:
            found = kernel(*arguments)
            jitter.behind_read()
            return tuple(one.to(self.device) for one in found)

        proposer.kernel = on_device  # type: ignore[attr-defined]
        return ((gpu_model_runner, "NgramProposerGPU", proposer),)

    def allocating(self) -> AbstractContextManager[None]:
        """Change nothing: the caches are the model's own."""
        return nullcontext()

    def attach(self, vllm_config: VllmConfig, layout: Layout, cache_config: Any) -> None:
        """Build the mirror: a shadow layer for each of the model's layers, over words of the host."""
        config, groups = self._config, cache_config.kv_cache_groups
        # As `EngineCore` does once the groups are planned.
        cached = [one.kv_cache_spec for one in groups if one.kv_cache_spec.prefix_cacheable]
        vllm_config.cache_config.block_size = min(spec.block_size for spec in cached)
        window, k = config.conv_width - 1, config.num_speculative_tokens
        name = mixer(config)
        kind = contract(STATE_KIND.get(name, name), config.conv_width)
        block_size = max(group.block_size for group in layout.groups if group.kind == "attention")
        entries = ring_entries(config)
        words = max(2 * block_size, window + k + 1 + entries)
        slots = max(group.layers for group in layout.groups)
        self.recorder.storages = storages(cache_config.num_blocks, slots, words, seed=1)
        layers: dict[str, MirrorMamba | MirrorAttention] = {}
        contexts = vllm_config.compilation_config.static_forward_context
        for group, spec in enumerate(groups):
            for index, name in enumerate(spec.layer_names):
                place, storage = (group, index), self.recorder.storages[index]
                layer: MirrorMamba | MirrorAttention
                if layout.groups[group].kind == "mamba":
                    layer = MirrorMamba(name, self.recorder, storage, window, k, entries, kind, place)
                else:
                    own = layout.groups[group]
                    form = Group("attention", own.block_size, own.layers, window=own.window)
                    layer = MirrorAttention(name, storage, form, place, contexts[name])
                layers[name] = self.recorder.layers[place] = layer
        self.layers = [layers[name] for name in contexts if name in layers]
        drafting = self.head.draft_attn_layer_names if self.head else ()
        of_model = [one for one in self.layers if one.layer_name not in drafting]
        self.real.mirror = mirror = Mirror(self.recorder, of_model)
        if self.head:
            self.head.layer = next(one for one in self.layers if one.layer_name in drafting)
            self.head.target_tags = lambda: mirror.tags

    def capture(self, runner: Any) -> None:
        """Capture the runner's graphs."""
        if self.is_interpreted:
            graphs.capture(runner, self.recorder, is_v2(self._config))
            return
        with jitter.active(self.jitter):
            replay.capture(runner, self.real, self.recorder, is_v2(self._config))

    def adapter(self, runner: Any) -> RealV1 | RealV2:
        """Return how the target speaks to the runner."""
        kind = RealV2 if is_v2(self._config) else RealV1
        return kind(runner, self.recorder)
