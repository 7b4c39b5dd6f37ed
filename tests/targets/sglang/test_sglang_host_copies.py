"""Copies between HiCache's host and the device run in order, as early or as late as they may."""

from collections import deque
from types import SimpleNamespace
from typing import Any

from hybridfuzz.targets.sglang.host_copies import Event, Operation, Stream, Transfers


class Launch:
    """A launch that notes when it runs."""

    def __init__(self, log: list[str], pending: deque[Any]) -> None:
        self.log, self.pending = log, pending
        pending.append(self)

    def synchronize(self) -> None:
        if self in self.pending:
            self.pending.remove(self)
            self.log.append("forward")


def operation(stream: Stream, log: list[str], name: str, layers: int = 2, after: Any = None) -> Operation:
    return Operation(stream, layers, lambda layer: log.append(f"{name}{layer}"), after)


def test_an_event_without_an_operation_is_over() -> None:
    assert Event().query()


def test_waiting_for_a_layer_runs_no_later_one() -> None:
    """A forward that waits for its first layer does not see the second: a missing wait shows."""
    log: list[str] = []
    load = operation(Stream(), log, "load")
    Event(load, 1).synchronize()
    assert log == ["load0"] and Event(load, 1).query() and not Event(load, 2).query()


def test_a_stream_runs_in_order() -> None:
    log: list[str] = []
    stream = Stream()
    operation(stream, log, "first")
    Event(operation(stream, log, "second"), 1).synchronize()
    assert log == ["first0", "first1", "second0"]


def test_a_fenced_copy_waits_for_the_forward() -> None:
    log: list[str] = []
    launch = Launch(log, deque())
    Event(operation(Stream(), log, "copy", 1, launch), 1).synchronize()
    assert log == ["forward", "copy0"]


def test_a_submission_is_fenced_only_if_its_stream_waited() -> None:
    """Without the fence a copy is free to run before the forward that writes what it reads."""
    log: list[str] = []
    pending: deque[Any] = deque()
    Launch(log, pending)
    transfers = Transfers("direct")
    transfers.tier = SimpleNamespace(device=SimpleNamespace(pending=pending), settle=lambda: None)
    stream = transfers.device_to_host_stream
    transfers.submit_device_to_host([])
    stream.wait_stream(None)
    transfers.submit_device_to_host([])
    free, fenced = stream.operations
    assert free.after is None and fenced.after is pending[-1] and not stream.fenced
