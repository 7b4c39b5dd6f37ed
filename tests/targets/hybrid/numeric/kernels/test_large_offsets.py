"""Every kernel reaches blocks more than 2**31 elements into the pool. Needs a GPU with 12 GB."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from device_support import HAS_GPU, Arena, ints, normal, torch

from hybridfuzz.targets.hybrid.numeric.kernels import torch_reference
from hybridfuzz.targets.hybrid.numeric.kernels.implementations import implementation
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Regions, Rows, Stops, ZeroPlan
from hybridfuzz.targets.hybrid.numeric.kernels.ops import Ops

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("large"), pytest.mark.skipif(not HAS_GPU, reason="no GPU here")]
BLOCKS, PAGE, PITCH = 9000, 4096, 1 << 20  # 2.4 * 2**30 elements of 4 bytes
FAR = (BLOCKS - 1, BLOCKS - 7, 8300, 2)

Launch = Callable[[Ops, Arena, str], Any]


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[Arena, Arena]]:
    """The same content twice: close together on the CPU, far apart on the GPU."""
    near = Arena(BLOCKS, PAGE)
    content = near.field(0, torch.float32, (PAGE // 4,))
    for block in FAR:
        content[block] = normal(block, PAGE // 4)
    yield near, near.copy("cuda", PITCH)
    torch.cuda.empty_cache()


def compare(pools: tuple[Arena, Arena], launch: Launch) -> None:
    """Check that a launch changes both pools, and computes outputs, equally up to float32 rounding."""
    near, far = pools
    far.pages.copy_(near.pages)
    before = near.copy()
    expected, actual = launch(torch_reference, near, "cpu"), launch(implementation("cuda"), far, "cuda")
    assert not torch.equal(near.bytes(), before.bytes()) or expected is not None
    one, other = (arena.pages.cpu().view(torch.float32) for arena in pools)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    if expected is not None:
        assert expected.isfinite().all()
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_moves(pools: tuple[Arena, Arena]) -> None:
    def zero(ops: Ops, arena: Arena, device: str) -> None:
        ops.zero_blocks(ZeroPlan.of([arena.pages[:, 64:512]]), torch.tensor([FAR[1], BLOCKS], device=device))

    def copy(ops: Ops, arena: Arena, device: str) -> None:
        at = [arena.GUARD + block * arena.pitch for block in FAR]
        ops.copy_regions(arena.pool, Regions.of([(at[0], at[1], 1024), (at[3], at[0] + 2048, 512)], device))

    compare(pools, zero)
    compare(pools, copy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_keys_and_values(pools: tuple[Arena, Arena], dtype: Any) -> None:
    def caches(arena: Arena) -> tuple[Any, Any]:
        return arena.field(0, dtype, (4, 2, 8)), arena.field(2048, dtype, (4, 2, 8))

    def write(ops: Ops, arena: Arena, device: str) -> None:
        key, value = (normal(seed, 16, 2, 8).to(device) for seed in (1, 2))
        slots = torch.tensor([block * 4 + slot for block in FAR for slot in range(4)], device=device)
        ops.write_kv(key, value, *caches(arena), slots)

    def attend(ops: Ops, arena: Arena, device: str) -> Any:
        query = normal(3, 3, 4, 8).to(device)
        output = torch.full_like(query, float("nan"))
        rows, lengths = Rows.of([1, 2], device), ints([6, 8]).to(device)
        table = ints([[FAR[0], FAR[2]], [FAR[3], FAR[1]]]).to(device)
        ops.paged_attention(query, *caches(arena), table, rows, lengths, output, scale=0.3, masking="multiply")
        return output

    compare(pools, write)
    compare(pools, attend)


def test_convolution(pools: tuple[Arena, Arena]) -> None:
    def launch(update: bool) -> Launch:
        def run(ops: Ops, arena: Arena, device: str) -> Any:
            state = arena.field(0, torch.float32, (5, 33))
            shapes = ((3, 33), (33, 4), (33,))
            inputs, weight, bias = (normal(seed, *shape).to(device) for seed, shape in enumerate(shapes))
            output = torch.full_like(inputs, float("nan"))
            where = Rows.of([1, 2], device), ints([FAR[0], FAR[3]]).to(device), ints([0, 1]).to(device)
            if update:
                ops.conv_update(inputs, weight, bias, state, *where, ints([FAR[1], FAR[2]]).to(device), output)
            else:
                stops = Stops.of([[(1, FAR[2])], [(1, FAR[0] - 9), (2, FAR[1])]], device)
                ops.conv_prefill(inputs, weight, bias, state, *where, stops, output)
            return output

        return run

    compare(pools, launch(update=False))
    compare(pools, launch(update=True))


def test_recurrences(pools: tuple[Arena, Arena]) -> None:
    shapes = {"x": (5, 2, 6), "b": (5, 1, 7), "c": (5, 1, 7), "q": (5, 2, 6), "k": (5, 2, 6), "v": (5, 2, 7)}
    tensors = {name: normal(seed, *shape) * 0.3 for seed, (name, shape) in enumerate(shapes.items())}
    rng = random.Random(1)
    time = torch.tensor([[rng.random() for _ in range(2)] for _ in range(5)])

    def launch(which: str) -> Launch:
        def run(ops: Ops, arena: Arena, device: str) -> Any:
            state = arena.field(0, torch.float32, (2, 6, 7))
            x, b, c, q, k, v = (tensor.to(device) for tensor in tensors.values())
            dt, a, d = (tensor.to(device) for tensor in (time, ints([-1, -2]).float(), ints([1, 0]).float()))
            rows, stops = Rows.of([2, 3], device), Stops.of([[(2, FAR[2])], [(1, FAR[1]), (3, FAR[3])]], device)
            table, columns = ints([[0, FAR[0]], [FAR[3], 0]]).to(device), ints([1, 0]).to(device)
            output = torch.full_like(v if which == "delta" else x, float("nan"))
            if which == "update":
                targets = ints([[FAR[1], FAR[2], 0], [0, FAR[3], FAR[0]]]).to(device)
                ops.state_update(state, x, dt, a, b, c, d, rows, table, columns, targets, output)
            elif which == "scan":
                ops.chunk_scan(state, x, dt, a, b, c, d, rows, ints([FAR[0], 0]).to(device), stops, output)
            else:
                ops.delta_rule(state, q, k, v, -dt, dt, rows, table, columns, stops, output)
            return output

        return run

    for which in ("update", "scan", "delta"):
        compare(pools, launch(which))
