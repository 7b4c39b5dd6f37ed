"""A copy on write is recorded with the sizes and parts that `Recorder.attach` takes from the layout.

Runs in the engine's environment (test_interpreter_process): the recorder imports vLLM.
"""

import pytest

from hybridfuzz.reference.layout import Group as LayoutGroup
from hybridfuzz.reference.layout import Layout
from hybridfuzz.targets.base.observe import Copied, Forward, ForwardRow, Record, Zeroed
from hybridfuzz.targets.base.trace import Config, Group

pytestmark = pytest.mark.engine

SIZE = 4
LAYOUT = Layout((LayoutGroup("mamba", SIZE, 1), LayoutGroup("attention", SIZE, 2)), 10, 4, "align", prefix_caching=True)
CONFIG = Config(num_blocks=10, groups=(Group("mamba", SIZE), Group("attention", SIZE, 2)), options={"mixer": "linear"})


def copied(mirrored: bool) -> list[Record]:
    """Return the records of a copy on write in each group of an engine of one kind."""
    from hybridfuzz.targets.vllm.gpu.mirror import MirrorRecorder
    from hybridfuzz.targets.vllm.shadow.hooks import Recorder

    recorder = MirrorRecorder() if mirrored else Recorder()
    recorder.attach(CONFIG, LAYOUT, object(), (), SIZE, None)
    records: list[Record] = []
    recorder.planned(3, {"r0": [[2, 5], [1, 6]]})
    recorder.begin_step(3, records)
    recorder.block_copied(4, 5)
    recorder.block_copied(1, 6)
    return records


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_copied_page_has_the_parts_of_a_state_or_the_slots_of_a_block(mirrored: bool) -> None:
    pytest.importorskip("vllm.v1")
    pages = [record for record in copied(mirrored) if isinstance(record, Copied)]
    assert [(one.group, one.layer, one.temporal, one.conv, one.slots) for one in pages] == [
        (0, 0, True, False, 0),
        (1, 0, False, False, SIZE),
        (1, 1, False, False, SIZE),
    ]


def test_nothing_is_recorded_before_the_engine_is_attached() -> None:
    """Graphs are captured by forwards that belong to no step."""
    pytest.importorskip("vllm.v1")
    from types import SimpleNamespace

    from hybridfuzz.targets.vllm.shadow.hooks import Recorder

    metadata = SimpleNamespace(query_start_loc=[0], seq_lens=[])
    assert not Recorder().begin_forward(SimpleNamespace(attn_metadata={"layer": metadata}), ())


def test_a_dummy_run_without_metadata_stands_behind_the_steps_before_it() -> None:
    pytest.importorskip("vllm.v1")
    from hybridfuzz.targets.vllm.shadow.hooks import Recorder

    recorder = Recorder()
    records: list[Record] = [Zeroed(6, [1])]
    recorder.begin_step(7, records)
    recorder.end_step({}, {}, dummy=True)
    assert records == [Zeroed(6, [1]), Forward(7, [ForwardRow(None, 0, (), 0, ())], [], dummy=True)]
