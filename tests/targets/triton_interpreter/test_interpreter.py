"""The fast interpreter's semantics: small kernels, compared with Triton's interpreter bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter_support import both, launch, ours, torch

from hybridfuzz.targets import triton_interpreter
from hybridfuzz.targets.triton_interpreter.host import Host
from hybridfuzz.targets.triton_interpreter.optimize import optimize

triton: Any = pytest.importorskip("triton")
tl: Any = pytest.importorskip("triton.language")
pytestmark = pytest.mark.interpreter

SEEDS = range(4)
since_3_9 = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9),
    reason="the rules for these numbers are those of Triton 3.9",
)


def ints(rng: Any, n: int, low: int, high: int, dtype: Any) -> Any:
    return torch.from_numpy(rng.integers(low, high, n, dtype=np.int64)).to(dtype)


@triton.jit
def arithmetic(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    m = i < n
    a = tl.load(x + i, mask=m, other=7)
    b = tl.load(y + i, mask=m, other=3)
    o = out + i * 12
    tl.store(o, a + b, mask=m)
    tl.store(o + 1, a - b, mask=m)
    tl.store(o + 2, a * b, mask=m)
    tl.store(o + 3, a // b, mask=m)
    tl.store(o + 4, a % b, mask=m)
    tl.store(o + 5, a & b, mask=m)
    tl.store(o + 6, (a | b) ^ 5, mask=m)
    tl.store(o + 7, tl.minimum(a, b) - tl.maximum(a, 3), mask=m)
    tl.store(o + 8, tl.where(a < b, a, -b), mask=m)
    tl.store(o + 9, (a << 3) + (b >> 2), mask=m)
    tl.store(o + 10, ~a, mask=m & (a != b))
    tl.store(o + 11, (a >= 0) & (b <= 5), mask=m)


@triton.jit
def scalar_arithmetic(x, y, out, n):
    i = tl.program_id(0)
    a = tl.load(x + i)
    b = tl.load(y + i)
    o = out + i * 12
    tl.store(o, a + b)
    tl.store(o + 1, a - b)
    tl.store(o + 2, a * b)
    tl.store(o + 3, a // b)
    tl.store(o + 4, a % b)
    tl.store(o + 5, a & b)
    tl.store(o + 6, (a | b) ^ 5)
    tl.store(o + 7, tl.minimum(a, b) - tl.maximum(a, 3))
    tl.store(o + 8, tl.where(a < b, a, -b))
    tl.store(o + 9, (a << 3) + (b >> 2))
    tl.store(o + 10, ~a, mask=a != b)
    tl.store(o + 11, (a >= 0) & (b <= 5))


INTEGERS = ("int8", "uint8", "int16", "int32", "uint32", "int64")


@since_3_9
@pytest.mark.parametrize(
    ("left", "right"),  # Triton refuses to divide numbers of different signedness
    [(a, b) for a in INTEGERS for b in INTEGERS if a[0] == b[0]],
)
def test_integers_wrap_and_divide_as_in_c(left: str, right: str) -> None:
    rng = np.random.default_rng(3)
    n = 21
    x = ints(rng, n, -(2**40), 2**40, getattr(torch, left))
    y = ints(rng, n, -(2**40), 2**40, getattr(torch, right))
    x[:6] = torch.tensor([0, 1, 7, 5, 3, 100])
    y[:6] = torch.tensor([1, 1, 3, 5, 100, 0])
    for out_type in (torch.int64, torch.int32):
        both(scalar_arithmetic, (n,), x, y, torch.zeros(n * 12, dtype=out_type), n)
        both(arithmetic, (3,), x, y, torch.zeros(n * 12, dtype=out_type), n, B=8)


def test_the_smallest_integer() -> None:
    x = torch.tensor([-(2**31), -(2**31), 2**31 - 1, -7], dtype=torch.int32)
    y = torch.tensor([-1, 3, 1, 2], dtype=torch.int32)
    both(scalar_arithmetic, (4,), x, y, torch.zeros(48, dtype=torch.int32), 4)
    both(arithmetic, (1,), x, y, torch.zeros(48, dtype=torch.int32), 4, B=4)


@triton.jit
def floats(x, y, out, best, n, B: tl.constexpr):
    i = tl.arange(0, B)
    m = i < n
    a = tl.load(x + i, mask=m, other=float("-inf"))
    b = tl.load(y + i, mask=m, other=0.5)
    tl.store(out + i, tl.exp(a - b) * 0.1 + tl.log(tl.maximum(b, 1e-6)) / 3, mask=m)
    top, place = tl.max(a, axis=0, return_indices=True)
    tl.store(best, top)
    tl.store(best + 1, place)
    tl.store(best + 2, tl.sum(b, axis=0))
    tl.store(best + 3, tl.min(b, axis=0))
    tl.store(best + 4, tl.argmax(a, axis=0))
    s = tl.load(x)
    t = tl.load(y)
    tl.store(best + 5, tl.exp(s) + t * 0.1)
    tl.store(best + 6, s / t)
    tl.store(best + 7, tl.log(t) - s.to(tl.float64))
    tl.store(best + 8, (s * 3).to(tl.int32))
    tl.store(best + 9, tl.minimum(s, t))
    tl.store(best + 10, tl.where(s > t, s, 2.0))


@since_3_9
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n", [0, 1, 5, 16])
def test_floats_round_alike(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(0, 5, 16).astype(np.float32))
    y = torch.from_numpy(rng.random(16).astype(np.float32))
    if seed == 1 and n > 1:
        x[1] = float("nan")
        y[0] = 0
    if seed == 2:
        x[:] = float("-inf")
    both(floats, (1,), x, y, torch.zeros(16), torch.zeros(11), n, B=16)


@triton.jit
def reductions(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, mask=i < n, other=-3)
    tl.store(out, tl.sum(a))
    tl.store(out + 1, tl.max(a, axis=0))
    tl.store(out + 2, tl.min(a, axis=0))
    tl.store(out + 3, tl.argmax(a, axis=0))
    tl.store(out + 4, tl.argmin(a, axis=0))
    tl.store(out + 5, tl.sum((a > 0).to(tl.int32)))
    tl.store(out + 6 + i, tl.cumsum(a, axis=0))


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8"])
@pytest.mark.parametrize("n", [0, 3, 8])
def test_reductions(n: int, dtype: str) -> None:
    x = ints(np.random.default_rng(n), 8, -(2**31), 2**31, getattr(torch, dtype))
    both(reductions, (1,), x, torch.zeros(14, dtype=torch.int64), n, B=8)


@triton.jit
def helper(x, i, scale: tl.constexpr):
    w = 1.5
    if i % 3 == 0:
        return tl.load(x + i).to(tl.int64), w
    w += 1
    v = tl.load(x + i).to(tl.int64) * scale
    return v, w


@triton.jit
def control(x, out, flags, maybe, n, FLAG: tl.constexpr, STEPS: tl.constexpr):
    pid = tl.program_id(0)
    if pid >= n:
        return
    total = tl.zeros((), tl.int64)
    a = 0
    b = 1
    for i in range(pid):
        v, w = helper(x, i, 3)
        total += v
        a, b = b, a + b
        if w > 2.0 and total > 100:
            total = total - i
    if maybe is not None:
        total += tl.load(maybe + pid)
    if FLAG:
        for j in tl.static_range(STEPS):
            total = total * 2 + j
    ok = tl.load(flags + pid)
    picked = tl.load(x + pid) if pid > 1 else 0
    k = 0
    while k < 3:
        k += 1
    verdict = ok or picked > 5
    tl.store(out + pid * 4, total)
    tl.store(out + pid * 4 + 1, tl.where(verdict, picked, -1))
    tl.store(out + pid * 4 + 2, tl.cdiv(pid + k, 2), mask=not ok)
    tl.store(flags + pid, not ok)


@pytest.mark.parametrize("flag", [False, True])
def test_control_flow(flag: bool) -> None:
    rng = np.random.default_rng(int(flag))
    x = ints(rng, 8, -50, 50, torch.int32)
    flags = torch.from_numpy(rng.random(8) < 0.5)
    maybe = ints(rng, 8, 0, 9, torch.int64) if flag else None
    out = torch.full((32,), -9, dtype=torch.int64)
    both(control, (8,), x, out, flags, maybe, 7, FLAG=flag, STEPS=3)


@triton.jit
def reused(x, out, n, B: tl.constexpr):
    """A name for a block before a loop, and for another one in each of its turns."""
    part = tl.load(x + tl.arange(0, 4))
    tl.store(out + tl.arange(0, 4), part)
    if n > 0:
        best = tl.full((), -100, tl.int64)
        for i in range(0, n, B):
            place = i + tl.arange(0, B)
            part = tl.load(x + place, mask=place < n, other=-100)
            part = part + 1
            best = tl.maximum(best, tl.max(part, axis=0))
        tl.store(out + 4, best)


@pytest.mark.parametrize("n", [0, 1, 8, 20])
def test_a_name_that_each_turn_of_a_loop_assigns_anew_may_change_its_type(n: int) -> None:
    """vLLM's _bias_kernel reads logits of a few tokens, and then of all."""
    x = ints(np.random.default_rng(n), 24, -50, 50, torch.int64)
    both(reused, (2,), x, torch.zeros(8, dtype=torch.int64), n, B=8)


