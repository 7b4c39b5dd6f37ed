"""What a campaign prints, in terminals of any width."""

import io

import pytest
from hybridfuzz.harness.outputs.console import Terminal, counts
from rich.console import Console
from rich.text import Text


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_numbers_are_never_cut_off(width: int) -> None:
    values = {"boundary crossed in a step without a rejection": 1234567, "preempted": 2, "prefix hit": 34567, "rare": 0}
    console = Console(file=(text := io.StringIO()), width=width)
    console.print(counts("states", values, width))
    words = text.getvalue().split()
    assert {"1,234,567", "2", "34,567", "never"} <= set(words)
    assert max(map(len, text.getvalue().splitlines())) <= width


def test_no_control_sequence_reaches_the_terminal() -> None:
    """Titles of windows, colours and cursor moves of a stranger's message are shown, not obeyed."""
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, width=80, color_system=None)
    console.print(Text("a\x1b]0;owned\x07 \x1b[2J\x9b31m b"))
    console.print("\x1b[31mtext", markup=False)
    assert not set("\x1b\x07\x9b") & set(out.getvalue())
    assert r"a\x1b]0;owned" in out.getvalue()
