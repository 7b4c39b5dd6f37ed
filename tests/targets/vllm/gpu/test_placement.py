"""Workers and their data-parallel ranks share out the GPUs of a machine."""

from collections import Counter

import pytest

from hybridfuzz.targets.base.launch import WORKER
from hybridfuzz.targets.vllm.gpu.placement import RANK, index_of


def place(worker: int, rank: int, devices: int) -> int:
    return index_of({WORKER: str(worker), RANK: str(rank)}, devices)


@pytest.mark.parametrize(("workers", "ranks", "devices"), [(2, 2, 2), (8, 2, 2), (4, 4, 4), (8, 2, 8), (6, 3, 3)])
def test_ranks_of_a_worker_have_a_device_each_and_devices_the_same_load(workers: int, ranks: int, devices: int) -> None:
    load: Counter[int] = Counter()
    for worker in range(workers):
        places = [place(worker, rank, devices) for rank in range(ranks)]
        assert len(set(places)) == ranks
        load.update(places)
    assert len(load) == devices
    assert len(set(load.values())) == 1


def test_a_process_outside_of_a_campaign_has_the_first_device() -> None:
    assert index_of({}, 4) == 0
    assert index_of({RANK: "1"}, 4) == 1


def test_without_devices_there_is_nothing_to_share_out() -> None:
    assert place(3, 1, 0) == 0