@triton.jit
def read_behind(x, out, n):
    part = tl.load(x + tl.arange(0, 4))
    for i in range(n):
        part = tl.load(x + i + tl.arange(0, 8))
    tl.store(out, tl.sum(part))


@triton.jit
def read_in_the_next_turn(x, out, n):
    part = tl.load(x + tl.arange(0, 4))
    for i in range(n):
        tl.store(out + i, tl.sum(part))
        part = tl.load(x + i + tl.arange(0, 8))


@triton.jit
def read_by_an_outer_loop(x, out, n):
    part = tl.load(x + tl.arange(0, 4))
    for i in range(n):
        tl.store(out + i, tl.sum(part))
        for j in range(n):
            part = tl.load(x + j + tl.arange(0, 8))


@triton.jit
def read_by_an_unrolled_loop(x, out, n):
    part = tl.load(x + tl.arange(0, 4))
    for turn in tl.static_range(2):
        tl.store(out + turn * 4 + tl.arange(0, 4), part)
        for i in range(n):
            part = tl.load(x + i + tl.arange(0, 4))


@pytest.mark.parametrize("n", [0, 3])
def test_the_next_turn_of_an_unrolled_loop_reads_what_a_loop_in_it_left(n: int) -> None:
    both(read_by_an_unrolled_loop, (1,), torch.arange(24), torch.zeros(8, dtype=torch.int64), n)


