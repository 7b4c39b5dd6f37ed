"""Accepted counts reach the present row of their request, however rows moved in between."""

from hybridfuzz.targets.hybrid.worker.accepted_counts import AcceptedCounts


def counts_of(names: list[str], sampled: list[int]) -> AcceptedCounts:
    """Return counts after a step in which these rows sampled so many tokens."""
    counts = AcceptedCounts(1, 4, speculative=3)
    counts.gather(names)
    for row, tokens in enumerate(sampled):
        counts.put(0, row, tokens)
    counts.send()
    return counts


def test_they_arrive_when_waited_for() -> None:
    counts = counts_of(["a", "b"], [3, 1])
    assert counts.host[0][:2] == [0, 0]
    counts.wait()
    assert counts.host[0][:2] == [2, 0]


def test_each_follows_its_request_into_another_row() -> None:
    counts = counts_of(["a", "b", "c"], [1, 2, 4])
    counts.wait()
    counts.forget("a")
    counts.gather(["c", "b"])
    assert counts.host[0][:3] == [3, 1, 0]


def test_a_name_that_left_and_came_back_starts_with_none() -> None:
    counts = counts_of(["a", "b"], [4, 2])
    counts.wait()
    counts.forget("a")
    counts.gather(["b", "a"])
    assert counts.host[0][:2] == [1, 0]


def test_a_row_that_samples_nothing_accepts_nothing() -> None:
    counts = counts_of(["a"], [0])
    counts.wait()
    assert counts.host[0][0] == 0


def test_without_speculation_nothing_is_copied() -> None:
    counts = AcceptedCounts(1, 2, speculative=0)
    counts.gather(["a"])
    counts.put(0, 0, 1)
    counts.send()
    assert counts.copies == []
