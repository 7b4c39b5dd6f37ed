"""llama.cpp's releases and the environment of its workers.

A release is a wheel of xllamacpp, whose extension module exports llama.cpp's C API; the third number of its version is
llama.cpp's build. Of its Python only the server of `llamacpp:server` is used. `llamacpp@PATH` is a shared library that
a build of a checkout leaves (`libllama.so`), or the folder with it.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from msgspec import structs

from ..base import releases
from ..base.environment import cache_folder, importable, make_venv
from ..base.launch import Launch
from ..base.pip import Progress
from ..base.protocol import TargetError
from .library import LIBRARY

BUILT = "libllama.so"


def _variables(home: Path) -> dict[str, str]:
    """Return environment variables: one thread, no GPU; a failed assertion prints no stack of a debugger."""
    del home
    return {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "GGML_NO_BACKTRACE": "1"}


ENGINE = releases.EngineReleases(
    name="llamacpp",
    title="llama.cpp",
    example="2026.10.11549",
    requirements=Path(__file__).parent / "requirements.txt",
    venv_gigabytes=0.3,
    release_gigabytes=0.3,
    unwanted=re.compile(r"\.py$"),
    variables=_variables,
    package="xllamacpp",
)


def prepare(version: str, progress: Progress) -> Launch:
    """Return how to start a worker for a release, a built library, or the xllamacpp that is installed here."""
    if version and not version[0].isdigit():
        return _prepare_built(version, progress)
    launch = releases.prepare(ENGINE, version, progress)
    if not launch.tree:
        return launch
    [library] = (Path(launch.tree) / ENGINE.distribution).glob("*.so")
    return structs.replace(launch, env={**launch.env, LIBRARY: str(library)})


def _prepare_built(path: str, progress: Progress) -> Launch:
    place = Path(path).expanduser().absolute()
    library = place / BUILT if place.is_dir() else place
    if not library.is_file():
        raise TargetError(f"target 'llamacpp@{path}': neither a release number, nor a {BUILT} or a folder with one")
    python = make_venv(ENGINE.requirements, "the environment for llama.cpp", ENGINE.venv_gigabytes, progress)
    variables = {"PYTHONPATH": str(importable()), "PYTHONSAFEPATH": "1", LIBRARY: str(library)}
    return Launch(str(python), variables | _variables(cache_folder()), str(library))


available = partial(releases.available, ENGINE)
between = partial(releases.between, ENGINE)
