"""Time of one launch in Triton's interpreter and in ours: small kernels, as an engine launches them at every step.

    python benchmarks/triton_interpreter.py

The first launch of a kernel compiles it; it is not timed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch
import triton
import triton.language as tl

from hybridfuzz.targets import triton_interpreter

SECONDS = 1.0
ROWS, BLOCK = 8, 1024


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """Add two vectors."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def gather(tables, rows, out, width, BLOCK: tl.constexpr):
    """Copy the rows of a batch from a table of blocks; few of the lanes are used."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    source = tables + tl.load(rows + row) * width
    tl.store(out + row * width + i, tl.load(source + i, mask=i < width), mask=i < width)


@triton.jit
def prefix_sums(x, out, n):
    """Sum numbers one after the other."""
    total = 0
    for i in range(n):
        total += tl.load(x + i)
        tl.store(out + i, total)


def milliseconds(launch: Callable[[], object]) -> float:
    """Return the mean time of one launch, after a first one."""
    launch()
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < SECONDS:
        launch()
        count += 1
    return passed / count * 1e3


def main() -> None:
    """Print a table."""
    x = torch.arange(4 * BLOCK, dtype=torch.int32)
    tables, rows = torch.arange(64 * 12, dtype=torch.int32), torch.arange(ROWS, dtype=torch.int32)
    out = torch.zeros(4 * BLOCK, dtype=torch.int32)
    launches: dict[str, Callable[[], object]] = {
        "add, 4 blocks of 1024": lambda: add[(4,)](x, x, out, len(x), BLOCK=BLOCK),
        "gather, 8 rows of 12 in blocks of 1024": lambda: gather[(ROWS,)](tables, rows, out, 12, BLOCK=BLOCK),
        "prefix_sums, 100 scalars": lambda: prefix_sums[(1,)](x, out, 100),
    }
    print(f"triton {triton.__version__}\n\n| kernel | Triton's, ms | ours, ms | times |\n| --- | --- | --- | --- |")
    for name, launch in launches.items():
        theirs = milliseconds(launch)
        triton_interpreter.install()
        ours = milliseconds(launch)
        triton_interpreter.uninstall()
        print(f"| {name} | {theirs:.2f} | {ours:.3f} | {theirs / ours:.0f} |")
    assert not triton_interpreter.fallbacks()


if __name__ == "__main__":
    main()
