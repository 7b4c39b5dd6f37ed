"""Estimates of what is left, on populations whose truth is known: each trace shows a few dependent species."""

import random
from collections.abc import Iterator

import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_summary import Seen
from hybridfuzz.harness.risk.estimates import chance_of_new, estimate, halving, new_species, unseen
from hybridfuzz.harness.risk.species_counts import Draws, SpeciesCounts

SEEN = Seen(1000, 0, 200, 20, 10, 12, 9, 40, 14)
GROUPS, TOGETHER = 200, 8
"""Rarer and rarer groups of species that always come together."""


def population() -> Iterator[tuple[float, list[int]]]:
    for group in range(GROUPS):
        yield 0.5 / (1 + group) ** 1.3, [group * TOGETHER + one for one in range(TOGETHER)]


def drawn(rng: random.Random, traces: int) -> list[list[int]]:
    groups = list(population())
    return [[one for chance, species in groups if rng.random() < chance for one in species] for _ in range(traces)]


def seen_in(traces: list[list[int]], unit: int = 1) -> Seen:
    counts = SpeciesCounts()
    for number, species in enumerate(traces):
        counts.add(species, number // unit)
    return counts.seen([Draws(1, "", len(traces) // unit, 0)])


def true_chance(traces: list[list[int]]) -> float:
    """Return the chance that another trace shows something new."""
    known = {one for species in traces for one in species}
    nothing = 1.0
    for chance, species in population():
        nothing *= 1 - chance * (species[0] not in known)
    return 1 - nothing


def test_the_interval_holds_the_chance() -> None:
    covered = 0
    for seed in range(40):
        traces = drawn(random.Random(seed), 300)
        interval = chance_of_new(seen_in(traces))
        covered += interval.low <= true_chance(traces) <= interval.high
    assert covered >= 36


def test_the_first_half_predicts_the_second() -> None:
    """New species come in groups: an interval for independent ones would be too narrow."""
    covered = narrow = 0
    for seed in range(40):
        traces = drawn(random.Random(seed), 600)
        known = {one for species in traces[:300] for one in species}
        new = len({one for species in traces[300:] for one in species} - known)
        seen = seen_in(traces[:300])
        covered += new_species(seen, 300).low <= new <= new_species(seen, 300).high
        naive = new_species(structs.replace(seen, once_squares=seen.once, twice_squares=seen.twice), 300)
        narrow += naive.low <= new <= naive.high
    assert covered >= 36 > narrow


@pytest.mark.parametrize("unit", [10, 100])
def test_the_estimate_does_not_move_with_the_sampling_unit(unit: int) -> None:
    """Per trace it is the same, within its interval, if 10 or 100 traces count as one (arXiv 2507.17093)."""
    traces = drawn(random.Random(5), 20_000)
    one, many = chance_of_new(seen_in(traces)), chance_of_new(seen_in(traces, unit))
    per_trace = [1 - (1 - share) ** (1 / unit) for share in (many.low, many.value, many.high)]
    assert one.low <= per_trace[1] <= one.high
    assert per_trace[0] <= one.value <= per_trace[2]
    assert unseen(seen_in(traces, unit)) == pytest.approx(unseen(seen_in(traces)), rel=0.5)


def test_chao_is_a_lower_bound() -> None:
    below = 0
    for seed in range(20):
        traces = drawn(random.Random(seed), 300)
        left = GROUPS * TOGETHER - len({one for species in traces for one in species})
        below += unseen(seen_in(traces)) <= left
    assert below == 20


def test_formulas() -> None:
    """By hand: 12 traces alone of 1000; Chao2 999/1000 * 20**2 / (2 * 10)."""
    assert chance_of_new(SEEN).value == 0.012
    assert unseen(SEEN) == pytest.approx(19.98)
    assert halving(SEEN) == 693  # log 2 / (2 * 10 / (999 * 20 + 2 * 10))
    assert new_species(SEEN, 1000).value == pytest.approx(20 * (1 - 2.718281828**-1))


def test_what_is_seen_once_only_has_limits() -> None:
    """Nothing seen twice, and nothing seen once."""
    none_twice = structs.replace(SEEN, twice=0, twice_squares=0, paired=0)
    assert unseen(none_twice) == pytest.approx(0.999 * 190)
    assert halving(none_twice) is None
    almost = structs.replace(SEEN, twice=1, twice_squares=1, paired=1, once=10**6, once_squares=10**6)
    limit = structs.replace(almost, twice=0)
    assert new_species(almost, 100).value == pytest.approx(new_species(limit, 100).value, rel=1e-4)
    quiet = structs.replace(none_twice, once=0, once_squares=0, alone=0)
    assert chance_of_new(quiet).high == pytest.approx(3.84 / 1000, rel=1e-2)
    assert (chance_of_new(quiet).low, unseen(quiet), halving(quiet)) == (0, 0, None)
    assert new_species(quiet, 1000).value == 0 < new_species(quiet, 1000).high < 4


def test_nothing_is_estimated() -> None:
    assert estimate(None) is None
    assert estimate(structs.replace(SEEN, traces=0)) is None
    assert estimate(structs.replace(SEEN, is_full=True)) is None
    assert estimate(SEEN)
