"""Table look-ups: integers, so kernels and plain torch agree exactly; both follow the symbolic target's rules."""

import random
from typing import Any

import pytest
from device_support import Backend, ints, torch

from hybridfuzz.reference.layout import cdiv
from hybridfuzz.targets.hybrid.numeric.kernels import torch_reference
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import NO_SLOT, Rows
from hybridfuzz.targets.hybrid.numeric.kernels.ops import CacheMode


class Case:
    """A table with null columns, and rows of a forward that map to its rows in any order, or to none."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        height, self.width, self.size = rng.randint(1, 6), rng.randint(1, 9), rng.choice([1, 4, 16, 48])
        self.table = ints([[rng.choice([0, rng.randint(1, 99)]) for _ in range(self.width)] for _ in range(height)])
        if rng.random() < 0.5:  # a view into a wider table
            self.table = torch.cat([self.table, self.table + 100], 1)[:, : self.width]
        rows = rng.randint(1, 6)
        self.row_map = ints([rng.randint(-1, height) for _ in range(rows)])
        most = self.width * self.size
        self.computed = ints([rng.choice([0, rng.randint(0, most)]) for _ in range(rows)])
        self.scheduled = ints([rng.choice([0, 1, rng.randint(0, most)]) for _ in range(rows)])
        self.columns = ints([rng.randint(-1, self.width) for _ in range(rows)])
        self.offsets = ints([rng.randint(0, 3) for _ in range(rows)])
        self.rows = rows

    def both(self, backend: Backend, name: str, inputs: list[Any], outputs: list[Any], **options: Any) -> list[Any]:
        """Return the outputs of the torch reference, after checking that the implementation agrees."""
        expected = [output.clone() for output in outputs]
        getattr(torch_reference, name)(*inputs, *expected, **options)
        moved = [one.to(backend.device) if isinstance(one, torch.Tensor) else one for one in inputs]
        for index, one in enumerate(inputs):
            if isinstance(one, Rows):
                moved[index] = Rows(one.starts.to(backend.device), one.longest)
        actual = backend.put(*outputs)
        getattr(backend.ops, name)(*moved, *actual, **options)
        for one, other in zip(actual, expected, strict=True):
            assert torch.equal(one.cpu(), other), name
        return expected


def test_gather_columns(backend: Backend, seed: int) -> None:
    case = Case(seed)
    width, split = case.rng.randint(1, 9), case.rng.choice([1, 1, 2, 3])
    output = torch.full((case.rows, width + 1), -7, dtype=torch.int32)[:, :width]
    inputs = [case.table, case.row_map, case.columns]
    (found,) = case.both(backend, "gather_columns", inputs, [output], split=split)
    for row, (source, first) in enumerate(zip(case.row_map.tolist(), case.columns.tolist(), strict=True)):
        for j in range(width):
            column = first + j // split
            there = 0 <= source < len(case.table) and 0 <= column < case.width
            block = int(case.table[source, column]) if there else 0
            assert found[row, j] == (block * split + j % split if block else 0)


def test_slot_mapping(backend: Backend, seed: int) -> None:
    case = Case(seed)
    rows = Rows.of(case.scheduled.tolist())
    output = torch.full((int(rows.starts[-1]) + 3,), 77)
    inputs = [case.table, case.row_map, rows, case.computed]
    (found,) = case.both(backend, "slot_mapping", inputs, [output], block_size=case.size)
    assert (found[-3:] == NO_SLOT).all()
    for slot in found.tolist():
        assert slot == NO_SLOT or slot // case.size in case.table


@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_state_indices(backend: Backend, seed: int, mode: CacheMode) -> None:
    case = Case(seed)
    outputs = [torch.full((case.rows,), -7, dtype=torch.int32) for _ in range(2)]
    outputs.append(torch.full((case.rows, case.rng.randint(1, 4)), -7, dtype=torch.int32))
    inputs = [case.table, case.row_map, case.computed, case.scheduled, case.columns, case.offsets]
    sources, windows, written = case.both(
        backend, "state_indices", inputs, outputs, mode=mode, block_size=case.size
    )  # fmt: skip
    for row in range(case.rows):
        mapped, position, count = (int(tensor[row]) for tensor in inputs[1:4])
        state, offset = int(case.columns[row]), int(case.offsets[row])
        run = 0 if mode == "none" else cdiv(position + count, case.size) - 1
        there = dict(enumerate(case.table[mapped].tolist())) if count and 0 <= mapped < len(case.table) else {}
        assert written[row].tolist() == [there.get(run + j, 0) for j in range(written.shape[1])]
        starts = position > 0 and state >= 0
        assert sources[row] == (there.get(state + offset, 0) if starts else 0)
        assert windows[row] == (there.get(state, 0) if starts else 0)


def test_boundary_stops(backend: Backend, seed: int) -> None:
    case = Case(seed)
    capacity = case.rng.randint(1, 6)
    outputs = [torch.full((case.rows, capacity), -7, dtype=torch.int32) for _ in range(2)]
    inputs = [case.table, case.row_map, case.computed, case.scheduled]
    counts, blocks = case.both(backend, "boundary_stops", inputs, outputs, block_size=case.size)
    for row in range(case.rows):
        mapped, position, count = (int(tensor[row]) for tensor in inputs[1:])
        there = dict(enumerate(case.table[mapped].tolist())) if 0 <= mapped < len(case.table) else {}
        inside = [depth for depth in range(position + 1, position + count) if depth % case.size == 0]
        expected = [(depth - position, there.get(depth // case.size - 1, 0)) for depth in inside][: capacity - 1]
        expected += [(-1, 0)] * (capacity - 1 - len(expected))
        end = (count, there.get(cdiv(position + count, case.size) - 1, 0)) if count else (-1, 0)
        assert list(zip(counts[row].tolist(), blocks[row].tolist(), strict=True)) == [*expected, end]
