"""Engines and references of this process that wait for their next trace (`memory_budget`)."""

from __future__ import annotations

import gc
import os
from functools import cache
from typing import Any

import torch

from .memory_budget import Kept, budget
from .placement import own_index


class TorchMemory:
    """The memory of PyTorch's accelerator; without one nothing is used, and only the number of engines is limited."""

    def used(self) -> int:
        """Return the bytes that PyTorch's allocator holds, those of captured graphs included."""
        return torch.cuda.memory_reserved() if torch.cuda.is_available() else 0

    def free(self) -> None:
        """Collect garbage, then empty the allocator's cache: an engine's parts refer to each other."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@cache
def kept() -> Kept[Any]:
    """Return this process's engines and references."""
    total = torch.cuda.get_device_properties(own_index()).total_memory if torch.cuda.is_available() else 0
    return Kept(TorchMemory(), budget(total, os.environ))
