"""Full decode graphs without a GPU: arguments of the capture are kept, persistent buffers are read at replay.

A CUDA graph replays the kernels of its capture with the pointers and scalars of its capture; only the memory behind the
pointers is new. So the capture, which is vLLM's own up to the model's call, keeps the arguments of the kernels
(attention metadata, slot mappings, input buffers), and a replay runs the shadow model on exactly these: padding rows
included, and with stale values wherever a step failed to update a persistent buffer.

Only decode graphs; piecewise graphs pad tokens and leave attention outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context, override_forward_context
from vllm.platforms import current_platform

from .shadow.recorder import Recorder
from .versions.wrapping import parameters, replaced


class Ranks(Protocol):
    """The other data-parallel ranks, beside whose batches this one runs."""

    def begin(self, rows: int) -> None:
        """Begin a step beside ranks with `rows` rows."""
        ...

    def end(self) -> None:
        """End the step: this rank has run its part."""
        ...

    def begin_capture(self) -> None:
        """Begin the capture of graphs."""
        ...


class Padding:
    """Ranks of which only the number of rows counts: a decode batch is padded to a graph of that size."""

    def __init__(self) -> None:
        self.rows = 0

    def begin(self, rows: int) -> None:
        """Pad to `rows` rows from now on."""
        self.rows = rows

    def end(self) -> None:
        """Do nothing: there is nobody to wait for."""

    def begin_capture(self) -> None:
        """Do nothing: graphs are captured in all sizes."""


def provide_pool() -> None:
    """Give the CPU platform a dummy memory pool for graphs, which it lacks."""
    type(current_platform).graph_pool_handle = lambda _: object()


def capture(runner: Any, recorder: Recorder, is_v2: bool) -> None:
    """Capture all decode graphs of a runner."""
    if is_v2:
        _capture_v2(runner, recorder)
    else:
        _capture_v1(runner, recorder)


def query_length(runner: Any) -> int:
    """Return the number of tokens of a decode row."""
    return getattr(runner, "uniform_decode_query_len", 0) or getattr(runner, "decode_query_len", 1)


def widen(runner: Any, is_v2: bool, padding: Padding) -> None:
    """Choose graphs as among data-parallel ranks, by our own rule: vLLM's coordination of ranks (`peer`) is off."""
    query = query_length(runner)
    if is_v2:
        _widen(runner.cudagraph_manager, lambda found: found.cg_mode, padding, query)
    else:
        _widen(runner.cudagraph_dispatcher, lambda found: found[0], padding, query)


def _widen(owner: Any, mode: Callable[[Any], Any], padding: Padding, query: int) -> None:
    """Choose graphs as among data-parallel ranks: if all replay one, by the number of tokens on the largest rank."""
    dispatch = owner.dispatch
    names = list(parameters(dispatch))[1:]

    def dispatched(*arguments: Any, **keywords: Any) -> Any:
        found = dispatch(*arguments, **keywords)
        if not padding.rows or mode(found) != CUDAGraphMode.FULL:
            return found
        call = dict(zip(names, arguments, strict=False)) | keywords
        call["num_tokens"] = max(call["num_tokens"], padding.rows * query)
        wider = dispatch(**call)
        return wider if mode(wider) == CUDAGraphMode.FULL else found

    owner.dispatch = dispatched


def adapters_of(descriptor: Any) -> int:
    """Return the number of adapters with which a graph is captured."""
    return getattr(descriptor, "num_active_loras", 0)


class _Graph:
    """A captured forward of the V2 runner."""

    def __init__(self, forward: Callable[[CUDAGraphMode], None], recorder: Recorder, descriptor: Any) -> None:
        self._forward = forward
        self._recorder = recorder
        self._descriptor = descriptor

    def replay(self) -> None:
        """Run the captured forward again."""
        self._recorder.begin_replay(adapters_of(self._descriptor))
        self._forward(CUDAGraphMode.NONE)


def _capture_v2(runner: Any, recorder: Recorder) -> None:
    """Capture the V2 runner's graphs: vLLM chooses them and prepares their inputs, only the loop is ours."""
    from vllm.v1.worker.gpu import cudagraph_utils

    def capture_all(manager: Any, create_forward: Callable[..., Any], *_: Any, **__: Any) -> None:
        for descriptor in manager._capture_descs.get(CUDAGraphMode.FULL, ()):
            made = create_forward(descriptor, warmup=False)
            forward = made[0] if isinstance(made, tuple) else made  # 0.25 returns the backends' states with it
            forward(CUDAGraphMode.NONE)
            manager.graphs[descriptor] = _Graph(forward, recorder, descriptor)
        manager._graphs_captured = True

    if not runner.cudagraph_manager.needs_capture():
        return
    with replaced((cudagraph_utils.CudaGraphManager, "capture", capture_all)), _adapters_to_capture(runner) as hooks:
        runner.cudagraph_manager.capture(
            runner.model,
            runner.model_state,
            runner.input_buffers,
            runner.intermediate_tensors,
            runner.block_tables,
            runner.attn_groups,
            runner.kv_cache_config,
            **hooks,
        )


@contextmanager
def _adapters_to_capture(runner: Any) -> Iterator[dict[str, Any]]:
    """Hold vLLM's dummy adapters while graphs are captured, if the V2 runner has real ones. Yield further arguments of
    the capture: what sets them for each graph."""
    if not getattr(runner, "lora_config", None):
        yield {}
        return
    from vllm.v1.worker.gpu.lora_utils import create_lora_capture_hook

    with runner.maybe_setup_dummy_loras(runner.lora_config):
        yield {"lora_capture_hook": create_lora_capture_hook(runner.lora_config, runner)}


class _ReplayedModel:
    """Takes the place of the V1 runner's `CUDAGraphWrapper`: the first call with a batch descriptor captures."""

    def __init__(self, model: Any, recorder: Recorder) -> None:
        self._model = model
        self._recorder = recorder
        self._captured: dict[Any, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        context = get_forward_context()
        if context.cudagraph_runtime_mode != CUDAGraphMode.FULL:
            return self._model(*arguments, **keywords)
        captured = self._captured.get(context.batch_descriptor)
        if captured is None:
            self._captured[context.batch_descriptor] = context, arguments, keywords
            return self._model(*arguments, **keywords)
        context, arguments, keywords = captured
        self._recorder.begin_replay(adapters_of(context.batch_descriptor))
        with override_forward_context(context):
            return self._model(*arguments, **keywords)


def _capture_v1(runner: Any, recorder: Recorder) -> None:
    """Capture by dummy runs, the largest batch first, as in `GPUModelRunner._capture_cudagraphs`."""
    runner.model = _ReplayedModel(runner.model, recorder)
    for mode, descriptors in runner.cudagraph_dispatcher.get_capture_descs():
        for descriptor in descriptors:
            adapters = adapters_of(descriptor)
            runner._dummy_run(
                descriptor.num_tokens,
                cudagraph_runtime_mode=mode,
                uniform_decode=descriptor.uniform,
                allow_microbatching=False,
                skip_eplb=True,
                remove_lora=False,
                is_graph_capturing=True,
                **({"num_active_loras": adapters} if adapters else {}),
            )
    if getattr(runner, "lora_config", None):
        runner.maybe_remove_all_loras(runner.lora_config)
