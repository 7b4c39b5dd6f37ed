"""The command line, with the fake targets on its path and a cache folder of its own."""

from pathlib import Path

import hypothesis
import pytest
from cli_process import Cli, command_line_in, environment_in

# A busy machine can take longer than Hypothesis's 200 ms for any example.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path)


@pytest.fixture
def hybridfuzz(environment: dict[str, str], tmp_path: Path) -> Cli:
    return command_line_in(tmp_path, environment)
