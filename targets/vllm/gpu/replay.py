"""Captured CUDA graphs of a real model: vLLM captures and replays, the mirror follows each replay.

A replay reads the metadata of its capture: tensors as they are now, scalars as they were. The mirror walks exactly
that. A piecewise graph (`BreakableCUDAGraphWrapper`) runs attention and state layers between its pieces, on the
metadata of the batch: so does the mirror.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context

from ..graphs import adapters_of
from ..shadow.recorder import Recorder
from .real_model import Captured, RealModel, repeated


class _Graph:
    """A captured graph of the V2 runner."""

    def __init__(self, graph: Any, real: RealModel, recorder: Recorder, adapters: int) -> None:
        self._graph = graph
        self._adapters = adapters
        self._real = real
        self._recorder = recorder
        assert real.captured is not None
        self._captured = real.captured

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def replay(self) -> None:
        """Replay the kernels, then walk the mirror."""
        self._recorder.begin_replay(self._adapters)
        captured = self._captured
        self._real.others = repeated(lambda: self._replayed(captured.hidden), captured.embeddings)
        self._graph.replay()
        self._real.walk(captured.context, captured.ids)

    def _replayed(self, hidden: torch.Tensor) -> torch.Tensor:
        self._graph.replay()
        return hidden.clone()


class _Graphs(dict[Any, Any]):
    """The graphs of a V2 manager; what is stored is watched."""

    def __init__(self, real: RealModel, recorder: Recorder) -> None:
        super().__init__()
        self._real = real
        self._recorder = recorder

    def __setitem__(self, key: Any, graph: Any) -> None:
        super().__setitem__(key, _Graph(graph, self._real, self._recorder, adapters_of(key)))


class _Model:
    """Stands before the `CUDAGraphWrapper` of the V1 runner."""

    def __init__(self, wrapper: Any, real: RealModel, recorder: Recorder) -> None:
        self._wrapper = wrapper
        self._real = real
        self._recorder = recorder
        self._captured: dict[Any, Captured] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapper, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The wrapper's class: the runner looks for it before it asks a model for the positions of images."""
        return type(self._wrapper)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        context = get_forward_context()
        if context.cudagraph_runtime_mode != CUDAGraphMode.FULL:
            return self._wrapper(*arguments, **keywords)
        captured = self._captured.get(context.batch_descriptor)
        if captured is None:
            result = self._wrapper(*arguments, **keywords)
            assert self._real.captured is not None
            self._captured[context.batch_descriptor] = self._real.captured
            return result

        def replayed() -> torch.Tensor:
            self._wrapper(*arguments, **keywords)
            return captured.hidden.clone()

        others = repeated(replayed, captured.embeddings)
        self._recorder.begin_replay(adapters_of(context.batch_descriptor))
        result = self._wrapper(*arguments, **keywords)
        self._real.others = others
        self._real.walk(captured.context, captured.ids)
        return result


@cache
def watch_pieces() -> None:
    """Let the mirror follow piecewise graphs, once per process."""
    from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

    call = BreakableCUDAGraphWrapper.__call__

    def following(self: Any, *arguments: Any, **keywords: Any) -> Any:
        context, real = get_forward_context(), getattr(self.unwrap(), "real_model", None)
        if real is None or context.cudagraph_runtime_mode != CUDAGraphMode.PIECEWISE:
            return call(self, *arguments, **keywords)
        real.in_pieces = True
        try:
            embeddings = keywords.get("inputs_embeds")
            real.others = repeated(lambda: call(self, *arguments, **keywords).clone(), embeddings)
            result = call(self, *arguments, **keywords)
        finally:
            real.in_pieces = False
        if real.mirror is not None:
            real.mirror.recorder.begin_replay(adapters_of(context.batch_descriptor))
        real.walk(context, real.ids(keywords["input_ids"], keywords))
        return result

    BreakableCUDAGraphWrapper.__call__ = following


def capture(runner: Any, real: RealModel, recorder: Recorder, is_v2: bool) -> None:
    """Capture all decode graphs."""
    if is_v2:
        runner.cudagraph_manager.graphs = _Graphs(real, recorder)
        runner.capture_model()
    else:
        runner.model = _Model(runner.model, real, recorder)
        runner.capture_model()
