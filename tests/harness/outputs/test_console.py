"""What a campaign prints, in terminals of any width."""

import io

import pytest
from hybridfuzz.harness.outputs.console import counts
from rich.console import Console


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_numbers_are_never_cut_off(width: int) -> None:
    values = {"boundary crossed in a step without a rejection": 1234567, "preempted": 2, "prefix hit": 34567, "rare": 0}
    console = Console(file=(text := io.StringIO()), width=width)
    console.print(counts("states", values, width))
    words = text.getvalue().split()
    assert {"1,234,567", "2", "34,567", "never"} <= set(words)
    assert max(map(len, text.getvalue().splitlines())) <= width
