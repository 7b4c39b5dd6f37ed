"""Where vLLM comes from: a release (fetched once), a checkout, or the vLLM installed beside us.

Nothing compiled is needed, so a release is its unpacked wheel without the binaries, and all
releases share one venv with torch and whatever else vLLM imports (`requirements.txt`). See
docs/targets.md.
"""

from __future__ import annotations

import re
import sys
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ..base.environment import STAMP, cache_folder, importable, make_venv, unpack_wheel
from ..base.launch import Launch
from ..base.pip import Progress
from ..base.protocol import TargetError

REQUIREMENTS = Path(__file__).parent / "requirements.txt"
VENV_GIGABYTES = 3.0
RELEASE_GIGABYTES = 0.6
_RELEASE = re.compile(r"\d+(\.\d+)+((a|b|rc|\.post|\.dev)\d+)*(\+[\w.]+)?")
_UNWANTED = re.compile(r"\.so(\.[\d.]+)?$|/vllm-rs$|/third_party/(deep_gemm|fmha_sm100)/include/")


def prepare(wanted: str, progress: Progress) -> Launch:
    """`wanted` is a release, a path, or "" for the vLLM installed here."""
    if not wanted:
        return _installed()
    if _RELEASE.fullmatch(wanted):
        tree = unpack_wheel("vllm", wanted, _UNWANTED, RELEASE_GIGABYTES, progress)
        python = make_venv(REQUIREMENTS, "the environment for vLLM", VENV_GIGABYTES, progress)
        return _launch(python, tree, wanted, cache_folder() / "vllm" / wanted)
    tree = Path(wanted).expanduser().absolute()
    if not (tree / "vllm" / "__init__.py").is_file():
        known = ", ".join(available()) or "vllm@0.33.0"
        raise TargetError(
            f"target 'vllm@{wanted}': neither a release number nor a folder with vllm/__init__.py; say {known}"
        )
    python = make_venv(REQUIREMENTS, "the environment for vLLM", VENV_GIGABYTES, progress)
    key = sha256(str(tree).encode()).hexdigest()[:12]
    return _launch(python, tree, str(tree), cache_folder() / "vllm" / f"path-{key}")


def available() -> dict[str, str]:
    """Releases that are on this machine."""
    try:
        trees = sorted((cache_folder() / "vllm").glob("*/tree"))
    except TargetError:
        return {}
    return {f"vllm@{tree.parent.name}": "ready" for tree in trees if (tree / STAMP).exists()}


def _installed() -> Launch:
    if find_spec("vllm") is None:
        raise TargetError(
            f"target 'vllm': vLLM is not installed for {sys.executable}; vllm@0.33.0 makes an environment of its own"
        )
    try:
        number = version("vllm")
    except PackageNotFoundError:
        number = "of unknown version"
    return Launch(sys.executable, _variables(cache_folder() / "vllm" / "installed"), number)


def _launch(python: Path, tree: Path, number: str, home: Path) -> Launch:
    return Launch(str(python), {"PYTHONPATH": f"{importable()}:{tree}", **_variables(home)}, number)


def _variables(home: Path) -> dict[str, str]:
    """No GPU, no network, no usage statistics; and no file shared with another version.

    vLLM inspects the model's architecture in a process of its own and keeps the answer under
    VLLM_CACHE_ROOT, where two versions would overwrite each other's. TRITON_INTERPRET: kernels are
    never compiled.
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
