"""Paged attention against float64, within the derived bound, over drawn batches."""

import random
from typing import Any

import numpy as np
import pytest
from device_support import (
    FORMATS,
    Arena,
    Backend,
    assert_within,
    draw_rows,
    exact,
    ints,
    normal,
    pad,
    poisoned,
    strided,
    torch,
)  # fmt: skip

from hybridfuzz.reference import numeric
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Rows
from hybridfuzz.targets.hybrid.numeric.kernels.ops import Masking
from hybridfuzz.targets.hybrid.numeric.kernels.torch_reference.moves import stored_as


class Case:
    """A batch whose pages hold known keys and values, then NaN; some columns are null or missing."""

    def __init__(self, rng: random.Random, seed: int, small: bool, masking: Masking) -> None:
        self.dtype = rng.choice(list(FORMATS))
        self.size, self.dim = rng.choice([1, 2, 5, 16, 33, 64]), rng.choice([1, 8, 12, 40])
        self.kv_heads = rng.choice([1, 2, 3])
        self.heads = self.kv_heads * rng.choice([1, 2, 3])
        self.scales = {"key_scale": rng.choice([1.0, 0.4]), "value_scale": rng.choice([1.0, 2.3])}
        self.shape = draw_rows(rng, small)
        self.lengths = [before + n if n else 0 for before, n in zip(*self.shape, strict=True)]
        widths = [-(-length // self.size) for length in self.lengths]
        blocks = sum(widths) + 2
        half = pad(self.size * self.kv_heads * self.dim * self.dtype.itemsize)
        self.arena, self.half = Arena(blocks, 2 * half + rng.choice([0, 16])), half
        self.order = rng.choice([(0, 1, 2), (1, 0, 2)])
        ids = rng.sample(range(1, blocks), sum(widths))
        self.table = np.zeros((len(widths), max([1, *widths]) - (rng.random() < 0.2)), np.int32)
        self.contents = []
        keys, values = self.caches(self.arena)
        for row, (length, width) in enumerate(zip(self.lengths, widths, strict=True)):
            content = normal(seed + row, 2, width * self.size, self.kv_heads, self.dim)
            for column in range(width):
                block = 0 if rng.random() < 0.1 else ids.pop()
                if column < self.table.shape[1]:
                    self.table[row, column] = block
                slots = slice(column * self.size, (column + 1) * self.size)
                if not block or column >= self.table.shape[1]:
                    content[:, slots] = 0
                    continue
                used = min(length - column * self.size, self.size)
                if masking == "multiply":  # what zeroing gives
                    keys[block], values[block] = 0, 0
                part = content[:, slots][:, :used]
                keys[block, :used] = stored_as(part[0], self.dtype, self.scales["key_scale"])
                values[block, :used] = stored_as(part[1], self.dtype, self.scales["value_scale"])
            self.contents.append(exact(content[:, :length]))

    def caches(self, arena: Arena) -> tuple[Any, Any]:
        shape = (self.size, self.kv_heads, self.dim)
        at = (0, self.half)
        keys, values = (arena.field(offset, self.dtype, shape, self.order) for offset in at)
        return keys, values


@pytest.mark.parametrize("masking", ["where", "multiply"])
def test_attention_keeps_its_bound(backend: Backend, seed: int, masking: Masking) -> None:
    rng = random.Random(seed)
    case = Case(rng, seed, backend.name == "interpreter", masking)
    tokens = sum(case.shape.tokens)
    kind = rng.choice([torch.float32, torch.bfloat16])
    window = rng.choice([0, 0, 1, 7, 50])
    query = strided(rng, normal(seed, tokens + 1, case.heads, case.dim, dtype=kind))
    output = poisoned(rng, tokens + 1, case.heads, case.dim, dtype=kind)
    arena = case.arena.copy(backend.device)
    rows = Rows.of(case.shape.tokens, backend.device)
    put_query, put_output, table, lengths = backend.put(
        query, output, torch.from_numpy(case.table), ints(case.lengths)
    )  # fmt: skip
    options: dict[str, Any] = {"scale": 0.3, "masking": masking, "window": window, **case.scales}
    backend.ops.paged_attention(put_query, *case.caches(arena), table, rows, lengths, put_output, **options)
    assert torch.equal(arena.bytes(), case.arena.bytes())
    assert put_output[tokens].isnan().all()  # a token of no row
    end = 0
    for n, (keys, values) in zip(case.shape.tokens, case.contents, strict=True):
        start, end = end, end + n
        if n:
            expected = numeric.attention(
                exact(query[start:end]), keys, values, scale=0.3, window=window, cache=FORMATS[case.dtype],
                output=FORMATS[kind], **case.scales,
            )  # fmt: skip
            assert_within(put_output[start:end], expected)


@pytest.mark.parametrize("scale", [-1.0, 1.0])
def test_softmax_spans_pages_whose_scores_rise_or_fall(backend: Backend, scale: float) -> None:
    keys = torch.arange(12.0).reshape(6, 2, 1, 1)
    query, cache, table, lengths, output = backend.put(
        torch.ones(1, 1, 1), keys, ints([[1, 2, 3, 4, 5]]), ints([10]), torch.full((1, 1, 1), 7.0)
    )  # fmt: skip
    backend.ops.paged_attention(query, cache, cache, table, Rows.of([1], backend.device), lengths, output, scale=scale)
    context = exact(keys)[1:].reshape(10, 1, 1)
    assert_within(output, numeric.attention(exact(query), context, context, scale=scale))


@pytest.mark.parametrize("masking", ["where", "multiply"])
def test_a_stale_nan_behind_the_context_shows_only_when_multiplied(backend: Backend, masking: Masking) -> None:
    keys, values = torch.zeros(3, 8, 1, 4), torch.zeros(3, 8, 1, 4)
    values[2, 7] = float("nan")
    query, output = torch.ones(1, 1, 4), torch.full((1, 1, 4), 7.0)
    table, lengths = ints([[1, 2]]), ints([12])
    inputs = backend.put(query, keys, values, table, lengths, output)
    query, keys, values, table, lengths, output = inputs
    rows = Rows.of([1], backend.device)
    backend.ops.paged_attention(query, keys, values, table, rows, lengths, output, scale=1.0, masking=masking)
    assert output.isnan().all() if masking == "multiply" else (output == 0).all()


def test_a_row_without_context_gives_zero(backend: Backend) -> None:
    """A padded decode row: one token, length 0, a null table."""
    cache = torch.full((2, 4, 1, 4), float("nan"))
    query, keys, values, table, lengths, output = backend.put(
        torch.ones(2, 1, 4), cache, cache, ints([[0], [5]]), ints([0, -3]), torch.full((2, 1, 4), 7.0)
    )
    rows = Rows.of([1, 1], backend.device)
    backend.ops.paged_attention(query, keys, values, table, rows, lengths, output, scale=1.0, masking="multiply")
    assert (output == 0).all()
