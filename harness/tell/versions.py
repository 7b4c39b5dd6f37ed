"""Versions of the packages in a target's environment, which may differ from hybridfuzz's own."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence

from ...targets.base.launch import Launch
from ..workers.process import worker_environment
from ..workers.worker_rights import Home

SECONDS = 60.0
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
                env=worker_environment(launch, home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=SECONDS,
                check=True,
            )
        found: Mapping[str, str] = json.loads(ended.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {str(name): str(number) for name, number in found.items()}


def system() -> str:
    """Return the operating system and the architecture: "Debian GNU/Linux 12 (bookworm), x86_64"."""
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        name = platform.system()
    return f"{name}, {platform.machine()}"
