"""transformers' releases and the environment of its workers.

A release is pure Python: its wheel is unpacked as a whole, and nothing of it is compiled or hidden.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from ..base import releases


def _variables(home: Path) -> dict[str, str]:
    """Return environment variables: no GPU, no network, no folder shared with another version.

    USE_HUB_KERNELS: compiled kernels are never fetched, the PyTorch code of each model runs.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(home / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "TRANSFORMERS_VERBOSITY": "error",
        "USE_HUB_KERNELS": "NO",
    }


ENGINE = releases.Engine(
    name="transformers",
    title="transformers",
    example="5.23.0",
    requirements=Path(__file__).parent / "requirements.txt",
    venv_gigabytes=1.5,
    release_gigabytes=0.2,
    unwanted=re.compile(r"(?!)"),
    variables=_variables,
    source="src",
)

prepare = partial(releases.prepare, ENGINE)
available = partial(releases.available, ENGINE)
between = partial(releases.between, ENGINE)
