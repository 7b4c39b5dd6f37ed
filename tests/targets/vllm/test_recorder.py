"""The order of a step's records: what comes before its forward, the forward, the rest."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridfuzz.reference.layout import Group as LayoutGroup
from hybridfuzz.reference.layout import Layout
from hybridfuzz.targets.base.observe import Forward, ForwardRow, Zeroed
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.shadow.recorder import Recorder

LAYOUT = Layout((LayoutGroup("mamba", 4, 1), LayoutGroup("attention", 4, 1)), 10, 4, "align", prefix_caching=True)
CONFIG = Config(num_blocks=10, groups=(Group("mamba", 4), Group("attention", 4)))


def context(lengths: Sequence[int]) -> Any:
    """Return a forward context with metadata of rows that compute their whole contexts."""
    starts = np.cumsum([0, *lengths])
    metadata = SimpleNamespace(query_start_loc=starts, seq_lens=np.array(lengths))
    return SimpleNamespace(attn_metadata={"layer": metadata})


def attached(names: Sequence[str]) -> Recorder:
    """Return a recorder of an engine whose batch has these requests."""
    recorder = Recorder()
    worker = SimpleNamespace(names=lambda count: names[:count], table=None)
    recorder.attach(CONFIG, LAYOUT, worker, (), 4, None)
    return recorder


def test_a_forward_stands_where_it_began() -> None:
    recorder = attached(["r0", "r1"])
    recorder.begin_step(7)
    recorder.note(Zeroed(7, [1]))
    forward = recorder.begin_forward(context([2, 1]), [5, 6, 7])
    recorder.note(Zeroed(7, [2]))
    assert forward
    forward.end()
    records = recorder.end_step({"r1": 1}, {"r0": (8,)})
    rows = [ForwardRow("r0", 0, [5, 6], 0, (8,)), ForwardRow("r1", 0, [7], 1, ())]
    assert records == [Zeroed(7, [1]), Forward(7, rows, []), Zeroed(7, [2])]
    assert recorder.end_step({}, {}) == []


def test_a_step_has_one_forward() -> None:
    recorder = attached(["r0"])
    recorder.begin_step(7)
    recorder.begin_forward(context([1]), [5])
    with pytest.raises(AssertionError, match="second forward in step 7"):
        recorder.begin_forward(context([1]), [5])
    recorder.begin_step(8)
    assert recorder.begin_forward(context([1]), [5])


def test_a_dummy_run_without_metadata_has_one_row_behind_what_came_before() -> None:
    recorder = attached([])
    recorder.begin_step(7)
    recorder.note(Zeroed(7, [1]))
    recorder.begin_forward(SimpleNamespace(attn_metadata=None), [0])
    assert recorder.end_dummy_run() == [
        Zeroed(7, [1]),
        Forward(7, [ForwardRow(None, 0, (), 0, ())], [], dummy=True),
    ]


def test_nothing_is_recorded_before_the_engine_is_attached() -> None:
    """Graphs are captured by forwards that belong to no step."""
    assert Recorder().begin_forward(context([4]), ()) is None
