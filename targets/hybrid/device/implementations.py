"""Which implementation of the device operations a device gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ops import Ops

if TYPE_CHECKING:
    import torch


def implementation(device: torch.device | str, *, interpret: bool = False) -> Ops:
    """Return the Triton kernels for a GPU (with `interpret`, in Triton's interpreter on a CPU: slow), else plain torch.

    Whether triton interprets is settled when it is first imported: TRITON_INTERPRET=1 has to be set by then.
    """
    if interpret or str(device).startswith("cuda"):
        from . import triton_kernels

        return triton_kernels
    from . import torch_reference

    return torch_reference
