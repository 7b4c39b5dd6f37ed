"""CUDA's Multi-Process Service, through which the workers of one machine use a GPU at the same time.

Without it their contexts take turns: sixteen workers run about half as many steps a second
(`benchmarks/gpu_engines.md`).
"""

from __future__ import annotations

import shutil

from ...base.launch import Service

CONTROL = "nvidia-cuda-mps-control"
_SCRIPT = f"{CONTROL} -f & while read -r _; do :; done; echo quit | {CONTROL}; wait"
"""The daemon, until standard input ends."""


def service() -> Service | None:
    """Return the daemon as a service, None where it is not installed."""
    if not shutil.which(CONTROL):
        return None
    return Service(("sh", "-c", _SCRIPT), ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), "control")
