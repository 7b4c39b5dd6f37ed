"""A copy on write is recorded with the sizes and parts that `Recorder.attach` takes from the layout.

Runs in the engine's environment (test_interpreter_process): a real model's recorder imports vLLM.
"""

import pytest

from hybridfuzz.reference.layout import Group as LayoutGroup
from hybridfuzz.reference.layout import Layout
from hybridfuzz.targets.base.observe import Copied, Record
from hybridfuzz.targets.base.trace import Config, Group

pytestmark = pytest.mark.engine

SIZE = 4
LAYOUT = Layout((LayoutGroup("mamba", SIZE, 1), LayoutGroup("attention", SIZE, 2)), 10, 4, "align", prefix_caching=True)
CONFIG = Config(num_blocks=10, groups=(Group("mamba", SIZE), Group("attention", SIZE, 2)), options={"mixer": "linear"})


def copied(mirrored: bool) -> list[Record]:
    """Return the records of a copy on write in each group of an engine of one kind."""
    from hybridfuzz.targets.vllm.gpu.mirror import MirrorRecorder
    from hybridfuzz.targets.vllm.shadow.recorder import Recorder

    recorder = MirrorRecorder() if mirrored else Recorder()
    recorder.attach(CONFIG, LAYOUT, object(), (), SIZE, None)
    recorder.planned(3, {"r0": [[2, 5], [1, 6]]})
    recorder.begin_step(3)
    recorder.block_copied(4, 5)
    recorder.block_copied(1, 6)
    return recorder.end_step({}, {})


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_copied_page_has_the_parts_of_a_state_or_the_slots_of_a_block(mirrored: bool) -> None:
    pytest.importorskip("vllm.v1")
    pages = [record for record in copied(mirrored) if isinstance(record, Copied)]
    assert [(one.group, one.layer, one.temporal, one.conv, one.slots) for one in pages] == [
        (0, 0, True, False, 0),
        (1, 0, False, False, SIZE),
        (1, 1, False, False, SIZE),
    ]
