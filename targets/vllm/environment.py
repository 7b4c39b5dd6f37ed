"""vLLM's releases and the environment of its workers.

Nothing compiled is needed: a release is its unpacked wheel without the binaries.
"""

from __future__ import annotations

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from ..base import releases
from ..base.launch import Launch
from ..base.pip import Progress
from .gpu import sharing, stand_ins
from .gpu.stand_ins import DEVICES


def _variables(home: Path) -> dict[str, str]:
    """Return environment variables: no GPU, no network, no usage statistics, no files shared with another version.

    vLLM inspects the model's architecture in a process of its own and caches the result under VLLM_CACHE_ROOT, where
    two versions would overwrite each other's. TRITON_INTERPRET: kernels are never compiled. TORCH_COMPILE_DISABLE:
    nor are the sampler's small functions, which takes seconds in each worker.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TRITON_INTERPRET": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "VLLM_CONFIG_ROOT": str(home / "config"),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }


ENGINE = releases.EngineReleases(
    name="vllm",
    title="vLLM",
    example="0.33.0",
    requirements=Path(__file__).parent / "requirements.txt",
    venv_gigabytes=3.0,
    release_gigabytes=0.6,
    unwanted=re.compile(r"\.so(\.[\d.]+)?$|/vllm-rs$|/third_party/(deep_gemm|fmha_sm100)/include/"),
    variables=_variables,
)


def prepare(version: str, progress: Progress, device: str = "") -> Launch:
    """How to start a worker. With device "cuda" the interpreter is ours, which has to have PyTorch for the GPU; a
    release or a path is imported from its tree, "" is the vLLM that is installed. What is stood in for missing binaries
    is printed and a part of the version, which stands in every finding."""
    if not device:
        return releases.prepare(ENGINE, version, progress)
    engine = structs.replace(ENGINE, variables=partial(stand_ins.variables, device=device))
    own = device == "cuda" and version
    launch = (releases.prepare_tree if own else releases.prepare)(engine, version, progress)
    if version:
        package = Path(launch.env["PYTHONPATH"].rpartition(":")[2]) / "vllm"
    else:
        found = find_spec("vllm")
        package = Path(found.origin).parent if found and found.origin else Path()
    stood_in = stand_ins.stood_in_for(package, device)
    about = f"{launch.version}, real model on {device}" + (f", stood in: {'; '.join(stood_in)}" if stood_in else "")
    progress(about)
    return structs.replace(launch, version=about, service=sharing.service() if device == "cuda" else None)


available = partial(releases.available, ENGINE)
between = partial(releases.between, ENGINE)

__all__ = ["DEVICES", "ENGINE", "available", "between", "prepare"]
