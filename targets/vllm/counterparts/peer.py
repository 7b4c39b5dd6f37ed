"""The other data-parallel rank of two, as vLLM's own coordination meets it.

Ranks of a mixture-of-experts model exchange the size and the graph of their batches in each step, by one all-reduce,
and agree on a graph, or on none. vLLM's code does so here as well; only the collective has a stand-in, which knows the
other rank's batch: a decode batch with as many rows as the event specifies, or the one row of an idle rank's dummy run.
It takes the graph that this rank's dispatcher has for such a batch, since both run the same model. So a batch is padded
to the larger rank's graph, and is not replayed at all beside a batch that no graph fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.v1.worker import dp_utils, gpu_model_runner
from vllm.v1.worker.gpu import dp_utils as dp_utils_v2
from vllm.v1.worker.gpu import model_runner

from ..versions.wrapping import replaced


class _Experts:
    """Stands in for the all-to-all manager of experts, which shadow layers do not have; without fault tolerance."""

    support_fault_tolerance = False


@contextmanager
def one_of_two(vllm_config: VllmConfig) -> Iterator[None]:
    """Make the engine that the block builds rank 0 of two."""
    vllm_config.parallel_config.data_parallel_size = 2
    with replaced(*((module, "get_ep_all2all_manager", _Experts) for module in (gpu_model_runner, model_runner))):
        yield


class Peer:
    """The other rank. It takes part in all collectives of this rank's runner from `begin` on."""

    def __init__(self, runner: Any, is_v2: bool, query: int) -> None:
        self._runner = runner
        self._is_v2 = is_v2
        self._query = query
        self._rows = 0
        self._captures = False

    def begin(self, rows: int) -> None:
        """Begin a step beside `rows` decode rows; 0: beside an idle rank."""
        self._rows, self._captures = max(rows, 1), False
        self._take_part()

    def end(self) -> None:
        """Do nothing: the other rank has taken part."""

    def begin_capture(self) -> None:
        """Begin the capture of graphs, which all ranks do alike."""
        self._captures = True
        self._take_part()

    def _take_part(self) -> None:
        dp_utils.dist = self
        dp_utils_v2.get_dp_group = lambda: self

    def all_reduce(self, tensor: torch.Tensor, group: object) -> None:
        """Add the other rank's column to the V1 runner's int32 [4, 2]: tokens, padded tokens, microbatches, graph."""
        if self._captures:
            tensor[:, 1] = tensor[:, 0]
            return
        tokens = self._rows * self._query
        mode, graph = self._runner.cudagraph_dispatcher.dispatch(tokens, uniform_decode=True)
        tensor[:, 1] = torch.tensor([tokens, graph.num_tokens, 0, mode.value])

    def cpu_all_reduce_(self, tensor: torch.Tensor) -> None:
        """Add the other rank's column to the V2 runner's int32 [7, 2]: tokens, graph, tokens of each row, longest row,
        microbatches, rows, whether it needs no drafts (it agrees)."""
        if self._captures:
            tensor[:, 1] = tensor[:, 0]
            return
        rows, query = self._rows, self._query
        manager = self._runner.cudagraph_manager
        graph = manager.dispatch(rows, rows * query, query, num_active_loras=0, max_query_len=query)
        agrees = int(tensor[6, 0])
        tensor[:, 1] = torch.tensor([rows * query, graph.cg_mode.value, query, query, 0, rows, agrees])
