"""The bound of Clopper and Pearson, against published values and against the definition."""

from math import comb

import pytest

from hybridfuzz.harness.risk.binomial import at_most, upper_bound


@pytest.mark.parametrize(
    ("count", "number", "level", "expected"),
    [
        (0, 10, 0.975, 0.3085),
        (1, 10, 0.975, 0.4450),
        (5, 20, 0.975, 0.4910),
        (10, 100, 0.975, 0.1762),
        (1, 10, 0.95, 0.3942),
        (0, 1000, 0.95, 1 - 0.05 ** (1 / 1000)),
        (10, 10, 0.95, 1.0),
    ],
)
def test_known_values(count: int, number: int, level: float, expected: float) -> None:
    assert upper_bound(count, number, level) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("number", [30, 1000, 10**6, 10**9])
def test_without_a_hit_it_is_just_below_three_in_all(number: int) -> None:
    assert 2.85 / number < upper_bound(0, number) <= 3 / number


@pytest.mark.parametrize(("count", "number"), [(1, 3), (7, 12), (13, 4000), (4000, 10_000), (3, 10**8)])
def test_the_bound_is_where_so_few_hits_become_unlikely(count: int, number: int) -> None:
    assert at_most(count, number, upper_bound(count, number)) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize(("count", "number", "p"), [(0, 5, 0.3), (2, 9, 0.4), (11, 40, 0.5)])
def test_the_tail_is_the_sum_of_its_terms(count: int, number: int, p: float) -> None:
    terms = [comb(number, hits) * p**hits * (1 - p) ** (number - hits) for hits in range(count + 1)]
    assert at_most(count, number, p) == pytest.approx(sum(terms))
