"""Rows of a batch: which request is where, and whose tokens it has."""

import pytest

from hybridfuzz.reference.batch import NAME_MAX, choice, copy_name, reordered, repeated, selected
from hybridfuzz.reference.request import Life
from hybridfuzz.reference.tokens import VOCABULARY


def decoding(name: str, document: str, delivered: int = 3) -> Life:
    """A request with a prompt of 5 tokens, all but the newest token computed."""
    life = Life(name, ((document, 5),), 9)
    life.delivered, life.settled = delivered, 5 + delivered - 1
    life.truth.reach(life.known)
    return life


def test_selected_rows_are_in_the_order_of_the_names() -> None:
    assert selected(["a", "b", "c"], ["c", "x", "a", "c"]) == ["c", "a"]
    assert selected(["a", "b"], ["x"]) == ["a", "b"], "without any row of the batch nothing happens"


def test_copies_stand_behind_their_row() -> None:
    assert repeated(["a", "b"], 2, 4, set()) == {"a": ("a", 0), "a.1": ("a", 1), "b": ("b", 0), "b.1": ("b", 1)}


@pytest.mark.parametrize(
    ("rows", "times", "most", "known"),
    [
        (["a", "b"], 3, 5, set()),
        (["a"], 2, 4, {"a.1"}),
        (["a" * (NAME_MAX - 1)], 2, 4, set()),
        (["a", "a.1"], 2, 4, {"a", "a.1"}),
    ],
)
def test_rows_that_do_not_fit_are_not_repeated(rows: list[str], times: int, most: int, known: set[str]) -> None:
    """Too many rows, a name that arrived before, a name that is too long, a copy beside its original."""
    assert repeated(rows, times, most, known) == {}


def test_rows_take_over_all_at_the_same_time() -> None:
    assert reordered(["a", "b", "c"], {"a": "b", "b": "a"}) == {"a": ("b", 0), "b": ("a", 0), "c": ("c", 0)}
    assert reordered(["a", "b", "c"], {"a": "b", "c": "b"}) == {"a": ("b", 0), "b": ("b", 1), "c": ("b", 2)}
    assert reordered(["a", "b"], {"a": "x", "x": "a"}) == {"a": ("a", 0), "b": ("b", 0)}


def test_choices_are_different_tokens_of_the_vocabulary() -> None:
    tokens = [choice(7, rank) for rank in range(5)]
    assert tokens[0] == 7
    assert len(set(tokens)) == 5
    assert all(2 <= choice(VOCABULARY - 1, rank) < VOCABULARY for rank in range(5))
    assert copy_name("r0", 2) == "r0.2"


def test_a_copy_continues_with_another_token() -> None:
    """Its newest token, which is not computed yet, differs; all before it, and its progress, are the source's."""
    source, other = decoding("a", "x"), decoding("b", "y", delivered=1)
    other.copy_of(source, 1)
    newest = source.known - 1
    assert other.truth.tokens[:newest] == source.truth.tokens[:newest]
    assert other.truth.tokens[newest] == choice(source.truth.tokens[newest], 1)
    assert (other.known, other.settled, other.total_length) == (source.known, source.settled, source.total_length)
    assert other.truth.prompt_length == 5
    assert other.truth.tag(source.settled) == source.truth.tag(source.settled)
    assert other.truth.tag(source.known) != source.truth.tag(source.known)
    assert other.name == "b"


@pytest.mark.parametrize(("rank", "delivered"), [(0, 3), (1, 0)])
def test_a_copy_is_equal_of_rank_0_and_before_the_first_token(rank: int, delivered: int) -> None:
    source, other = decoding("a", "x", delivered), decoding("b", "y")
    other.copy_of(source, rank)
    assert other.truth.tokens == source.truth.tokens


def test_crop_and_reset_forget_what_is_computed_and_no_token() -> None:
    life = decoding("a", "x")
    life.crop(2)
    assert (life.settled, life.known) == (5, 8)
    life.reset()
    assert (life.settled, life.known) == (0, 8)
