"""Makes git checkouts out of releases, as `actions/checkout` gives them (less than a wheel); runs the gate on them."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trees import Edit, edited_tree

BUILT = {
    "vllm": (
        "_version.py",
        "third_party/deep_gemm",
        "third_party/flashmla/flash_mla_interface.py",
        "third_party/fmha_sm100",
        "third_party/tml_fa4",
        "third_party/triton_kernels",
        "vllm_flash_attn/cute",
        "vllm_flash_attn/layers",
        "vllm_flash_attn/ops",
    ),
    "sglang": ("_version.py",),
}
"""Paths in a package that only a build puts there. Binaries (*.so) are no part of a checkout either."""
SOURCES = {"vllm": ".", "sglang": "python"}
"""The folder of the repository that holds the package and pyproject.toml."""
PROJECT = """\
[build-system]
requires = ["setuptools>=77", "setuptools-scm>=8"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
dynamic = ["version"]
"""


def make_checkout(source: Path, name: str, edits: Sequence[Edit], into: Path) -> Path:
    """Return a git repository with the package of an unpacked release and these edits, all of it committed."""
    tree = edited_tree(source, edits, into / SOURCES[name])
    for metadata in tree.glob("*.dist-info"):
        shutil.rmtree(metadata)
    for binary in tree.rglob("*.so*"):
        binary.unlink()
    (tree / ".complete").unlink(missing_ok=True)
    for path in (tree / name / built for built in BUILT[name]):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    (tree / "pyproject.toml").write_text(PROJECT.format(name=name), encoding="utf-8")
    (into / ".gitignore").write_text("__pycache__/\n.pytest_cache/\nhybridfuzz-out/\n", encoding="utf-8")
    author = ("-c", "user.name=drill", "-c", "user.email=drill@localhost", "-c", "gc.auto=0")
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "The release"]):
        subprocess.run(["git", *command], cwd=into, check=True)
    return into


def changes(checkout: Path) -> list[str]:
    """What git says has been changed or added since."""
    ran = subprocess.run(["git", "status", "--porcelain"], cwd=checkout, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


class GateRun(NamedTuple):
    """One run of the gate. `cpu` are the processor's seconds of all its processes: on a busy machine `wall` is more."""

    status: int
    text: str
    wall: float
    cpu: float

    @property
    def late(self) -> int:
        """Return for how many items there was no time."""
        [count] = re.findall(r"(\d+) stopped early\)", self.text) or [0]
        return int(count)


def run_gate(folder: Path, target: str, budget: float, *more: str) -> GateRun:
    """Run the gate in a folder, with a budget in seconds and more arguments."""
    command = [sys.executable, "-m", "pytest", "--hybridfuzz-target", target, f"--hybridfuzz-budget={budget:g}s", *more]
    began, before = time.monotonic(), _cpu_of_children()
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    return GateRun(ran.returncode, ran.stdout + ran.stderr, seconds, _cpu_of_children() - before)


def _cpu_of_children() -> float:
    """Return the seconds that processes which have ended, and those that these waited for, were on a processor."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def only(items: str) -> list[str]:
    """Return the arguments that choose items of the gate, all without an expression (as for pytest's -k)."""
    return ["-k", items] if items else []
