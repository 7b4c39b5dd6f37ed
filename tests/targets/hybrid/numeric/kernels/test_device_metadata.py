"""Index tensors are built as documented; unusable ones are refused."""

import pytest

torch = pytest.importorskip("torch")

from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Regions, Rows, Stops, ZeroPlan  # noqa: E402


def test_rows_are_cumulative() -> None:
    rows = Rows.of([2, 0, 3])
    assert rows.starts.tolist() == [0, 2, 2, 5]
    assert (rows.count, rows.longest) == (3, 3)
    assert Rows.of([0]).longest == 1  # a launch grid is never empty


def test_stops_by_row() -> None:
    stops = Stops.of([[(1, 7), (4, 8)], [], [(2, 9)]])
    assert stops.starts.tolist() == [0, 2, 2, 3]
    assert stops.counts.tolist() == [1, 4, 2]
    assert stops.blocks.tolist() == [7, 8, 9]
    drafts = Stops.after_each_token(torch.tensor([[3, 4], [5, 0]], dtype=torch.int32))
    assert drafts.starts.tolist() == [0, 2, 4]
    assert drafts.counts.tolist() == [1, 2, 1, 2]
    assert drafts.blocks.tolist() == [3, 4, 5, 0]


def test_the_unit_divides_every_number_of_every_region() -> None:
    assert Regions.of([(0, 16, 8), (24, 40, 8)]).unit == 8
    assert Regions.of([(0, 16, 8), (24, 42, 8)]).unit == 2
    assert Regions.of([]).longest == 0


def test_a_zero_plan_needs_byte_segments_of_one_pool() -> None:
    pool = torch.zeros(4, 64, dtype=torch.uint8)
    plan = ZeroPlan.of([pool[:, 16:32], pool[:, 40:44]])
    assert (plan.blocks, plan.longest) == (4, 16)
    assert plan.strides.tolist() == [64, 64]
    with pytest.raises(ValueError, match="uint8"):
        ZeroPlan.of([pool.view(torch.float32)])
    with pytest.raises(ValueError, match="at least one"):
        ZeroPlan.of([])
    with pytest.raises(ValueError, match="same number"):
        ZeroPlan.of([pool, pool[:2]])
