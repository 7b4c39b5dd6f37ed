"""Indices of a launched batch that name nothing: noted, and nothing is computed for the row."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hybridfuzz.targets.base.observe import OutOfRange
from hybridfuzz.targets.sglang import kernels
from hybridfuzz.targets.sglang.batch_rows import NO_STATE, Replay, Row
from hybridfuzz.targets.sglang.bounds import Bounds
from hybridfuzz.targets.sglang.compat.engine import ATTENTION, STATES
from hybridfuzz.targets.sglang.snapshots import Plan


def bounds() -> Bounds:
    """Three request rows of eight columns, five state slots with rings of three entries, twenty token slots."""
    states = SimpleNamespace(temporal=np.zeros((1, 5)), window_keys=[], keys=[np.zeros(20)])
    rows = SimpleNamespace(req_to_token=torch.zeros((3, 8)))
    sizes = SimpleNamespace(num_window_pages=0, page=1, ring=3)
    return Bounds(SimpleNamespace(rows=rows, states=states, sizes=sizes))  # type: ignore[arg-type]


def row(**changes: Any) -> Any:
    """A decode of the fifth token in request row 1, with changes."""
    sound = Row("r0", 1, 4, 1, None, True, 2, (2,), [4, 5, 6, 7, 8], [8])
    return sound._replace(**changes)


def test_a_sound_row_is_inside() -> None:
    assert bounds().row(0, row()) is None
    assert bounds().row(0, row(replay=Replay(2, True))) is None


@pytest.mark.parametrize(
    ("changes", "outside"),
    [
        ({"pool_row": 3}, (STATES, "row", 3, 3)),
        ({"pool_row": -1, "slot": -1, "locations": []}, (STATES, "row", -1, 3)),
        ({"slot": -1}, (STATES, "slot", -1, 5)),
        ({"slot": 5}, (STATES, "slot", 5, 5)),
        ({"prefix": -1}, (ATTENTION, "position", -1, 8)),
        ({"prefix": 8}, (ATTENTION, "position", 8, 8)),
        ({"prefix": 6, "num_tokens": 3}, (ATTENTION, "column", 8, 8)),
        ({"columns": 4}, (ATTENTION, "column", 4, 4)),  # the host's copy of the longest length is one short
        ({"locations": [4, 5, -6, 7, 8]}, (ATTENTION, "location", -6, 20)),
        ({"written": [20]}, (ATTENTION, "location", 20, 20)),
        ({"replay": Replay(3, False)}, (STATES, "ring entry", 3, 3)),
        ({"replay": Replay(-1, True)}, (STATES, "ring entry", -1, 3)),
    ],
)
def test_a_row_that_names_nothing_is_noted(changes: dict[str, Any], outside: tuple[int, str, int, int]) -> None:
    """Numpy and torch would take a negative index from the end, cut a slice short, or raise."""
    assert bounds().row(7, row(**changes)) == OutOfRange(7, *outside)


def test_a_snapshot_that_names_nothing_is_noted() -> None:
    metadata = SimpleNamespace(track_conv_indices=torch.tensor([[0, 1, 2], [-1, 0, 1], [3, 4, 5]]))
    plan = Plan([(0, 4, 4, 3), (1, 3, 3, 2), (2, 9, 9, 6)], [], metadata, None)
    assert list(bounds().snapshots(plan, 6)) == [
        OutOfRange(1, STATES, "token", -1, 6),
        OutOfRange(2, STATES, "slot", 9, 5),
    ]


def test_a_padding_row_of_a_graph_may_have_no_state() -> None:
    """Kernels leave it out; a row of a request must have one."""
    assert bounds().row(0, row(name=None, slot=NO_STATE)) is None
    assert bounds().row(0, row(slot=NO_STATE)) == OutOfRange(0, STATES, "slot", NO_STATE, 5)


def test_a_row_that_is_outside_already_stays_so() -> None:
    known = OutOfRange(3, STATES, "relative token", 2, 1)
    assert bounds().row(3, row(outside=known)) == known


def test_a_decode_copies_its_snapshot_from_a_slot_that_exists() -> None:
    plan = Plan([(0, 4, 4, 3), (1, 3, 3, 2)], [-1, 2], None, None)
    assert list(bounds().snapshots(plan, 2)) == [OutOfRange(0, STATES, "slot", -1, 5)]


@pytest.mark.parametrize(("request_row", "first", "last"), [(-1, 0, 1), (2, 0, 1), (0, -1, 1), (0, 2, 4)])
def test_an_index_kernel_says_that_it_is_out_of_bounds(request_row: int, first: int, last: int) -> None:
    """Its real sibling would write into another request's row, or behind the table."""
    table, one = torch.zeros((2, 3), dtype=torch.int32), torch.ones(8, dtype=torch.int64)
    arguments = torch.tensor([request_row]), table, torch.tensor([first]), torch.tensor([last])
    with pytest.raises(kernels.OutOfBounds, match="assign_req_to_token_pool"):
        kernels.assign_req_to_token_pool_func(*arguments, one, 1)
    assert not table.any()
