"""Compiles the hot modules on request; everything else is in pyproject.toml.

`HYBRIDFUZZ_COMPILE=1 pip install .` compiles the hot modules with mypyc. An editable installation is refused: there the
extension would shadow the source beside it, and edits would have no effect. A hot module must not define a struct that
is decoded from JSON: mypyc drops the annotations that msgspec needs.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

HOT = (
    "reference/*.py",
    "harness/judge/oracles/*.py",
    "harness/judge/oracles/numeric/*.py",
    "harness/judge/client_events.py",
    "harness/judge/ledger_updates.py",
    "harness/judge/lockstep.py",
    "harness/judge/reached_states.py",
    "harness/judge/situations.py",
    "targets/base/shadow.py",
    "targets/hybrid/*.py",
    "targets/hybrid/host/*.py",
    "targets/hybrid/offload/*.py",
    "targets/hybrid/worker/*.py",
)
"""Modules that run in every step of the embedded target. Mutants, the numeric run and all others stay interpreted."""
COLD = {"__init__", "factory", "repro"}
"""Modules matched by HOT that stay interpreted: they would make mypyc read all of torch."""
COMPILE = os.environ.get("HYBRIDFUZZ_COMPILE", "") not in ("", "0")
NEEDED = ("mypy>=1.13", "msgspec>=0.18", "mypy_extensions>=1.0", "numpy>=1.26")
"""Build requirements of the compiled build: mypyc, and the packages whose types it reads."""


def hot_modules() -> list[Path]:
    """Return the paths of the modules to compile."""
    return sorted(path for pattern in HOT for path in Path().glob(pattern) if path.stem not in COLD)


def extensions() -> list[Extension]:
    """Return the hot modules as C extensions under their installed names."""
    from mypyc.build import mypycify  # part of mypy, which only the compiled build needs

    files = [str("src/hybridfuzz" / path) for path in hot_modules()]
    return mypycify(["--explicit-package-bases", *files], opt_level="1", debug_level="0", target_dir="build/c")


if COMPILE and {"develop", "editable_wheel", "--inplace"} & set(sys.argv):
    sys.exit("HYBRIDFUZZ_COMPILE=1 builds wheels only: compiled modules would shadow the sources that are edited")
building = COMPILE and bool({"build", "build_ext", "bdist_wheel"} & set(sys.argv))
setup(
    ext_modules=extensions() if building else [],
    setup_requires=NEEDED if COMPILE else (),
)
