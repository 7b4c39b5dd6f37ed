"""Every trace number is counted once, and the state file stays small."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hybridfuzz.harness.campaign.trace_counts import Progress, Ranges
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.workers.results import Counts


def summary(progress: Progress) -> Summary:
    return Summary("hybrid", "", 1, {}, None, progress.traces, 0, 0.0, [], {}, {}, [], [], done=progress.done,
                   beyond=progress.beyond.ranges())  # fmt: skip


def counts(*indexes: int) -> Counts:
    return Counts(indexes, 0, {}, {})


@given(st.sets(st.integers(0, 40)).flatmap(lambda numbers: st.permutations(sorted(numbers))))
def test_ranges_are_the_set(numbers: list[int]) -> None:
    ranges, first = Ranges(), 0
    for number in numbers:
        ranges.add(number)
    assert [place for start, end in ranges.ranges() for place in range(start, end)] == sorted(numbers)
    assert all(end < start for (_, end), (start, _) in zip(ranges.ranges(), ranges.ranges()[1:], strict=False))
    gaps = [place for gap in ranges.gaps_from(0) for place in gap]
    assert gaps == [place for place in range(max(numbers, default=0)) if place not in numbers]
    while first in numbers:
        first += 1
    assert ranges.pop_from(0) == first
    assert not any(start <= number < end for start, end in ranges.ranges() for number in range(first))


def test_numbers_out_of_order_are_ranges() -> None:
    """One slow trace at the start of a night: the list of all later numbers made a state file of megabytes."""
    progress = Progress()
    progress.allot(10_000, None)
    progress.count_many(counts(*range(1, 5_000), *range(5_001, 10_000)))
    assert progress.beyond.ranges() == [(1, 5_000), (5_001, 10_000)]
    assert progress.done == 0


def test_ranges_are_continued_from() -> None:
    progress = Progress()
    progress.allot(8, None)
    progress.count_many(counts(0, 2, 3, 6))
    again = Progress(summary(progress))
    assert (again.done, again.beyond.ranges()) == (1, [(2, 4), (6, 7)])
    allotted = [again.allot(9, 8) for _ in range(4)]
    assert [list(each) for each in allotted] == [[1], [4, 5], [7], []]


def test_a_long_gap_takes_no_memory() -> None:
    """A state file of a few bytes made a list of 300 million numbers: 4 GB, then a MemoryError."""
    state = structs.replace(summary(Progress()), beyond=[(300_000_000, 300_000_001)])
    progress = Progress(state)
    assert [progress.allot(4, None), progress.allot(4, None)] == [range(4), range(4, 8)]
    progress.give_back([2, 3])
    assert [progress.allot(4, None), progress.allot(4, None)] == [range(2, 4), range(8, 12)]


@given(st.sets(st.integers(0, 40)), st.lists(st.integers(1, 9), min_size=50, max_size=50))
def test_all_that_is_missing_is_allotted_once(numbers: set[int], sizes: list[int]) -> None:
    counted = Progress()
    counted.count_many(counts(*sorted(numbers)))
    progress, allotted = Progress(summary(counted)), list[int]()
    for size in sizes:
        batch = progress.allot(size, 45)
        assert len(batch) <= size
        allotted += batch
    assert allotted == [number for number in range(45) if number not in numbers]


@given(st.sets(st.integers(0, 12)), st.integers(0, 14), st.integers(1, 5))
def test_there_is_more_as_long_as_something_is_allotted(given_back: set[int], traces: int, most: int) -> None:
    """A campaign on a cluster ended with an internal error, as nothing had been given back."""
    progress = Progress()
    progress.allot(13, None)
    progress.give_back(given_back)
    while progress.has_more(traces):
        assert progress.allot(most, traces)
    assert not progress.allot(most, traces)
    assert Progress().has_more(1)
    assert not Progress().has_more(0)
