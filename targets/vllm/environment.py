"""vLLM's releases and the environment of its workers.

Nothing compiled is needed: a release is its unpacked wheel without the binaries.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from ..base import releases


def _variables(home: Path) -> dict[str, str]:
    """Return environment variables: no GPU, no network, no usage statistics, no files shared with another version.

    vLLM inspects the model's architecture in a process of its own and caches the result under VLLM_CACHE_ROOT, where
    two versions would overwrite each other's. TRITON_INTERPRET: kernels are never compiled.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TRITON_INTERPRET": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "VLLM_CONFIG_ROOT": str(home / "config"),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }


ENGINE = releases.Engine(
    name="vllm",
    title="vLLM",
    example="0.33.0",
    requirements=Path(__file__).parent / "requirements.txt",
    venv_gigabytes=3.0,
    release_gigabytes=0.6,
    unwanted=re.compile(r"\.so(\.[\d.]+)?$|/vllm-rs$|/third_party/(deep_gemm|fmha_sm100)/include/"),
    variables=_variables,
)

prepare = partial(releases.prepare, ENGINE)
available = partial(releases.available, ENGINE)
between = partial(releases.between, ENGINE)
