"""SGLang's releases and the environment of its workers.

The Rust tree core is the only compiled part that is kept of a release.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from ..base import releases


def _variables(home: Path) -> dict[str, str]:
    """Return environment variables: no GPU, no network, no folder shared with another version.

    TRITON_INTERPRET: kernels are never compiled. NATIVE_MOVE: keys and values are moved by plain Torch.
    TORCH_COMPILE_DISABLE: a machine with many cores spends minutes on a first compilation, in the middle of a trace.
    RUST_BUILD_MODE: a checkout with Rust sources is not compiled in the middle of a trace.
    EXTENSIONS: the hash of pages for a storage is compiled once, not by each worker in the middle of a trace.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_CACHE_DIR": str(home / "cache"),
        "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCH_EXTENSIONS_DIR": str(home / "extensions"),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TRITON_INTERPRET": "1",
        "PYTHONWARNINGS": "ignore",
        "SGLANG_RUST_BUILD_MODE": "never",
    }


ENGINE = releases.EngineReleases(
    name="sglang",
    title="SGLang",
    example="0.5.23",
    requirements=Path(__file__).parent / "requirements.txt",
    venv_gigabytes=2.5,
    release_gigabytes=0.3,
    unwanted=re.compile(r"/rust_extensions/.*\.so$|/multimodal_gen/"),
    variables=_variables,
    source="python",
)

prepare = partial(releases.prepare, ENGINE)
available = partial(releases.available, ENGINE)
between = partial(releases.between, ENGINE)
