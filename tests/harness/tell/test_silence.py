"""The lines about what a campaign has not shown."""

from math import ceil, floor

import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_summary import Seen
from hybridfuzz.harness.tell.silence import percent, silence_lines

SEEN = Seen(1000, 0, 2000, 20, 10, 12, 9, 40, 14)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.123, "12 %"), (0.0123, "1.2 %"), (0.00012, "0.012 %"), (1e-6, "0.00010 %"),
     (0.0996, "10 %"), (0.996, "100 %")],
)  # fmt: skip
def test_a_share_has_two_digits(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(("share", "low", "high"), [
    (0.114, "11 %", "12 %"), (0.0996, "9.9 %", "10 %"), (0.07, "7.0 %", "7.0 %"), (0.000121, "0.012 %", "0.013 %"),
    (0.28, "28 %", "28 %"),
])  # fmt: skip
def test_a_bound_is_not_rounded_to_the_other_side(share: float, low: str, high: str) -> None:
    """11.4 % was "at most 11 %"."""
    assert (percent(share, floor), percent(share, ceil)) == (low, high)


def test_a_clean_campaign() -> None:
    assert list(silence_lines(SEEN)) == [
        "what is left: the next trace shows something new with a chance of 1.2 % (0.30 % to 2.5 %); 2,000 pairs of "
        "situations in 1,000 traces, at least 20 not seen; to halve the chance takes 693 more traces at least",
        "at most 0.30 % of this generator's traces fail, at 95 % (none of 1,000 did)",
    ]


def test_nothing_new_for_long_and_some_failures() -> None:
    left, fails = silence_lines(structs.replace(SEEN, failing=30, once=0, twice=0, alone=0, paired=0, campaigns=3))
    assert "with a chance of 0 % (at most 0.39 %); 2,000 pairs of situations in 1,000 traces of 3 campaigns" in left
    assert left.endswith("at least 0 not seen")
    assert fails == "at most 4.1 % of this generator's traces fail, at 95 % (30 of 1,000 did)"


def test_nothing_is_said_without_traces() -> None:
    assert not list(silence_lines(None))
    assert not list(silence_lines(structs.replace(SEEN, traces=0)))


def test_too_many_species_are_said() -> None:
    full, _ = silence_lines(structs.replace(SEEN, is_full=True))
    assert full == "what is left: not estimated, as there are more than 65,536 pairs of situations"
