"""What is left of this machine's memory."""

import sys

import pytest

from hybridfuzz.harness.workers import machine


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is left")
@pytest.mark.parametrize(("memory", "room"), [(3 << 20, True), (1 << 60, False)])
def test_there_is_room_while_a_third_of_the_memory_is_left(
    memory: int, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_memory", lambda: memory)
    assert machine.has_room() is room
