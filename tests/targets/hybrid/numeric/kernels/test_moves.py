"""Zeroing, cache writes and region copies change exactly the intended bytes, to exactly the right bits."""

import random
from typing import Any

import pytest
from device_support import FORMATS, Arena, Backend, moved, normal, pad, same_bits, strided, torch

from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Regions, ZeroPlan
from hybridfuzz.targets.hybrid.numeric.kernels.torch_reference import copy_regions, write_kv


def test_zeroing_clears_the_listed_blocks_and_nothing_else(backend: Backend, seed: int) -> None:
    rng = random.Random(seed)
    unit = rng.choice([1, 2, 4, 8, 16])
    segments = rng.randint(1, 4)
    lengths = [unit * rng.randint(1, 40) for _ in range(segments)]
    gaps = [unit * rng.randint(0, 3) for _ in range(segments)]
    blocks, page = rng.randint(2, 12), sum(lengths) + sum(gaps) + unit
    arena = Arena(blocks, page)
    arena.pages.copy_(torch.randint(1, 256, arena.pages.shape, dtype=torch.uint8))
    expected, actual = arena.copy(), arena.copy(backend.device)
    ids = [rng.randint(-2, blocks + 2) for _ in range(rng.randint(0, 6))]
    at, views = 0, []
    for length, gap in zip(lengths, gaps, strict=True):
        views.append(actual.pages[:, at : at + length])
        for block in ids:
            if 0 < block < blocks:
                expected.pages[block, at : at + length] = 0
        at += length + gap
    kind = rng.choice([torch.int32, torch.int64])
    backend.ops.zero_blocks(ZeroPlan.of(views), torch.tensor(ids, dtype=kind, device=backend.device))
    assert torch.equal(actual.bytes(), expected.bytes())


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_cache_writes_round_like_torch(backend: Backend, seed: int, dtype: Any) -> None:
    rng = random.Random(seed)
    size, heads, dim, tokens = rng.choice([1, 3, 8, 16, 64]), rng.choice([1, 2, 3, 5]), rng.randint(1, 70), 7
    blocks, half = 5, pad(size * heads * dim * dtype.itemsize)
    arena = Arena(blocks, 2 * half + 16)
    order = rng.choice([(0, 1, 2), (1, 0, 2), (1, 2, 0)])
    # Up to saturation, down to subnormals, and a NaN.
    key, value = (normal(seed + i, tokens, heads, dim, scale=10 ** rng.uniform(-3, 3)) for i in range(2))
    key[0, 0, 0], value[-1, -1, -1] = float("nan"), -0.0
    slots = [*rng.sample(range(size, blocks * size), 4), -1, rng.randrange(size), blocks * size + 3]
    rng.shuffle(slots)
    scales = {"key_scale": rng.choice([1.0, 0.5, 1.7]), "value_scale": rng.choice([1.0, 3.1])}
    expected, actual = arena.copy(), arena.copy(backend.device)
    for target, run in ((expected, write_kv), (actual, backend.ops.write_kv)):
        caches = [target.field(at, dtype, (size, heads, dim), order) for at in (0, half)]
        inputs = [moved(strided(rng, tensor), target.pool.device) for tensor in (key, value)]
        run(*inputs, *caches, torch.tensor(slots).to(target.pool.device), **scales)
    actual = actual.copy()
    for at in (0, half):  # any NaN will do
        for cache in (target.field(at, dtype, (size, heads, dim), order) for target in (expected, actual)):
            cache.copy_(torch.where(cache.float().isnan(), torch.nan, cache.float()).to(dtype))
    assert torch.equal(actual.bytes(), expected.bytes())
    assert not torch.equal(arena.bytes(), expected.bytes()) or size * (blocks - 1) < 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_ties_go_to_even(backend: Backend, dtype: Any) -> None:
    """Return values exactly between two numbers of the format, normal and subnormal."""
    half = FORMATS[dtype].unit
    odd = 2 * torch.arange(16) + 1
    values = torch.cat([1 + half * odd, -1 - half * odd, odd * FORMATS[dtype].step])[None, None, :]
    source, slots, cache = backend.put(values, torch.tensor([1]), torch.zeros(2, 1, 1, values.shape[2], dtype=dtype))
    backend.ops.write_kv(source, source, cache, cache, slots)
    assert same_bits(cache[1, 0, 0], values[0, 0].to(dtype))
    assert (cache[1, 0, 0].cpu().float() != values[0, 0]).all()


def draw_regions(rng: random.Random, bytes_total: int, unit: int) -> list[tuple[int, int, int]]:
    """Draw consecutive regions of the pool, each disjoint from the others; some overlap themselves."""
    regions, at = [], 0
    for _ in range(rng.randint(0, 6)):
        length = unit * rng.choice([1, 3, 17, rng.randint(1, 400)])
        shift = unit * rng.choice([0, 1, 2, rng.randint(0, 30), length // unit + rng.randint(0, 9)])
        if at + length + shift > bytes_total:
            break
        regions.append((at, at + shift, length) if rng.random() < 0.5 else (at + shift, at, length))
        at += length + shift
    return regions


def test_copies_are_memmoves(backend: Backend, seed: int) -> None:
    rng = random.Random(seed)
    unit, total = rng.choice([1, 2, 4, 8]), 20000
    pool = torch.randint(0, 256, (total,), dtype=torch.uint8)
    regions = draw_regions(rng, total, unit)
    regions += [(total - 4, 0, 8), (-8, 0, 8), (0, 8, 0)]  # out of the pool, or empty: skipped
    expected = bytearray(pool.numpy().tobytes())
    for source, destination, length in regions[:-3]:
        expected[destination : destination + length] = expected[source : source + length]
    actual = pool.to(backend.device, copy=True)
    backend.ops.copy_regions(actual, Regions.of(regions, backend.device))
    assert actual.cpu().numpy().tobytes() == bytes(expected)


@pytest.mark.parametrize("shift", [-8, -1, 1, 8, 4096])
def test_a_large_region_may_overlap_itself(backend: Backend, shift: int) -> None:
    """Many pieces: each is read before it is overwritten."""
    length = 60_000 if backend.name == "compiled" else 9_000
    pool = torch.randint(0, 256, (length + 8192,), dtype=torch.uint8)
    source = 4096
    expected = pool.clone()
    expected[source + shift : source + shift + length] = pool[source : source + length]
    actual = pool.to(backend.device, copy=True)
    backend.ops.copy_regions(actual, Regions.of([(source, source + shift, length)], backend.device))
    assert torch.equal(actual.cpu(), expected)


def test_many_regions_from_one_source(backend: Backend) -> None:
    """Several requests that start from one cached state."""
    pool = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    regions = [(0, 256 * (i + 1), 200) for i in range(12)]
    expected, actual = pool.clone(), pool.to(backend.device, copy=True)
    copy_regions(expected, Regions.of(regions))
    backend.ops.copy_regions(actual, Regions.of(regions, backend.device))
    assert torch.equal(actual.cpu(), expected)
    assert same_bits(expected[256:456], pool[:200])
