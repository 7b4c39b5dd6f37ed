"""Delays follow events and reads, on the stream that they name, and only while they are asked for."""

from contextlib import contextmanager

import pytest
import torch

from hybridfuzz.targets.vllm.gpu import jitter
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory
from hybridfuzz.targets.vllm.gpu.host_copy import fetched
from hybridfuzz.targets.vllm.gpu.jitter import BEHIND_EVENT, BEHIND_READ, CYCLES, Jitter


class Device:
    """Notes what is done on which stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current: object = "main"
        self.done: list[tuple[object, str]] = []
        self.longest = 0
        monkeypatch.setattr(torch.cuda, "stream", self.stream)

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream or self.current
        yield
        self.current = before

    def spin(self, cycles: int) -> None:
        self.longest = max(self.longest, cycles)
        self.done.append((self.current, "delay"))

    def call(self, event: object, stream: object) -> None:
        self.done.append((stream or self.current, "event"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.mark.parametrize("stream", [None, "copies"])
def test_a_delay_follows_an_event_on_its_stream(device: Device, stream: str | None) -> None:
    record = jitter.followed(device.call)
    record("event", stream)
    with jitter.active(Jitter(spin=device.spin)):
        record("event", stream)
    record("event", stream)
    where = stream or "main"
    assert device.done == [(where, "event"), (where, "event"), (where, "delay"), (where, "event")]


def test_a_copy_to_the_host_is_followed_by_a_delay(device: Device) -> None:
    delays = Jitter(spin=device.spin)
    with jitter.active(delays):
        assert [one.tolist() for one in fetched([torch.tensor([1, 2])])] == [[1, 2]]
    fetched([torch.tensor([3])])
    assert delays.delays == 1 and device.done == [("main", "delay")]


def test_delays_end_with_an_exception(device: Device) -> None:
    with pytest.raises(ValueError), jitter.active(Jitter(spin=device.spin)):
        raise ValueError
    jitter.behind_read()
    assert not device.done


def test_delays_differ_and_are_bounded(device: Device) -> None:
    lengths = []
    delays = Jitter(spin=lengths.append)
    for _ in range(100):
        delays.delay(BEHIND_READ)
    assert 0 <= min(lengths) < max(lengths) < BEHIND_READ * CYCLES and len(set(lengths)) > 90
    assert BEHIND_EVENT < BEHIND_READ


def test_only_a_gpu_has_streams_to_delay() -> None:
    assert "jitter" in GpuFactory("vllm", "cuda", ()).capabilities.options
    assert "jitter" not in GpuFactory("vllm", "interpreter", ()).capabilities.options
