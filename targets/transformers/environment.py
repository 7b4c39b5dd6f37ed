"""transformers' releases and the environment of its workers.

A release is pure Python: its wheel is unpacked as a whole, and nothing of it is compiled or hidden. At import it
refuses versions of tokenizers that it does not know, and no version suits all releases: there are two venvs.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from ..base import releases
from ..base.pip import version_numbers

NEWER = Path(__file__).parent / "requirements.txt"
OLDER = Path(__file__).parent / "requirements-older.txt"


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


def requirements_of(tree: Path) -> Path:
    """Return the pins that a release, or a checkout, accepts: the older ones if it excludes the newer tokenizers."""
    table = tree / "transformers" / "dependency_versions_table.py"
    known = _NEWEST.search(table.read_text(encoding="utf-8")) if table.is_file() else None
    pinned = _PINNED.search(NEWER.read_text(encoding="utf-8"))
    if known is None or pinned is None:
        return NEWER
    newest, version = version_numbers(known["version"]), version_numbers(pinned["version"])
    return NEWER if version < newest or (version == newest and known["operator"] == "<=") else OLDER


_NEWEST = re.compile(r'"tokenizers[^"]*(?P<operator><=?)(?P<version>[\d.]+)')
_PINNED = re.compile(r"^tokenizers==(?P<version>[\d.]+)", re.MULTILINE)
ENGINE = releases.EngineReleases(
    name="transformers",
    title="transformers",
    example="5.23.0",
    requirements=NEWER,
    venv_gigabytes=1.5,
    release_gigabytes=0.2,
    unwanted=re.compile(r"(?!)"),
    variables=_variables,
    source="src",
    requirements_of=requirements_of,
)

prepare = partial(releases.prepare, ENGINE)
available = partial(releases.available, ENGINE)
between = partial(releases.between, ENGINE)
