"""vLLM's group of data-parallel ranks: a process each, gloo between CPUs and NCCL between GPUs.

It is a group of vLLM's own (`StatelessGroupCoordinator`, as for elastic expert parallelism): it can be joined and left
while other engines of the process go on without ranks, which keep the group of one process (`engine.begin_process`).

vLLM coordinates the ranks of a mixture-of-experts model in each step: by one all-reduce they agree on a graph, or none,
and on the number of tokens to pad to. Our tiny models are dense, since experts need compiled operators. So the size of
the group is set once vLLM has validated the configuration; the coordination in both runners goes by that alone. What
experts would exchange within a forward is missing, and touches no cache.
"""

from __future__ import annotations

import socket
import traceback
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.stateless_coordinator import StatelessGroupCoordinator
from vllm.v1.worker import dp_utils
from vllm.v1.worker.gpu import dp_utils as dp_utils_v2

from .placement import own_index

HOST = "127.0.0.1"
_store: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
WAIT = timedelta(minutes=10)
"""For another rank, in a collective: it may have to compile a kernel first. A campaign's time limit is shorter."""


class Joined(NamedTuple):
    """This process in the group. `alone` is vLLM's group of this process only."""

    rank: int
    size: int
    group: Any
    alone: Any


_joined: list[Joined] = []


def open_store() -> Any:
    """Return the store through which the ranks find each other, at a free port."""
    listening = socket.create_server((HOST, 0))
    port = listening.getsockname()[1]
    return _store(HOST, port, is_master=True, wait_for_workers=False, timeout=WAIT, master_listen_fd=listening.detach())


def join(rank: int, size: int, device: str, store: Any) -> None:
    """Join the group; returns once all ranks have. `store` is that of rank 0, or its port."""
    if isinstance(store, int):
        store = _store(HOST, store, is_master=False, timeout=WAIT)
    config = VllmConfig()
    config.parallel_config.cpu_distributed_timeout_seconds = int(WAIT.total_seconds())
    own = own_index() if device == "cuda" else 0
    with set_current_vllm_config(config):
        group = StatelessGroupCoordinator(
            group_ranks=[list(range(size))],
            local_rank=own,
            torch_distributed_backend="nccl" if device == "cuda" else "gloo",
            use_device_communicator=False,
            coord_store=store,
            group_name="dp",
            host=HOST,
            global_rank=rank,
            global_world_size=size,
        )
    group.device = torch.device("cuda", own) if device == "cuda" else torch.device("cpu")
    _joined[:] = [Joined(rank, size, group, parallel_state._DP)]


def leave() -> None:
    """Leave the group: the other ranks are gone."""
    for one in _joined:
        parallel_state._DP = one.alone
        # The others cannot take part any more, so nothing that is under way may be waited for.
        one.group.device_group.abort()
        one.group.cpu_group.abort()
    _joined.clear()


def become_rank(vllm_config: VllmConfig) -> None:
    """Let the engine of a configuration be this process's rank."""
    [joined] = _joined
    parallel: Any = vllm_config.parallel_config
    parallel.data_parallel_size, parallel.data_parallel_rank = joined.size, joined.rank
    parallel.data_parallel_index = parallel.data_parallel_rank_local = joined.rank
    parallel.is_moe_model = True  # so that vLLM also checks in each forward what was agreed on


def take_part() -> None:
    """Let the runners of this process use the group, instead of the stand-in for it (`counterparts.peer`)."""
    [joined] = _joined
    parallel_state._DP = joined.group
    dp_utils.dist = torch.distributed
    dp_utils_v2.get_dp_group = parallel_state.get_dp_group


def is_of_collective(error: Exception) -> bool:
    """Return True if an exception came out of a collective: of torch's, or of vLLM's between CPUs."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    modules = {str(frame.f_globals.get("__name__", "")) for frame in frames}
    names = {frame.f_code.co_name for frame in frames}
    return any(module.startswith("torch.distributed") for module in modules) or "cpu_all_reduce_" in names


class InGroup:
    """The other ranks as one that is not the first sees them: it joins their collectives, rank 0 does the rest."""

    def begin(self, rows: int) -> None:
        """Begin a step."""
        take_part()

    def end(self) -> None:
        """Do nothing: whoever told this rank knows."""

    def begin_capture(self) -> None:
        """Begin the capture of graphs, which all ranks do alike."""
        take_part()
