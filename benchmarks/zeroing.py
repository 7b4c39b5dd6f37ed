"""Bandwidth of the zeroing kernel beside cudaMemset and a copy, at the sizes of vLLM PR #35219. Needs a GPU.

    python benchmarks/zeroing.py

Every figure is the median over replays of a CUDA graph that holds the launch several times, each time with other
blocks, so that neither launch gaps nor the cache are measured. Poison, zero, verify comes first.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import triton

from hybridfuzz.targets.hybrid.numeric.kernels.implementations import implementation
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import ZeroPlan
from hybridfuzz.targets.hybrid.numeric.kernels.staging import Staging

LAYERS, SEGMENT, BLOCKS = 12, 152 * 1024, 2048  # 1.78 MiB a block
SETS = 12
MIB = 1 << 20


def graph_microseconds(launch: Callable[[int], object], repeats: int) -> float:
    """Median time of one launch(i), from replays of a graph with `repeats` of them."""
    for i in range(repeats):
        launch(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(repeats):
            launch(i)
    times = []
    for _ in range(40):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / repeats)
    return statistics.median(times[10:])


def memset() -> Callable[[torch.Tensor], None]:
    """cudaMemsetAsync on the current stream, from the runtime that torch has loaded."""
    runtime: Any = None
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            runtime = ctypes.CDLL(name)
            break
        except OSError:
            continue
    assert runtime is not None, "no CUDA runtime found"

    def clear(buffer: torch.Tensor) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        size = ctypes.c_size_t(buffer.numel())
        assert runtime.cudaMemsetAsync(ctypes.c_void_p(buffer.data_ptr()), 0, size, stream) == 0

    return clear


def measure(pools: list[torch.Tensor], count: int, repeats: int) -> dict[str, float]:
    """GB/s of bytes cleared, for `count` blocks."""
    zero_blocks = implementation("cuda").zero_blocks
    plan = ZeroPlan.of(pools)
    sets = [torch.randperm(BLOCKS - 1, device="cuda")[:count] + 1 for _ in range(SETS)]
    for pool in pools:
        pool.fill_(0xAB)
    zero_blocks(plan, sets[0])
    listed = torch.zeros(BLOCKS, dtype=torch.bool, device="cuda")
    listed[sets[0]] = True
    assert all((pool[listed] == 0).all() and (pool[~listed] == 0xAB).all() for pool in pools)
    size = count * SEGMENT * LAYERS
    buffers = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(max(2, min(SETS, 2**30 // size)))]
    clear = memset()
    runs: dict[str, Callable[[int], object]] = {
        "kernel": lambda i: zero_blocks(plan, sets[i % SETS]),
        "cudaMemsetAsync": lambda i: clear(buffers[i % len(buffers)]),
        "Tensor.zero_": lambda i: buffers[i % len(buffers)].zero_(),
        "kernel again": lambda i: zero_blocks(plan, sets[i % SETS]),
    }
    return {name: size / graph_microseconds(run, repeats) / 1000 for name, run in runs.items()}


def copy_ceiling() -> float:
    """GB/s of a device-to-device copy of 4 GiB, bytes read plus bytes written (a graph would use a copy engine)."""
    source = torch.randint(0, 256, (4 << 30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return 2 * source.numel() / statistics.median(times[2:]) / 1e9


def step_microseconds(pools: list[torch.Tensor], count: int) -> tuple[float, float]:
    """What a step pays eagerly: host time of upload and launch, and time until the device is done."""
    zero_blocks, plan, staging = implementation("cuda").zero_blocks, ZeroPlan.of(pools), Staging("cuda")
    ids = torch.randperm(BLOCKS - 1)[:count].add(1).numpy()
    host, whole = [], []
    for _ in range(60):
        torch.cuda.synchronize()
        start = time.perf_counter()
        slot = staging.put(ids)
        zero_blocks(plan, slot.take())
        slot.release()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - start)
    return statistics.median(host[10:]) * 1e6, statistics.median(whole[10:]) * 1e6


def main() -> None:
    """Print a table."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"copy of 4 GiB: {copy_ceiling():.0f} GB/s (read + written)")
    pools = [torch.empty(BLOCKS, SEGMENT, dtype=torch.uint8, device="cuda") for _ in range(LAYERS)]
    for count, repeats in ((515, 6), (30, 60)):
        rates = measure(pools, count, repeats)
        host, whole = step_microseconds(pools, count)
        size = count * SEGMENT * LAYERS
        print(f"{count} blocks in {LAYERS} layers, {size / MIB:.1f} MiB")
        for name, rate in rates.items():
            micros = size / rate / 1000
            print(f"  {name:16} {rate:7.0f} GB/s {micros:8.1f} us  {rate / rates['cudaMemsetAsync']:6.1%} of memset")
        print(f"  in a step, eagerly: host {host:.0f} us, until done {whole:.0f} us")


if __name__ == "__main__":
    main()
