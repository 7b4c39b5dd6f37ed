"""A command that prints nothing for a while says on a terminal for how long it has been at work, and erases that."""

import os
import pty
import time
from collections.abc import Iterator

import pytest

from hybridfuzz.harness.standard_streams import SILENT_SECONDS, Elapsed, Output


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal: what is shown, and where a command writes."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def read(terminal: int, length: int) -> bytes:
    """Read so many bytes: a terminal may give them in pieces."""
    found = b""
    while len(found) < length:
        found += os.read(terminal, length - len(found))
    return found


def test_a_silent_command_says_how_long_it_has_been_at_work(terminal: tuple[int, int]) -> None:
    shown, own = terminal
    clock = Clock()
    elapsed = Elapsed(own, clock)
    output = Output(own, elapsed)
    clock.now = SILENT_SECONDS - 1
    elapsed.look("reduce", 0.0)
    output.write(b"starting\n")
    clock.now += SILENT_SECONDS - 1
    elapsed.look("reduce", 0.0)
    output.write(b"began\n")
    began = b"starting\r\nbegan\r\n"
    assert read(shown, len(began)) == began

    clock.now += SILENT_SECONDS
    elapsed.look("reduce", 0.0)
    elapsed.look("reduce", 0.0)
    output.write(b"result\n")
    said = b"\r\x1b[Khybridfuzz reduce: 7 s so far"
    ended = said + said + b"\r\x1b[K" + b"result\r\n"
    assert read(shown, len(ended)) == ended


TICK = 0.01


def test_nothing_is_left_on_the_terminal(terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown, own = terminal
    clock = Clock()
    with Elapsed(own, clock, TICK).of("reduce"):
        clock.now = SILENT_SECONDS
        assert b"reduce: 3 s" in os.read(shown, 100)
    assert os.read(shown, 1000).endswith(b"\r\x1b[K")


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_erase_a_line_is_left_alone(
    terminal: tuple[int, int], monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("TERM", term) if term else monkeypatch.delenv("TERM", raising=False)
    shown, own = terminal
    clock = Clock()
    with Elapsed(own, clock, TICK).of("reduce"):
        clock.now = 10 * SILENT_SECONDS
        time.sleep(10 * TICK)
    os.write(own, b".")
    assert os.read(shown, 100) == b"."
