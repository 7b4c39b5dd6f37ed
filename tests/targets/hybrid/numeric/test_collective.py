"""Ranks in separate processes vote through a collective, execute equally many steps and end clean."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[4] / "benchmarks" / "ranks.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TWO_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=TWO_GPUS)])
def test_two_processes(device: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [*TORCHRUN, str(SCRIPT), device, "1"]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = re.findall(r"\{[^{}]*\}", ran.stdout)  # two processes may share a line
    results = [json.loads(line) for line in lines]
    assert sorted(result["rank"] for result in results) == [0, 1]
    assert all(result["steps"] and not result["violations"] for result in results)
