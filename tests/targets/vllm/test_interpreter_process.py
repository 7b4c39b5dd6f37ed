"""Runs tests that import vLLM in its environment, where Triton interprets (interpreter_support.py)."""

import os
import subprocess
from pathlib import Path

import pytest

from hybridfuzz.targets.base.registry import prepare

FOLDER = Path(__file__).parent
FILES = (
    "../triton_interpreter/test_interpreter.py",
    "../triton_interpreter/test_vllm_kernels.py",
    "test_vllm_recorder.py",
    "counterparts/test_thinking_budgets.py",
    "test_stall.py",
    "test_graph_sizes.py",
)


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_in_a_process_that_interprets() -> None:
    """One process: importing vLLM takes most of the time."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this process interprets: the tests run here")
    launch = prepare("vllm@0.33.0", print)
    options = ["-v", "-m", "engine or interpreter", "--noconftest"]
    command = [str(launch.python), "-m", "pytest", *options, *(str(FOLDER / name) for name in FILES)]
    done = subprocess.run(
        command, env=os.environ | launch.env, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = [line for line in done.stdout.splitlines() if " PASSED" in line]
    assert [name for name in FILES if not any(Path(name).name in line for line in passed)] == [], done.stdout[-5000:]
