"""The grammar of a structured answer: it allows the answer, and refuses some of what is not."""

from hybridfuzz.reference.structured import allowed, is_allowed
from hybridfuzz.reference.tokens import Truth, draft_tokens, other_token

TRUTH = Truth((("a", 5),))
TRUTH.reach(15)
ANSWER = TRUTH.tokens[5:15]


def test_the_model_s_own_answer_is_allowed() -> None:
    for place in range(10):
        assert allowed(TRUTH, place, ANSWER[place:]) == 10 - place


def test_a_wrong_draft_is_refused_at_even_places_only() -> None:
    for place, right in enumerate(ANSWER):
        assert is_allowed(TRUTH, place, other_token(right)) == (place % 2 == 1)
        drafts = draft_tokens(TRUTH.tag(5 + place), 3, 0)
        assert allowed(TRUTH, place, drafts) == (0 if place % 2 == 0 else 3)


def test_behind_a_wrong_token_anything_goes() -> None:
    wrong = other_token(ANSWER[1])
    assert allowed(TRUTH, 0, [ANSWER[0], wrong, other_token(ANSWER[2])]) == 3
