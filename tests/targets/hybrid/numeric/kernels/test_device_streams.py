"""Copies on the side stream read their source when they run, only fences order them, and slots respect both."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hybridfuzz.targets.hybrid.numeric.kernels.staging import Downloads, Staging  # noqa: E402
from hybridfuzz.targets.hybrid.numeric.kernels.streams import DeferredStream  # noqa: E402

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
A_WHILE = 100_000_000
"""Cycles of a GPU, some 50 ms."""


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_a_copy_without_a_fence_reads_what_is_there_when_it_runs() -> None:
    stream, source, there = DeferredStream(), torch.tensor([1]), torch.tensor([0])
    fence = stream.copy(lambda: there.copy_(source))
    assert there.item() == 0, "nobody waits for it"
    source[0] = 2
    fence.hold_kernels()
    assert there.item() == 2


def test_whoever_waits_for_one_copy_may_find_that_later_ones_have_run() -> None:
    stream, order, seen = DeferredStream(), [], set()
    for _ in range(20):
        order.clear()
        fences = [stream.copy(lambda number=number: order.append(number)) for number in range(4)]
        fences[1].hold_host()
        assert order in ([0, 1], [0, 1, 2, 3])
        seen.add(len(order))
        fences[0].hold_kernels()
        assert len(order) in seen, "it ran before, so it waits for nothing"
        stream.finish()
        assert order == [0, 1, 2, 3]
    assert seen == {2, 4}, "both happen"


@pytest.mark.parametrize("device", DEVICES)
def test_uploads_on_their_way_do_not_disturb_each_other(device: str) -> None:
    staging = Staging(device)
    slots = [staging.put(numbers(*[value] * (3 + value))) for value in range(9)]
    for value, slot in enumerate(slots):
        assert slot.take().tolist() == [value] * (3 + value)
    assert len(set(map(id, slots))) == 9


@pytest.mark.parametrize("device", DEVICES)
def test_a_slot_is_used_again_behind_those_who_read_it(device: str) -> None:
    staging, seen, slots = Staging(device), [], set()
    burden = torch.ones(512, 512, device=device)
    for value in range(20):
        if value % 3:
            burden = (burden @ burden).clamp(0, 1)
        slot = staging.put(numbers(value, value + 1))
        seen.append(slot.take().clone())
        slot.release()
        slots.add(id(slot))
    assert torch.stack(seen)[:, 0].tolist() == list(range(20))
    assert len(slots) == 2, "two buffers serve for ever"


@pytest.mark.parametrize("device", DEVICES[1:])
def test_an_upload_does_not_queue_behind_kernels(device: str) -> None:
    staging = Staging(device)
    for slot in [staging.put(numbers(1)), staging.put(numbers(1))]:
        slot.take()
        slot.release()
    staging.side.finish()
    torch.cuda._sleep(20 * A_WHILE)
    woken = torch.cuda.Event()
    woken.record()
    slot = staging.put(numbers(7, 8))
    assert slot._copied is not None
    slot._copied.hold_host()
    assert not woken.query(), "the copy is done, the kernel still runs"
    assert slot.take().tolist() == [7, 8]
    assert woken.query(), "whoever reads it on the kernels' stream comes behind them"


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_those_of_their_own_step(device: str) -> None:
    downloads = Downloads(device)
    content, pending = torch.zeros(4, device=device), []
    for step in range(5):
        if device == "cuda":
            torch.cuda._sleep(A_WHILE // 10)
        content.fill_(step)
        pending.append(downloads.send([content, content.bool()]))
    for step, download in enumerate(pending):
        values, flags = download.wait()
        assert values.tolist() == [step] * 4
        assert flags.tolist() == [step > 0] * 4
