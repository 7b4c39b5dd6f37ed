"""vLLM's `_insert_resampled_kernel` alone, on a busy GPU: do its late warps read the count that the first one raised?

    python benchmarks/sampler_race.py --tree TREE --warps 4    ends with an illegal memory access
    python benchmarks/sampler_race.py --tree TREE --warps 1    runs to its end

Each of the kernel's warps loads a row's `num_sampled`, and one thread stores `num_sampled + 1`, without a barrier in
between. A warp that loads later uses the raised count as an index: it takes the entry behind its own in
`expanded_idx_mapping`, and reads the temperature of the request that this one names. Here each row has two entries and
no draft is accepted, so a row needs its first one; the second names a request far outside the array. vLLM launches the
kernel with Triton's default of four warps (0.33.0, `gpu/spec_decode/rejection_sampler_utils.py`, `rejection_sample`).

A second stream keeps the scheduler of each multiprocessor busy, as other processes do under MPS: on an idle GPU the
warps stay within the time of one load, and nothing happens.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

ROWS = 4096
OUTSIDE = 1 << 30
BLOCKS = 8
ROUNDS = 20_000
WIDTH = 512


@triton.jit
def busy_kernel(out, rounds, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Compute for some milliseconds in registers, then store the result."""
    x = tl.arange(0, WIDTH).to(tl.float32) + tl.program_id(0)
    y = x * 0.5
    for _ in range(rounds):
        x = x * 1.000001 + y
        y = tl.exp2(y * 0.1) + x * 0.001
        x = tl.sin(x) + tl.cos(y)
    tl.store(out + tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), x + y)


def main() -> int:
    """Launch until the time is over or the GPU faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, help="an unpacked vLLM wheel (the installed one)")
    parser.add_argument("--warps", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--busy", type=int, default=2, help="programs of the other kernel for each multiprocessor")
    options = parser.parse_args()
    if options.tree:
        sys.path.insert(0, str(options.tree))
    from hybridfuzz.targets.vllm.gpu.factory import make_factory
    from hybridfuzz.targets.vllm.gpu.stand_ins import variables

    for name, value in variables(Path(tempfile.gettempdir()) / "hybridfuzz-gpu", "cuda").items():
        os.environ.setdefault(name, value)
    make_factory("vllm", "cuda")  # stands in for the binaries that a tree lacks
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import _insert_resampled_kernel

    device, processors = "cuda", torch.cuda.get_device_properties(0).multi_processor_count
    temperature = torch.zeros(ROWS, device=device)
    mapping = torch.arange(ROWS, dtype=torch.int32, device=device).repeat_interleave(2)
    mapping[1::2] = OUTSIDE
    first_entry = torch.arange(0, 2 * ROWS + 1, 2, dtype=torch.int32, device=device)
    sampled = torch.zeros(ROWS, 3, dtype=torch.int64, device=device)
    arguments = torch.zeros(ROWS, BLOCKS, dtype=torch.int64, device=device)
    largest = torch.zeros(ROWS, BLOCKS, device=device)
    out = torch.zeros(processors * options.busy * WIDTH, device=device)
    other, launches, end = torch.cuda.Stream(), 0, time.monotonic() + options.seconds
    try:
        while time.monotonic() < end:
            if launches % 64 == 0:
                with torch.cuda.stream(other):
                    busy_kernel[(processors * options.busy,)](out, ROUNDS, WIDTH, num_warps=16)
            _insert_resampled_kernel[(ROWS,)](
                sampled, sampled.stride(0), torch.zeros(ROWS, dtype=torch.int32, device=device),
                arguments, arguments.stride(0), largest, largest.stride(0), BLOCKS, first_entry, mapping, temperature,
                PADDED_RESAMPLE_NUM_BLOCKS=BLOCKS, num_warps=options.warps,
            )  # fmt: skip
            launches += 1
            if launches % 1024 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(
            f"{options.warps} warps: fault within {launches:,} launches of {ROWS:,} rows: {str(error).splitlines()[0]}"
        )
        return 1
    print(f"{options.warps} warps: no fault in {launches:,} launches of {ROWS:,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
