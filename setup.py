"""Which folder installs as which package, and which modules may be compiled; everything else is in pyproject.toml.

Setuptools' declarative discovery cannot combine `find` with this mapping, and a list by hand rots.

`HYBRIDFUZZ_COMPILE=1 pip install .` compiles the hot modules with mypyc. Never into an editable installation: there
an extension would win over the source beside it, whatever is edited. A hot module defines no struct that is decoded
from JSON: mypyc leaves it no annotations that msgspec could read.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

FOLDERS = ("harness", "reference", "targets", "corpus", "reports")
HOT = (
    "reference/*.py",
    "harness/oracles/*.py",
    "harness/lockstep/client_events.py",
    "harness/lockstep/ledger_updates.py",
    "harness/lockstep/lockstep.py",
    "harness/lockstep/reached_states.py",
    "targets/base/shadow.py",
    "targets/hybrid/*.py",
    "targets/hybrid/host/*.py",
    "targets/hybrid/offload/*.py",
    "targets/hybrid/worker/*.py",
)
"""What runs for every step of the embedded target. Mutants, the numeric run and everything outside stay as they are."""
COLD = {"__init__", "numeric_run", "recurrences", "tiny_model", "factory", "repro"}
"""Beside them: float64 maths, and what would have mypyc read all of torch."""
COMPILE = os.environ.get("HYBRIDFUZZ_COMPILE", "") not in ("", "0")
NEEDED = ("mypy>=1.13", "msgspec>=0.18", "mypy_extensions>=1.0", "numpy>=1.26")
"""To compile: mypyc, and what it reads the types of."""


def hot_modules() -> list[Path]:
    """The files of HOT."""
    return sorted(path for pattern in HOT for path in Path().glob(pattern) if path.stem not in COLD)


def extensions() -> list[Extension]:
    """The hot modules in C, under their installed names."""
    from mypyc.build import mypycify  # part of mypy, which only this needs

    linked = Path("build/types/hybridfuzz")
    linked.mkdir(parents=True, exist_ok=True)
    for folder in FOLDERS:
        if not (linked / folder).is_symlink():
            (linked / folder).symlink_to(Path("../../..") / folder)
    files = [str(linked / path) for path in hot_modules()]
    return mypycify(["--explicit-package-bases", *files], opt_level="1", debug_level="0", target_dir="build/c")


if COMPILE and {"develop", "editable_wheel", "--inplace"} & set(sys.argv):
    sys.exit("HYBRIDFUZZ_COMPILE=1 is for a wheel: beside sources that are edited, compiled modules would win")
building = COMPILE and bool({"build", "build_ext", "bdist_wheel"} & set(sys.argv))
setup(
    package_dir={f"hybridfuzz.{folder}": folder for folder in FOLDERS},
    packages=[f"hybridfuzz.{package}" for package in find_packages(include=[f"{folder}*" for folder in FOLDERS])],
    ext_modules=extensions() if building else [],
    setup_requires=NEEDED if COMPILE else (),
)
