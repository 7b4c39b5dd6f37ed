"""The "has work" vote of ranks in several processes: one collective before each step, as in deployed engines.

Under torchrun each process holds one rank and, with NCCL, one GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed


def join() -> tuple[int, int, Callable[[bool], bool]]:
    """Join the process group described by torchrun; return (own rank, number of ranks, vote function)."""
    on_gpu = torch.cuda.is_available()
    distributed: Any = torch.distributed
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    device = "cuda" if on_gpu else "cpu"

    def vote(has_work: bool) -> bool:
        """Return True if any rank has work."""
        ballot = torch.tensor([int(has_work)], dtype=torch.int32, device=device)
        distributed.all_reduce(ballot, op=distributed.ReduceOp.MAX)
        return bool(ballot.item())

    return distributed.get_rank(), distributed.get_world_size(), vote


def leave() -> None:
    """Leave the process group."""
    distributed: Any = torch.distributed
    distributed.destroy_process_group()
