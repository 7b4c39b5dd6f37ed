"""The front door: what runs is what SGLang resolves from the command in a report, but for a list."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks/front_door.py"


@pytest.mark.engine
def test_drawn_configurations_are_what_sglang_makes_of_their_commands() -> None:
    """Commands of drafts with pages larger than one token, of T-LRU without a threshold and of policies that the parser
    does not have (mru, fifo, filo) were refused."""
    command = [sys.executable, str(BENCHMARK), "--target", "sglang@0.5.23", "--count", "100"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("100 configurations, 0 differences that are not listed\n"), ran.stdout + ran.stderr
