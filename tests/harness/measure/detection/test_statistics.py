"""What the matrix says about runs: nothing is called found that was not, and comparisons tell up from down."""

import math

import pytest

from hybridfuzz.harness.measure.detection.statistics import Detection, compare, overall, ratio, spread, summarise
from hybridfuzz.harness.measure.detection.tables import change_lines, markdown, number, plain_line


def found(traces: int, seed: int = 0, mutant: str = "m", signature: str = "S1-step-mamba-temporal") -> Detection:
    oracle = signature.partition("-")[0]
    return Detection(mutant, seed, traces, traces * 60, traces / 50, signature, oracle, "broke", 3)


def missed(traces: int = 900, seed: int = 0, mutant: str = "m") -> Detection:
    return Detection(mutant, seed, traces, traces * 60, traces / 50)


def test_a_run_without_a_find_is_later_than_all_others() -> None:
    assert (spread([3, None, 1]).median, spread([3, None, 1]).worst) == (3, None)
    assert spread([3, None, None]).median is None
    assert spread([2, 4]) == spread([4, 2])
    assert spread([2, 4]).median == 3


def test_a_row_counts_only_what_was_found() -> None:
    row = summarise("m", "breaks", [found(4), found(9, signature="M1-step-free"), missed(), found(2)])
    assert (row.runs, row.found, row.events) == (4, 3, 3)
    assert row.oracles == ["M1", "S1"]
    assert next(iter(row.signatures.items())) == ("S1-step-mamba-temporal", 2)
    assert (row.traces.median, row.traces.worst) == (6.5, None)
    assert "3/4 found" in plain_line(row)
    assert "/ never" in plain_line(row)


def test_a_mutant_that_was_never_found_shows_no_numbers() -> None:
    row = summarise("m", "breaks", [missed(), missed()])
    assert plain_line(row) == "m: 0/2 found"
    assert row.events is None


def test_a_comparison_tells_better_from_worse() -> None:
    old = [found(100, mutant="quicker"), found(10, mutant="slower"), found(10, mutant="alike"), missed(mutant="new")]
    new = [found(10, mutant="quicker"), found(100, mutant="slower"), found(11, mutant="alike"), found(50, mutant="new")]
    verdicts = {change.mutant: change.verdict for change in compare(old, new)}
    assert verdicts == {"quicker": "better", "slower": "worse", "alike": "same", "new": "better"}
    assert {change.verdict for change in compare(new, old) if change.mutant == "new"} == {"worse"}


def test_losing_one_run_is_worse_however_quick_the_others_are() -> None:
    [change] = compare([found(500), found(500, 1)], [found(1), missed(10, 1)])
    assert change.verdict == "worse"
    assert change.traces < 1


def test_mutants_of_one_matrix_only_do_not_count_in_the_whole() -> None:
    changes = compare([found(10, mutant="both"), found(10, mutant="gone")], [found(40, mutant="both"), missed()])
    assert {change.mutant: change.verdict for change in changes} == {"both": "worse", "m": "new", "gone": "gone"}
    traces, seconds = overall(changes)
    assert traces == pytest.approx(4)
    assert seconds == pytest.approx(4)
    assert "x4.00" in change_lines(changes)[-1]


def test_ratios_are_geometric() -> None:
    assert ratio([1, 100], [10, 10], 1) == pytest.approx(1)
    assert math.isclose(ratio([0.0], [0.01], 0.01), 1), "too quick to measure is no gain"


def test_the_page_has_a_line_for_each_mutant() -> None:
    rows = [summarise("m", "breaks", [found(4)]), summarise("n", "too", [missed()])]
    page = markdown(rows, "hybrid", 60.0, "hybridfuzz mutants")
    assert "| m | 1/1 | S1-step-mamba-temporal (1) |" in page
    assert "| n | 0/1 |" in page
    assert "1 of 2 mutants" in " ".join(page.split())


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "never"), (0.004, "0.00"), (3, "3"), (2.5, "2.50"), (33.33, "33.3"), (1234.5, "1,234")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text
