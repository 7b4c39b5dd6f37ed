"""Decoys: places at which a model prefers a token that its request rules out."""

from hybridfuzz.reference.tokens import FIRST_TOKEN, Truth
from hybridfuzz.targets.base.decoys import DECOY, SHARE, has_decoy
from hybridfuzz.targets.base.shadow import POISON


def test_a_share_of_the_places_has_one_and_no_answer_does() -> None:
    truth = Truth([("a", 1)])
    truth.reach(3000)
    places = sum(has_decoy(tag) for tag in truth.tags)
    assert abs(places - len(truth.tags) / SHARE) < 150
    assert DECOY < FIRST_TOKEN and DECOY not in truth.tokens


def test_a_poisoned_state_has_none() -> None:
    """S7 recognizes it by its token."""
    assert not has_decoy(POISON)
