"""coverage.py for workers, in a folder of its own: it is neither a dependency of hybridfuzz nor in an engine's venv.

The folder is made once for each interpreter and put last on PYTHONPATH, behind everything that the engine imports.
"""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from msgspec import structs

from .environment import cache_folder, made_once, pip_python
from .launch import Launch
from .pip import Progress, pip

REQUIREMENTS = Path(__file__).with_name("requirements-coverage.txt")


def with_coverage(launch: Launch, progress: Progress) -> Launch:
    """Return a launch whose worker can import coverage.py; one that is installed for this interpreter is used.

    Raises TargetError if it cannot be installed.
    """
    if launch.python == sys.executable and find_spec("coverage") is not None:
        return launch
    folder = tool_folder(progress)
    path = launch.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    added = os.pathsep.join(filter(None, [path, str(folder)]))
    return structs.replace(launch, env={**launch.env, "PYTHONPATH": added})


def tool_folder(progress: Progress) -> Path:
    """Return the folder with coverage.py; install it if it is missing. All venvs have the version of this Python."""
    key = sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / "tools" / f"coverage-{key}"
    with made_once(folder, "coverage.py", 0.05, progress) as missing:
        if missing:
            arguments = ["install", "--no-deps", "--upgrade", "--target", str(folder), "-r", str(REQUIREMENTS)]
            pip(pip_python(progress), arguments, "coverage.py", progress)
    return folder
