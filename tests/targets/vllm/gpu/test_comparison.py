"""A difference of log-probabilities counts beyond the tolerance and beyond what rounding does to the row."""

from collections.abc import Sequence

import numpy as np
import pytest

from hybridfuzz.targets.vllm.gpu.beside import ALONE, Beside
from hybridfuzz.targets.vllm.gpu.comparison import ROUNDINGS, Comparison
from hybridfuzz.targets.vllm.gpu.plans import Floats

TOKENS = (7, 7, 7)
TOLERANCE = 0.001


class Alone:
    """A reference of three tokens and a vocabulary of two; rounding moves the last row far. Counts its runs."""

    def __init__(self, is_sound: bool) -> None:
        self.sound = is_sound
        self.runs = 0
        self.beside = set[Beside]()

    def expected(self, tokens: Sequence[int], beside: Beside = ALONE) -> Floats:
        self.beside.add(beside)
        return np.full((len(tokens), 2), -1.0, np.float32)

    def is_sound(self, tokens: Sequence[int], beside: Beside = ALONE) -> bool:
        self.beside.add(beside)
        self.runs += 1
        return self.sound

    def rounding(self, tokens: Sequence[int], beside: Beside = ALONE) -> Floats:
        self.beside.add(beside)
        self.runs += 1
        return np.array([0.0, 0.0, 0.01], np.float32)


def compare(position: int, difference: float, is_sound: bool = True) -> tuple[bool, int, int]:
    """Whether a row is compared, the rows that count as ill-conditioned, and runs beside the expected one."""
    alone = Alone(is_sound)
    comparison = Comparison(alone, TOLERANCE)
    expected = comparison.expected(TOKENS, position, np.array([-1.0, -1.0 + difference], np.float32))
    assert comparison.rows == (expected is not None)
    return expected is not None, comparison.ill_conditioned, alone.runs


def test_a_small_difference_needs_no_further_run() -> None:
    assert compare(2, TOLERANCE / 2) == (True, 0, 0)


def test_a_difference_that_rounding_does_not_make_counts() -> None:
    assert compare(1, 2 * TOLERANCE) == (True, 0, 2)
    assert compare(2, 0.01 * ROUNDINGS * 1.1) == (True, 0, 2)


def test_a_row_that_rounding_moves_as_far_does_not_count() -> None:
    """Prompts of one token of Nemotron-H came up to 0.00083 on an H200, and rounding moves them by 0.0014."""
    assert compare(2, 0.01 * ROUNDINGS * 0.9) == (False, 1, 2)


def test_an_unsound_reference_shows_nothing() -> None:
    assert compare(1, 2 * TOLERANCE, is_sound=False) == (False, 0, 1)


def test_the_reference_has_the_same_adapter() -> None:
    alone, given = Alone(is_sound=True), Beside("adapter.b")
    Comparison(alone, TOLERANCE).expected(TOKENS, 2, np.array([-1.0, -1.0 + 0.05], np.float32), given)
    assert (alone.beside, alone.runs) == ({given}, 2)


@pytest.mark.parametrize("position", [0, 1])
def test_nan_is_compared(position: int) -> None:
    """S7 judges it; it must not be left out as a row that rounding moves."""
    assert compare(position, float("nan"))[0]
