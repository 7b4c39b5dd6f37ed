"""The command line, with the fake targets on its path and a cache folder of its own."""

import os
import subprocess
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from cli_process import Cli, Ran, command

HERE = Path(__file__).parent
# A busy machine can take longer than Hypothesis's 200 ms for any example.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "HYBRIDFUZZ_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def hybridfuzz(environment: dict[str, str], tmp_path: Path) -> Cli:
    """Run the command line to its end."""

    def run(*arguments: object, **more: Any) -> Ran:
        ended = subprocess.run(
            command(*arguments),
            env={**environment, **more.pop("env", {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **more,
        )
        return Ran(ended.returncode, ended.stdout, ended.stderr)

    return run
