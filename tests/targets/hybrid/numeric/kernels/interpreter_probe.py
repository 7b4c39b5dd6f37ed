"""A kernel with a loop of a loaded length: Triton 3.6's interpreter cannot run one with numpy 2.4 (triton #9171)."""

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def count(length: Any, result: Any) -> None:
    """Count up to length."""
    total = 0
    for _ in range(tl.load(length)):
        total += 1
    tl.store(result, total)


def loops_work() -> bool:
    """Return True if the interpreter counts to three."""
    result = torch.zeros(1, dtype=torch.int32)
    try:
        count[(1,)](torch.full((1,), 3, dtype=torch.int32), result)
    except Exception as error:
        if "0-dimensional arrays" in str(error):
            return False
        raise
    return bool(result[0] == 3)
