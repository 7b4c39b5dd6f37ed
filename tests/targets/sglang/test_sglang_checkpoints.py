"""Checkpoints in int8: what stands for quantized values, and what is recorded of a store. Without SGLang."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridfuzz.targets.base.observe import Copied
from hybridfuzz.targets.sglang.checkpoints import Checkpoints, dequantize, quantize
from hybridfuzz.targets.sglang.device import Device

TAGS = (0, 1, 127, 128, 255, 256, (1 << 61) + 77, (1 << 62) - 1, -1, -129)
LAYERS, SLOTS, FIRST, BLOCKS = 2, 3, 10, 40


class Pool:
    """SGLang's pool as far as it is read: SLOTS checkpoints behind a reserved one, two layers, windows of one input."""

    num_slots = SLOTS

    def __init__(self) -> None:
        shape = LAYERS, SLOTS + 1
        self.temporal = SimpleNamespace(
            qdata=torch.zeros((*shape, 1, 1, 1), dtype=torch.int8),
            scale=torch.zeros((*shape, 1, 1, 1), dtype=torch.int64),
        )
        self.conv = [torch.zeros((*shape, 1, 1), dtype=torch.int64)]
        self.allocator = SimpleNamespace(free_slots=torch.tensor([3, 1]))
        self.stored: list[Any] = []

    def store_from_active(self, states: Any, slots: Any, checkpoints: Any) -> None:
        self.stored.append((states, slots.tolist(), checkpoints.tolist()))


def checkpoints_of(pool: Pool) -> Checkpoints:
    sizes: Any = SimpleNamespace(
        first_checkpoint=FIRST, checkpoints=SLOTS, num_checkpoints=SLOTS + 1, num_blocks=BLOCKS
    )
    return Checkpoints(SimpleNamespace(mamba_ckpt_pool=pool), sizes)


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_comes_back_whole_and_only_with_its_own_scale(tag: int) -> None:
    values, scale = quantize(torch.tensor([tag]))
    assert values.dtype == torch.int8
    assert dequantize(values, scale, torch.int64).tolist() == [tag]
    for other in (dequantize(values, scale + 1, torch.int64), dequantize(values ^ 1, scale, torch.int64)):
        assert other.tolist() != [tag]


def test_nothing_that_was_not_stored_is_a_state() -> None:
    """The contents at first are random, and differ from slot to slot."""
    pool = Pool()
    seen = [checkpoints_of(pool).read(layer, FIRST + slot) for layer in range(LAYERS) for slot in range(SLOTS + 1)]
    assert len(set(seen)) == len(seen)
    assert all(temporal and window[0] for temporal, window in seen)


def test_a_checkpoint_is_read_from_values_scale_and_window() -> None:
    pool = Pool()
    checkpoints = checkpoints_of(pool)
    pool.temporal.qdata[1, 2], pool.temporal.scale[1, 2] = quantize(torch.tensor(77777).reshape(1, 1, 1))
    pool.conv[0][1, 2] = 55
    assert checkpoints.read(1, FIRST + 2) == (77777, (55,))
    assert checkpoints.free() == [FIRST + 3, FIRST + 1]


def test_a_checkpoint_that_the_pool_lacks_is_not_taken_for_a_page() -> None:
    checkpoints = checkpoints_of(Pool())
    assert [checkpoints.block_of(slot) for slot in range(SLOTS + 1)] == [10, 11, 12, 13]
    assert checkpoints.block_of(SLOTS + 1) == BLOCKS + SLOTS + 1


def test_a_store_comes_behind_the_fence_and_is_noted_as_blocks() -> None:
    pool = Pool()
    order: list[Any] = []
    checkpoints_of(pool).watch(lambda: order.append(("fence", len(pool.stored))), order.append)
    pool.store_from_active("states", torch.tensor([4]), torch.tensor([2]))
    assert order == [("fence", 0), [(4, FIRST + 2)]]
    assert pool.stored == [("states", [4], [2])]


def test_a_store_is_recorded_for_each_layer_with_the_last_step_and_for_no_request() -> None:
    device = Device.__new__(Device)
    device.sizes = SimpleNamespace(state_layers=LAYERS)  # type: ignore[assignment]
    device.records, device.executed = [], 6
    device._report_stores([(4, 12)])
    assert device.records == [Copied(6, "", 0, -1, 4, -1, 12, 0, True, True, layer=layer) for layer in range(LAYERS)]
