"""Pools of poisoned bytes with typed views, drawn batches, and the implementations to run on them."""

import os
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from hybridfuzz.reference import numeric

torch = pytest.importorskip("torch")

from hybridfuzz.targets.hybrid.numeric.kernels.implementations import implementation  # noqa: E402
from hybridfuzz.targets.hybrid.numeric.kernels.ops import Ops  # noqa: E402

FORMATS = {
    torch.float32: numeric.FLOAT32,
    torch.float16: numeric.FLOAT16,
    torch.bfloat16: numeric.BFLOAT16,
    torch.float8_e4m3fn: numeric.FP8_E4M3,
}
HAS_GPU = torch.cuda.is_available()


class Backend(NamedTuple):
    name: str
    ops: Ops
    device: str

    def put(self, *tensors: Any) -> list[Any]:
        """Return copies on the device, with the same strides."""
        return [moved(tensor, self.device) for tensor in tensors]


def moved(tensor: Any, device: Any) -> Any:
    """Return a copy with the same strides; NaN between its elements (0 in integers)."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    fill = float("nan") if tensor.dtype.is_floating_point else 0
    base = torch.full((max(elements, 1),), fill, device=device).to(tensor.dtype)
    return base.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def backend(name: str) -> Backend:
    """Skip, with the reason, if an implementation cannot run."""
    if name == "torch_reference":
        return Backend(name, implementation("cpu"), "cpu")
    if name == "compiled":
        if not HAS_GPU:
            pytest.skip("no GPU here")
        pytest.importorskip("triton")
        return Backend(name, implementation("cuda"), "cuda")
    if HAS_GPU:
        pytest.skip("the kernels are compiled in this process")
    interpret()
    return Backend(name, implementation("cpu", interpret=True), "cpu")


def interpret() -> None:
    """Make this process interpret kernels; skip if triton is missing or was imported to compile them."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        triton = pytest.importorskip("triton")
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
    triton.knobs.runtime.interpret = True
    if type(triton.language.cdiv).__name__ != "InterpretedFunction":
        pytest.skip("triton was imported before, to compile")
    from interpreter_probe import loops_work

    if not loops_work():
        pytest.skip(f"the interpreter of triton {triton.__version__} does not work with numpy {np.__version__}")


class Arena:
    """Blocks of `page` bytes, `pitch` bytes apart, between guard bytes; everything poisoned with NaN (0xff)."""

    GUARD = 4096

    def __init__(self, blocks: int, page: int, pitch: int = 0, device: str = "cpu") -> None:
        self.blocks, self.page, self.pitch = blocks, page, pitch or page
        size = 2 * self.GUARD + blocks * self.pitch
        self.pool = torch.empty(size, dtype=torch.uint8, device=device)
        self.pages = self.pool[self.GUARD : size - self.GUARD].view(blocks, self.pitch)[:, :page]
        if self.pitch == page:
            self.pool.fill_(0xFF)
        else:
            self.pages.fill_(0xFF)

    def field(self, offset: int, dtype: Any, shape: Sequence[int], order: Sequence[int] | None = None) -> Any:
        """Return a view [blocks, *shape] at a byte offset in each page; `order` is slowest to fastest."""
        strides, stride = [0] * len(shape), 1
        for dim in reversed(order or range(len(shape))):
            strides[dim], stride = stride, stride * shape[dim]
        assert offset + stride * dtype.itemsize <= self.page
        start = (self.GUARD + offset) // dtype.itemsize
        typed = self.pool.view(dtype)
        return typed.as_strided((self.blocks, *shape), (self.pitch // dtype.itemsize, *strides), start)

    def copy(self, device: str = "cpu", pitch: int = 0) -> "Arena":
        """Copy the pages to another place, with the bytes between them if the pitch is kept."""
        other = Arena(self.blocks, self.page, pitch or self.pitch, device)
        if other.pitch == self.pitch:
            other.pool.copy_(self.pool)
        else:
            other.pages.copy_(self.pages)
        return other

    def bytes(self) -> Any:
        """Return all pages, and the guards unless the pitch is large, on the CPU."""
        return (self.pool if self.pitch == self.page else self.pages).cpu()


def pad(size: int, multiple: int = 16) -> int:
    """Return the next multiple."""
    return -(-size // multiple) * multiple


def normal(seed: int, *shape: int, dtype: Any = torch.float32, scale: float = 1.0) -> Any:
    """Draw values that are representable in `dtype`."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + len(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def strided(rng: random.Random, tensor: Any) -> Any:
    """Return the same values, sometimes with other strides and NaN between them."""
    if rng.random() < 0.4:
        return tensor
    wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] * 2 + 1), float("nan")).to(tensor.dtype)
    view = wide[..., 1::2]
    view.copy_(tensor)
    return view


def ints(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def exact(tensor: Any) -> Any:
    """Return float64 values for the reference."""
    return tensor.detach().cpu().to(torch.float64).numpy()


def poisoned(rng: random.Random, *shape: int, dtype: Any = torch.float32) -> Any:
    """Return an output buffer full of NaN, of any strides."""
    return strided(rng, torch.full(shape, float("nan")).to(dtype))


def assert_within(actual: Any, expected: "numeric.Bounded") -> None:
    """Check that every value is finite and within its bound."""
    values = exact(actual)
    assert np.isfinite(values).all()
    excess = np.abs(values - expected.value) - expected.bound
    assert (excess <= 0).all(), f"off by {excess.max():.3g} more than the bound, at {np.argmax(excess)}"


def same_bits(one: Any, other: Any) -> bool:
    """Return True if two tensors of one dtype hold the same bits."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.dtype.itemsize]
    left, right = one.detach().cpu().contiguous(), other.detach().cpu().contiguous()
    return bool((left.view(kind) == right.view(kind)).all())


class Shape(NamedTuple):
    """Rows of a batch: tokens before and in this launch."""

    before: list[int]
    tokens: list[int]


def draw_rows(rng: random.Random, small: bool, decode: int = 0) -> Shape:
    """Draw prefills, decodes and padding rows; with `decode`, at most so many tokens per row."""
    rows = rng.randint(1, 4 if small else 8)
    most = decode or rng.choice([1, 5, 20] if small else [1, 7, 40, 90])
    tokens = [0 if rng.random() < 0.2 else rng.randint(1, most) for _ in range(rows)]
    before = [rng.choice([0, 1, rng.randint(0, 20 if small else 150)]) for _ in range(rows)]
    return Shape(before, tokens)


def distinct_blocks(rng: random.Random, blocks: int, count: int) -> list[int]:
    """Draw block ids that are not null, in any order."""
    return rng.sample(range(1, blocks), count)
