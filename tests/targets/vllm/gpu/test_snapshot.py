"""A reset engine is the engine that was built: everything that can be reached is put back, in place. Runs in the
engine's environment, which has PyTorch; the whole engine is compared by `benchmarks/gpu_engines.py --proof`."""

from collections import OrderedDict, deque
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


class Slotted:
    __slots__ = ("missing", "value")

    def __init__(self) -> None:
        self.value = [1]


class Engine:
    def __init__(self) -> None:
        self.pool = torch.arange(12, dtype=torch.float32)
        self.view = self.pool[4:8]
        self.kept = torch.zeros(3)
        self.array = np.arange(4)
        self.rows = {"a": [1, 2]}
        self.order = OrderedDict(x=1, y=2)
        self.queue = deque([1])
        self.names = {"r0"}
        self.slotted = Slotted()
        counts = [0]

        def count() -> int:
            counts[0] += 1
            return counts[0]

        self.count = count


def test_all_that_can_be_reached_is_put_back_in_place() -> None:
    from hybridfuzz.targets.vllm.gpu.snapshot import Snapshot

    engine: Any = Engine()
    addresses = engine.pool.data_ptr(), id(engine.rows), id(engine.queue)
    snapshot = Snapshot([engine], refilled=[engine.kept])
    engine.view[:] = 9
    engine.kept[:] = 5
    engine.array[1] = 9
    engine.rows["a"].append(3)
    engine.rows["b"] = []
    engine.order.pop("x")
    engine.order["x"] = 3
    engine.queue.appendleft(0)
    engine.names.add("r1")
    engine.slotted.value = None
    engine.slotted.missing = 1
    engine.new = 1
    assert engine.count() == 1
    snapshot.restore()
    assert engine.pool.tolist() == list(range(12))
    assert engine.kept.tolist() == [5, 5, 5], "the caller refills it"
    assert engine.array.tolist() == [0, 1, 2, 3]
    assert engine.rows == {"a": [1, 2]}
    assert list(engine.order.items()) == [("x", 1), ("y", 2)]
    assert engine.queue == deque([1])
    assert engine.names == {"r0"}
    assert engine.slotted.value == [1]
    assert not hasattr(engine.slotted, "missing")
    assert not hasattr(engine, "new")
    assert engine.count() == 1
    assert (engine.pool.data_ptr(), id(engine.rows), id(engine.queue)) == addresses


def test_objects_that_cannot_be_put_back_are_counted() -> None:
    from hybridfuzz.targets.vllm.gpu.snapshot import Snapshot

    assert Snapshot([[iter([1])]]).unknown == {"builtins.list_iterator": 1}
