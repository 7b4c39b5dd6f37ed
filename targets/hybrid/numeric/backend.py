"""Devices, and the kernels that each uses.

cpu          plain torch
interpreter  the Triton kernels in Triton's interpreter on the CPU: exact, a thousand times slower
cuda         the Triton kernels, compiled
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

from ...base.protocol import TargetError

NAMES = ("cpu", "cuda", "interpreter")


class Device:
    """A device that can be used. Raises TargetError, with the remedy, if it cannot."""

    def __init__(self, name: str) -> None:
        if name not in NAMES:
            raise TargetError(f"device {name} is none of {', '.join(NAMES)}")
        if reason := missing(name):
            raise TargetError(f"device {name}: {reason}")
        if name == "interpreter":
            os.environ["TRITON_INTERPRET"] = "1"
        import torch

        from .kernels.implementations import implementation

        torch.set_num_threads(1)
        self.name = name
        self.torch = torch.device("cuda" if name == "cuda" else "cpu")
        self.ops = implementation(self.torch, interpret=name == "interpreter")

    @property
    def is_cuda(self) -> bool:
        """True if the device has streams and graphs."""
        return bool(self.torch.type == "cuda")


def missing(name: str) -> str:
    """Return why a device cannot be used here, "" if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed (pip install 'hybridfuzz[gpu]')"
    if name == "cuda" and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    if name != "cpu" and find_spec("triton") is None:
        return "triton is not installed (pip install 'hybridfuzz[gpu]')"
    if name == "interpreter" and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        return "triton was imported to compile; set TRITON_INTERPRET=1 before starting"
    return ""
