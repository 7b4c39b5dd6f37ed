"""Versions of the packages in a target's environment, which may differ from hybridfuzz's own."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...targets.base.launch import Launch
from ..quoting import clean
from ..workers.worker_environment import Home
from ..workers.worker_process import variables_for

SECONDS = 60.0
COLLECT_SECONDS = 180.0
OUTPUT_MAX = 20_000
PROBE = """\
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
found = {"Python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def versions_of(launch: Launch, packages: Sequence[str]) -> Mapping[str, str]:
    """Return the versions of Python and of the packages that are installed there; {} if the interpreter fails.

    Nothing is imported.
    """
    try:
        with Home() as home:
            ended = subprocess.run(
                [launch.python, "-c", PROBE, *packages],
                env=variables_for(launch, home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=True,
            )
        found: Mapping[str, str] = json.loads(ended.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {str(name): str(number) for name, number in found.items()}


OURS = ".cache/hybridfuzz"
"""In lines about a worker's folders, which are no part of the environment that the engine has."""


def collected(launch: Launch, arguments: Sequence[str]) -> str:
    """Return what the engine's own tool says of its environment, "" if there is none or it fails. Folders that are in
    the command of the engine are left out."""
    if not arguments:
        return ""
    try:
        with Home() as home:
            ended = subprocess.run(
                [launch.python, *arguments],
                env=variables_for(launch, home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COLLECT_SECONDS,
                check=True,
            )
    except (OSError, subprocess.SubprocessError):
        return ""
    text = clean(ended.stdout.decode(errors="replace").strip(), OUTPUT_MAX)
    for folder in (launch.tree, str(Path(launch.python).parents[1]), str(home), str(Path.home())):
        text = text.replace(folder, "...") if folder else text
    return "\n".join(line for line in text.splitlines() if OURS not in line)


def system() -> str:
    """Return the operating system and the architecture: "Debian GNU/Linux 12 (bookworm), x86_64"."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return f"{name}, {platform.machine()}"
