"""What is left of this machine's memory."""

import sys
from pathlib import Path

import pytest

from hybridfuzz.harness.workers import machine

GIB = 1 << 30


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is left")
@pytest.mark.parametrize(("memory", "room"), [(3 << 20, True), (1 << 60, False)])
def test_there_is_room_while_a_third_of_the_memory_is_left(
    memory: int, room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_memory", lambda: memory)
    assert machine.has_room() is room


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has control groups")
@pytest.mark.parametrize(("used", "cached", "room"), [(1, 0, True), (3, 0, False), (3, 2, True)])
def test_what_a_control_group_has_read_is_no_memory_that_it_needs(
    used: int, cached: int, room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenth part of a GiB is the unit: the machine that runs this has as much."""
    part = GIB // 10
    (tmp_path / "memory.max").write_text(f"{3 * part}\n")
    (tmp_path / "memory.current").write_text(f"{used * part}\n")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cached * part}\n")
    monkeypatch.setattr(machine, "GROUP", tmp_path)
    assert machine.has_room() is room
