"""compute-sanitizer over the compiled kernels' tests, after it was shown to see into Triton kernels. Needs a GPU.

    python benchmarks/sanitize.py            exit status 0: both tools found the planted error, and nothing else

PyTorch's caching allocator hides over-reads, so caching is off.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

TOOLS = ("memcheck", "initcheck")
FOUND = 9
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "TRITON_DISABLE_LINE_INFO": "0"}
TESTS = Path(__file__).parents[1] / "tests" / "device"


@triton.jit
def add_one(source, target, offset):  # type: ignore[no-untyped-def]
    """target[0] = source[offset] + 1"""
    tl.store(target, tl.load(source + offset) + 1)


def plant(tool: str) -> None:
    """One read beyond an allocation (memcheck), or of memory that nobody wrote (initcheck)."""
    source, target = torch.empty(1 << 20, device="cuda"), torch.zeros(1, device="cuda")
    add_one[(1,)](source, target, 1 << 24 if tool == "memcheck" else 5)
    torch.cuda.synchronize()


def sanitize(tool: str, *command: str) -> int:
    """Exit status under the tool: FOUND if it found something."""
    installed = sorted(map(str, Path("/usr/local").glob("cuda*/bin/compute-sanitizer")))
    where = shutil.which("compute-sanitizer") or next(iter(installed), None)
    assert where is not None, "compute-sanitizer is not installed"
    whole = [where, "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, *command]
    return subprocess.run(whole, env={**os.environ, **ENVIRONMENT}, check=False).returncode


def main() -> int:
    """Run both tools."""
    if len(sys.argv) > 2:
        plant(sys.argv[2])
        return 0
    for tool in TOOLS:
        if sanitize(tool, __file__, "--plant", tool) != FOUND:
            print(f"{tool} did not see the planted error: its silence proves nothing")
            return 1
        if status := sanitize(tool, "-m", "pytest", "-q", "-m", "gpu", str(TESTS)):
            print(f"{tool}: exit status {status}")
            return 1
    print("both tools saw their planted error, and nothing in the tests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
