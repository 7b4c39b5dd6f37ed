"""The command line as a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Ran(NamedTuple):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def error(self) -> str:
        """The only error line."""
        [line] = [line for line in self.err.splitlines() if line.startswith("hybridfuzz: error: ")]
        assert "Traceback" not in self.err
        return line


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hybridfuzz.harness.cli", *map(str, arguments)]


Cli = Callable[..., Ran]


def environment_in(folder: Path) -> dict[str, str]:
    """The environment of a command line with the fake targets on its path and a cache in a folder."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "HYBRIDFUZZ_CACHE": str(folder / "cache")}


def command_line_in(folder: Path, environment: Mapping[str, str]) -> Cli:
    """A function that runs the command line in a folder to its end."""

    def run(*arguments: object, **more: Any) -> Ran:
        ended = subprocess.run(
            command(*arguments),
            env={**environment, **more.pop("env", {})},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **more,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    return run


MUTANT = "hybrid:null-as-state-slot"


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def ended(pid: int) -> bool:
    """Whether a process has ended, within a few seconds (nobody may be there to reap an orphan)."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Return the first line of a process's stderr that has a word."""
    assert process.stderr
    for line in process.stderr:
        if word in line:
            return line
    pytest.fail(f"{word!r} never came")
