"""Decoys: places at which a model prefers a token that its request rules out."""

from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.decoys import SHARE, Decoys, has_decoy
from hybridfuzz.targets.base.shadow import POISON


def answer(length: int) -> tuple[Truth, int, set[int]]:
    """A truth, the end of its answer, and the tokens that this needs."""
    truth = Truth([("a", 3)])
    truth.reach(end := truth.prompt_length + length)
    return truth, end, set(truth.tokens[truth.prompt_length : end])


def test_a_share_of_the_places_has_one() -> None:
    truth, end, _ = answer(3000)
    assert abs(sum(has_decoy(tag) for tag in truth.tags) - end / SHARE) < 150


def test_an_answer_gets_none_that_it_needs() -> None:
    truth, end, needed = answer(30)
    decoys = Decoys()
    found = decoys.add(truth, end, needed)
    assert found and not needed & set(found.values())
    assert {place: decoys.at(truth.tags[place]) for place in found} == found
    assert decoys.at(truth.tags[truth.prompt_length - 1]) is None, "the prompt has none"


def test_a_request_at_the_same_places_has_the_same_or_takes_them_away() -> None:
    truth, end, needed = answer(30)
    decoys = Decoys()
    found = decoys.add(truth, end, needed)
    assert decoys.add(truth, end, needed) == found
    place, token = next(iter(found.items()))
    later = decoys.add(truth, end, needed | {token})
    assert place not in later and decoys.at(truth.tags[place]) is None
    assert place not in decoys.add(truth, end, needed), "the other request goes on"


def test_a_poisoned_state_has_none() -> None:
    """S7 recognizes it by its token."""
    assert not has_decoy(POISON) and Decoys().at(POISON) is None
