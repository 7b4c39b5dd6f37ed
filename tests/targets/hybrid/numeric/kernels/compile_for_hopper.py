"""Compiles every kernel for a Hopper GPU on a machine that has none, by launching it on a driver that only compiles.

Triton's interpreter runs Python: it accepts what the compiler refuses (a variable that changes its shape in a loop).
Run by test_compiles_without_gpu.py in a process of its own, since triton must not have been imported to interpret.
"""

import sys
import types
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hybridfuzz.targets.hybrid.numeric.kernels import triton_kernels as ops
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Regions, Rows, Stops, ZeroPlan

COMPILED: list[str] = []


def pretend() -> None:
    """A driver with a fixed target, whose launches only compile."""
    compile_only = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        compile_only(self, *args, grid=grid, warmup=True, **kwargs)
        COMPILED.append(self.fn.__name__)

    JITFunction.run = run
    driver.set_active(
        types.SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 90, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
        )
    )


def ints(*shape: int) -> Any:
    return torch.zeros(shape, dtype=torch.int32)


def compile_moves() -> None:
    pool = torch.zeros(4, 64, dtype=torch.uint8)
    ops.zero_blocks(ZeroPlan.of([pool]), ints(2))
    ops.copy_regions(pool.view(-1), Regions.of([(0, 64, 32)]))
    table, vector = ints(2, 4), ints(2)
    ops.gather_columns(table, vector, vector, ints(2, 3))
    ops.slot_mapping(table, vector, Rows.of([1, 2]), vector, torch.zeros(3, dtype=torch.int64), block_size=4)
    for mode in ("none", "align"):
        ops.state_indices(*(table, *(vector,) * 7), ints(2, 3), mode=mode, block_size=4)
    ops.boundary_stops(table, vector, vector, vector, ints(2, 3), ints(2, 3), block_size=4)


def compile_attention(dtype: Any) -> None:
    keys, heads = torch.zeros(4, 8, 2, 5, dtype=dtype), torch.zeros(3, 4, 5)
    ops.write_kv(heads[:, :2], heads[:, :2], keys, keys, torch.zeros(3, dtype=torch.int64))
    for masking, window in (("where", 0), ("multiply", 3)):
        ops.paged_attention(
            heads, keys, keys, ints(2, 4), Rows.of([1, 2]), ints(2), heads, scale=1.0, masking=masking, window=window
        )  # fmt: skip


def compile_mixers(dtype: Any) -> None:
    rows, stops, vector = Rows.of([1, 2]), Stops.of([[(1, 1)], [(2, 2)]]), ints(2)
    inputs, filters = torch.zeros(3, 12), (torch.zeros(12, 4), torch.zeros(12))
    conv = torch.zeros(4, 5, 12, dtype=dtype)
    ops.conv_prefill(inputs, *filters, conv, rows, vector, vector, stops, inputs)
    ops.conv_update(inputs, *filters, conv, rows, vector, vector, vector, inputs)
    state, x, b = torch.zeros(4, 2, 6, 7, dtype=dtype), torch.zeros(3, 2, 6), torch.zeros(3, 1, 7)
    dt, a = torch.zeros(3, 2), torch.zeros(2)
    ops.state_update(state, x, dt, a, b, b, a, rows, ints(2, 2), vector, ints(2, 2), x)
    ops.chunk_scan(state, x, dt, a, b, b, a, rows, vector, stops, x)
    value = torch.zeros(3, 2, 7)
    ops.delta_rule(state, x, x, value, dt, dt, rows, ints(2, 2), vector, stops, value)


if __name__ == "__main__":
    pretend()
    compile_moves()
    compile_attention(torch.float8_e4m3fn)
    compile_mixers(torch.bfloat16)
    sys.stdout.write(" ".join(COMPILED))
