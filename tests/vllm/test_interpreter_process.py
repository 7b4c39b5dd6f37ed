"""Runs the interpreter's tests in a process where Triton interprets (see test_interpreter_support)."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
NEEDED = {
    "TRITON_INTERPRET": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.engine
@pytest.mark.parametrize("name", ["test_interpreter.py", "test_interpreter_kernels.py"])
def test_in_a_process_that_interprets(name: str) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this process interprets: the tests run here")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "engine", str(FOLDER / name)]
    done = subprocess.run(command, env=os.environ | NEEDED, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode in (0, 5), done.stdout[-5000:] + done.stderr[-2000:]