@pytest.mark.parametrize("jitted", [read_behind, read_in_the_next_turn, read_by_an_outer_loop])
def test_a_type_that_a_loop_changes_for_a_later_reader_is_left_to_triton(jitted: Any) -> None:
    x, name = torch.arange(24), jitted.fn.__name__
    assert not ours(jitted, (1,), x, torch.zeros(8, dtype=torch.int64), 3)
    assert launch.fallbacks.pop(name) == "part: int64, after a turn of the loop int64"


@triton.jit
def tables(pointers, places, out, n, B: tl.constexpr):
    g = tl.program_id(0)
    row = tl.cast(tl.load(pointers + g), tl.pointer_type(tl.int32))
    row = tl.multiple_of(row, 16)
    i = tl.arange(0, B)
    place = tl.load(places + i, mask=i < n, other=0)
    v = tl.load(row + place, mask=(i < n) & (place >= 0), other=-1)
    tl.store(out + g * B + i, v, mask=i < n)
    address = tl.load(pointers + g).to(tl.int64)
    byte = tl.load((address + i * 4).to(tl.pointer_type(tl.uint8)), mask=i < n)
    tl.store((address + i).to(tl.pointer_type(tl.uint8)), byte, mask=i < n)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("n", [0, 5, 8])
def test_pointer_tables_and_gathers(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    groups = [ints(rng, 20, -(2**31), 2**31, torch.int32) for _ in range(3)]
    table = torch.tensor([t.data_ptr() for t in groups], dtype=torch.int64)
    table = table.view(getattr(torch, dtype))
    places = ints(rng, 8, -1, 20, torch.int32)
    out = torch.zeros(24, dtype=torch.int32)
    both(tables, (3,), table, places, out, n, B=8, reached=groups)


@triton.jit
def dimensions(pointers, x, bits, out, n, m, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, C)
    rows = tl.load(pointers + a, mask=a < A - 1, other=0).to(tl.pointer_type(tl.int32))
    first = tl.load(x + b, mask=b < n, other=1)
    mask = (a < A - 1)[:, None, None] & (b < n)[None, :, None] & (c < m)[None, None, :]
    found = tl.load(rows[:, None, None] + b[None, :, None] * 2 + first[None, :, None] + c[None, None, :], mask=mask)
    place = out + a[:, None, None] * 100 + b[None, :, None] * C + c[None, None, :]
    tl.store(place, tl.where(found > 5, found - first[None, :, None], -found), mask=mask)
    word = tl.load(bits + tl.arange(0, B), mask=tl.arange(0, B) < n)
    flags = ((word[:, None] >> tl.arange(0, 32)[None, :]) & 1) == 0
    lanes = tl.arange(0, B * 32)
    tl.store(out + 400 + lanes, 7, mask=flags.reshape(B * 32) & (lanes < n * 30))
    if tl.load(x + 1) < 2:
        total = first[None, :] + a[:, None]
    else:
        total = first[None, :] * a[:, None]
        total += 1
    tl.store(out + 700 + a[:, None] * B + tl.arange(0, B)[None, :], total)


@pytest.mark.parametrize("n", [0, 3, 8])
@pytest.mark.parametrize("m", [1, 3])
def test_blocks_of_several_dimensions(n: int, m: int) -> None:
    """Their dimensions of length 1 are repeated, also in blocks of pointers, in masks and behind branches; they become
    blocks of one dimension again in C's order."""
    rng = np.random.default_rng(n)
    tables = [ints(rng, 40, -20, 20, torch.int32) for _ in range(4)]
    table = torch.tensor([t.data_ptr() for t in tables], dtype=torch.int64)
    x, bits = ints(rng, 16, 0, 4, torch.int32), ints(rng, 8, -(2**31), 2**31, torch.int32)
    out = torch.zeros(1000, dtype=torch.int32)
    both(dimensions, (2,), table, x, bits, out, n, m, A=4, B=8, C=4, reached=tables)


@triton.jit
def unaligned(x, y, offset, n, B: tl.constexpr):
    i = tl.arange(0, B)
    source = (x + offset).to(tl.pointer_type(tl.int64))
    target = (y + offset).to(tl.pointer_type(tl.int64))
    tl.store(target + i, tl.load(source + i, mask=i < n), mask=i < n)
    tl.store(target + n, tl.load(source + 1))


def test_unaligned_rows() -> None:
    x = ints(np.random.default_rng(0), 100, 0, 256, torch.uint8)
    for offset in range(9):
        both(unaligned, (1,), x, torch.zeros_like(x), offset, 5, B=8)


@triton.jit
def random_numbers(seeds, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    seed = tl.load(seeds + tl.program_id(0))
    tl.store(out + tl.program_id(0) * B + i, tl.rand(seed, i), mask=i < n)
    tl.store(out, tl.rand(seed, n))


@pytest.mark.parametrize("seed", SEEDS)
def test_tl_rand(seed: int) -> None:
    seeds = ints(np.random.default_rng(seed), 3, -(2**62), 2**62, torch.int64)
    both(random_numbers, (3,), seeds, torch.zeros(24), 6, B=8)


# What it leaves to Triton's interpreter, and what it refuses


@triton.jit
def atomics(x):
    tl.atomic_add(x, 1)


@triton.jit
def two_dimensions(x):
    i = tl.arange(0, 4)
    block = tl.load(x + i[:, None] * 4 + i[None, :])
    tl.store(x + i, tl.sum(block, axis=1))


@triton.jit
def mixed_dimensions(x):
    i = tl.arange(0, 4)
    tl.store(x + i[:, None] * 4 + i, 1)


@triton.jit
def shifts_too_far(x):
    i = tl.arange(0, 128)
    tl.store(x + i[:, None], tl.load(x + i)[:, None] >> i[:, None])


@triton.jit
def copy(x, y):
    tl.store(y, tl.load(x))


@triton.jit
def changes_type(x, n):
    a = 0
    for i in range(n):
        a = a + tl.load(x + i)
    tl.store(x, a)


@triton.jit
def stays_weak(x, n):
    a, b = 0, 1  # Python numbers: Triton makes tensors of single assignments only
    for _ in range(n):
        a, b = b, a + b
    tl.store(x, a)


def test_what_is_not_exact_is_left_to_triton() -> None:
    x = torch.zeros(16, dtype=torch.int64)
    bf16 = torch.zeros(2, dtype=torch.bfloat16)
    for jitted, args in (
        (atomics, (x,)),
        (two_dimensions, (x,)),
        (mixed_dimensions, (x,)),
        (shifts_too_far, (x,)),
        (copy, (bf16, bf16)),
        (copy, (torch.zeros(1, dtype=torch.float16), x)),
        (changes_type, (x, 3)),
        (stays_weak, (x, 3)),
    ):
        assert not ours(jitted, (1,), *args)
        assert launch.fallbacks.pop(jitted.fn.__name__)


def test_fallbacks_run_and_are_reported() -> None:
    triton_interpreter.install()
    try:
        x = torch.zeros(1, dtype=torch.int32)
        atomics[(3,)](x)
        assert x.item() == 3
        assert "atomic_add" in triton_interpreter.fallbacks()["atomics"]
        copy[(1,)](x, x)
        native, slow = triton_interpreter.counts()
        assert native["copy"] >= 1 and slow["atomics"] == 1 and "copy" not in slow
    finally:
        triton_interpreter.uninstall()
        launch.fallbacks.pop("atomics", None)


@triton.jit
def reaches(x, table, i, B: tl.constexpr):
    tl.store(x + i + tl.arange(0, B), 1)
    row = tl.load(table).to(tl.pointer_type(tl.int32))
    tl.store(row + i, 1)


@pytest.mark.parametrize("place", [100, -1, 2**40])
def test_out_of_bounds_is_an_error(place: int) -> None:
    x = torch.zeros(8, dtype=torch.int32)
    table = torch.tensor([x.data_ptr()])
    with pytest.raises(RuntimeError, match="kernel reaches"):
        ours(reaches, (1,), x, table, place, B=2)
    assert not x.any()


def test_null_pointers_are_an_error() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"kernel reaches.*0x0"):
        ours(reaches, (1,), x, torch.tensor([0]), 0, B=2)


def test_a_view_may_reach_its_whole_storage() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    both(reaches, (1,), x[4:6], torch.tensor([x[4:].data_ptr()]), -3, B=2)


@triton.jit
def doubled(value):
    if value > 2:
        return value * 2
    return value


@triton.jit
def marked_kernel(x, out, n, FLAG: tl.constexpr):
    if FLAG:
        tl.store(out, 1)
    else:
        tl.store(out, 2)
    for i in range(n):
        tl.store(out + i, doubled(tl.load(x + i)))
    if n > 5:
        tl.store(out, 3)


class Heard:
    """Keeps the lines that it hears of."""

    def __init__(self) -> None:
        self.wanted = True
        self.reached: set[tuple[str, int]] = set()

    def add(self, line: tuple[str, int], /) -> None:
        self.reached.add(line)


def test_lines_that_a_kernel_executes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branches that are not taken are not, decided by a constant or by data; those of inlined functions are."""
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    out, x = torch.zeros(8, dtype=torch.int32), torch.arange(8, dtype=torch.int32)
    heard = Heard()
    monkeypatch.setattr(Host, "lines", heard)

    def texts() -> set[str]:
        assert {file for file, _ in heard.reached} == {__file__}
        return {source[line - 1].strip() for _, line in heard.reached}

    assert ours(marked_kernel, (1,), x, out, 2, FLAG=True)
    body = {
        "if FLAG:",
        "tl.store(out, 1)",
        "for i in range(n):",
        "tl.store(out + i, doubled(tl.load(x + i)))",
        "if n > 5:",
    }
    assert texts() == body | {"if value > 2:", "return value"}
    assert ours(marked_kernel, (1,), x, out, 6, FLAG=False)
    assert texts() == body | {
        "if value > 2:", "return value", "return value * 2", "tl.store(out, 2)", "tl.store(out, 3)",
    }  # fmt: skip
    heard.wanted = False
    heard.reached.clear()
    assert ours(marked_kernel, (1,), x, out, 6, FLAG=False)
    assert not heard.reached
    both(marked_kernel, (1,), x, out, 6, FLAG=True)


class WrongAccess(Exception):
    """The exception of a program that installs the interpreter."""


def test_the_host_chooses_the_exception_of_a_wrong_access_and_hears_of_lines() -> None:
    """Also of kernels that ran before it listened."""
    x, heard = torch.zeros(8, dtype=torch.int32), Heard()
    triton_interpreter.install()
    try:
        copy[(1,)](x, x)
        triton_interpreter.install(WrongAccess, heard)
        copy[(1,)](x, x)
        assert {file for file, _ in heard.reached} == {__file__}
        with pytest.raises(WrongAccess, match="kernel reaches"):
            reaches[(1,)](x, torch.tensor([x.data_ptr()]), 100, B=2)
    finally:
        triton_interpreter.install()
        triton_interpreter.uninstall()


CHAINED = """
def kernel(p0, p1):
    def program(pid0):
        a = pid0 + 1
        b = a * 2
        both = b + 1
        stays = pid0 + p1
        pid0 = 0
        if p0:
            store_row(both)
            if p1:
                store_row(b)
        else:
            store_row(stays)
"""
MOVED = """
def kernel(p0, p1):

    def program(pid0):
        a = pid0 + 1
        stays = pid0 + p1
        pid0 = 0
        if p0:
            b = a * 2
            both = b + 1
            store_row(both)
            if p1:
                store_row(b)
        else:
            store_row(stays)
"""


def test_a_name_that_moved_is_counted_where_it_is_then() -> None:
    # `b` follows its reader `both`; what reads `pid0` stays before the place that changes it.
    assert optimize(CHAINED) == MOVED.strip()
