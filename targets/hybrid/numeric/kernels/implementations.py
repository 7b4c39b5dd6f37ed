"""Selects the implementation of the operations for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ops import Ops

if TYPE_CHECKING:
    import torch


def implementation(device: torch.device | str, *, interpret: bool = False) -> Ops:
    """Return the Triton kernels for a GPU (with `interpret`, in Triton's interpreter on a CPU: slow), else plain torch.

    triton reads TRITON_INTERPRET when it is first imported: set it to 1 before that to interpret.
    """
    if interpret or str(device).startswith("cuda"):
        from . import triton_kernels

        return triton_kernels
    from . import torch_reference

    return torch_reference
