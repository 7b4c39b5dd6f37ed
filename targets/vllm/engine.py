"""Builds vLLM's engine around a kit: runner, caches, captured graphs, scheduler.

A kit says what stands in the engine: shadow layers on a CPU (`shadow_kit`), or a model of vLLM's own (`gpu.real_kit`).
All that a worker's start-up does besides that (loading weights, profiling memory) is left out; the steps of
`EngineCore` between runner and scheduler are done here in the same order, for every kit.

A kit may keep an engine for several traces: what `begin` makes is then made for each of them.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.v1.structured_output import StructuredOutputManager

from ...reference.layout import Layout
from ..base.trace import Config
from . import graphs
from .counterparts.no_store import NullStore
from .layout import layout_of
from .options import has_adapters, has_graphs, has_peer, is_v2, options_of, reports_all, stages, windows_are_last
from .runner_adapter import RunnerAdapter
from .shadow.drafter import Drafter, set_draft_counts
from .shadow.layers import ShadowAttention
from .shadow.recorder import Recorder
from .versions import as_on_gpu, compat, features
from .versions.wrapping import replaced

_MEMORY = 1 << 30
"""Bytes that the caches are said to have; the trace says how many blocks there are."""


class Kit(Protocol):
    """The replaceable parts of one engine: model, drafter, runner, allocation of caches, capture of graphs.

    Its methods are called in this order.
    """

    @property
    def recorder(self) -> Recorder:
        """What sees the device's work go by."""

    @property
    def drafter(self) -> Drafter:
        """What proposes tokens, in the place of vLLM's own drafters."""

    @property
    def device(self) -> torch.device:
        """Where the runner computes."""

    @property
    def layers(self) -> Sequence[Any]:
        """Return those whose caches are observed, in the model's order, once they are attached."""

    def configure(self) -> VllmConfig:
        """Return vLLM's configuration of this engine."""

    def model(self, vllm_config: VllmConfig) -> Any:
        """Return the model."""

    def speculator(self, vllm_config: VllmConfig) -> Any:
        """Return the V2 runner's drafter."""

    def runner_v2(self) -> Any:
        """Return the class of the V2 runner."""

    def runner_v1(self, vllm_config: VllmConfig, model: Any) -> Any:
        """Return a V1 runner with the model."""

    def allocating(self) -> AbstractContextManager[None]:
        """Hold while the runner allocates the caches."""

    def attach(self, vllm_config: VllmConfig, layout: Layout, cache_config: Any) -> None:
        """Let the layers know their caches. `cache_config` is the worker's `KVCacheConfig`."""

    def capture(self, runner: Any) -> None:
        """Capture the runner's graphs."""

    def adapter(self, runner: Any) -> RunnerAdapter:
        """Return how the target speaks to the runner."""


class Engine:
    """The parts of one engine."""

    scheduler: Any
    hasher: Any
    """Of the requests' blocks; None without prefix caching."""

    def __init__(self, config: Config, kit: Kit) -> None:
        self.config = config
        self.kit = kit
        self.is_v2 = is_v2(config)
        self.recorder = kit.recorder
        self.drafter = kit.drafter
        self._choose_runner()
        compat.lay_out_windows("DS" if windows_are_last(config) else "SD")
        self.vllm_config = vllm_config = kit.configure()
        self.store = self._connect()
        with self._building():
            model = kit.model(vllm_config)
            self.runner = self.drafter.runner = (
                self._build_v2(model) if self.is_v2 else kit.runner_v1(vllm_config, model)
            )
            set_draft_counts(self.runner, config)
            if has_adapters(config) and has_graphs(config) and not vllm_config.lora_config:
                self._capture_with_adapters()
            with compat.too_small_is_a_refusal():
                self._plan = plan = compat.plan_cache(vllm_config, self.runner.get_kv_cache_spec(), _MEMORY)
            self.connector = (
                kv_connector().begin_worker(vllm_config, plan.worker) if features.has_connectors() else None
            )
            with kit.allocating():
                self.runner.initialize_kv_cache(plan.worker)
            if options_of(config).metadata == "shared":
                as_on_gpu.share_state_indices(self.runner)
            compat.prepare_zeroing(self.runner, plan.worker)
            self.layout = layout_of(config, self.is_v2, plan.worker)
            kit.attach(vllm_config, self.layout, plan.worker)
            self.layers = kit.layers
            ranks = self._other_ranks()
            ranks.begin_capture()
            if has_graphs(config):
                kit.capture(self.runner)
                if isinstance(ranks, graphs.Padding):
                    graphs.widen(self.runner, self.is_v2, ranks)
        self.hash_block_size = plan.hash_block_size
        self.store.attach(self.layout, self.layers)
        self.worker = kit.adapter(self.runner)
        self.worker.ranks = ranks
        self.inputs = self.worker.inputs = self._inputs()
        attention_layers = [layer for layer in self.layers if isinstance(layer, ShadowAttention)]
        mamba_block_size = vllm_config.cache_config.mamba_block_size
        self.recorder.attach(config, self.layout, self.worker, attention_layers, mamba_block_size, self.inputs)

    def begin(self) -> None:
        """Make what belongs to one trace: the scheduler, and what hashes blocks."""
        self._choose_runner()
        with self._building():
            self.scheduler = self._build_scheduler()
            caching = self.config.enable_prefix_caching
            self.hasher = compat.block_hasher(self.vllm_config, self.hash_block_size) if caching else None
        if self.inputs:
            self.inputs.prepare(self.scheduler, self.runner)

    def _choose_runner(self) -> None:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if self.is_v2 else "0"

    @contextmanager
    def _building(self) -> Iterator[None]:
        # vLLM collects garbage to measure the memory of a loaded model, which would take most of the start-up time.
        with (
            set_current_vllm_config(self.vllm_config),
            replaced((gc, "collect", lambda *_: 0)),
            self._among_ranks(),
        ):
            yield

    def _build_v2(self, model: Any) -> Any:
        from vllm.v1.worker.gpu import model_runner

        speculator = self.kit.speculator(self.vllm_config)
        with replaced((model_runner, "init_speculator", lambda *_: speculator)):
            runner = self.kit.runner_v2()(self.vllm_config, self.kit.device)
            compat.load_v2_model(runner, model)
        return runner

    def _build_scheduler(self) -> Any:
        config, vllm_config, plan = self.config, self.vllm_config, self._plan
        # The one worker here is the last stage of a pipeline; the others would only pass activations on.
        with replaced((vllm_config.parallel_config, "pipeline_parallel_size", stages(config))):
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

    def _inputs(self) -> Any:
        """Return what token ids stand for, None if for themselves."""
        if options_of(self.config).inputs == "tokens":
            return None
        from .counterparts.inputs import Inputs

        return Inputs(self.config, self.drafter.truths)

    def _connect(self) -> Any:
        if not features.has_connectors():
            return NullStore()
        return kv_connector().connect(self.vllm_config, self.config, self.recorder, self.drafter.truths)

    def _among_ranks(self) -> AbstractContextManager[None]:
        """Let vLLM build what it builds for one of several data-parallel ranks, if the trace has some."""
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


def kv_connector() -> Any:
    """Return the module of the connector, which only releases with its API can import."""
    from .counterparts import kv_connector as module

    return module


def begin_process() -> None:
    """Set up vLLM's "distributed" environment of one process. Afterwards garbage collections do not scan modules."""
    # The rendezvous has one participant. Its file is deleted now, since a worker may be killed at any time.
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    gc.collect()
    gc.freeze()
