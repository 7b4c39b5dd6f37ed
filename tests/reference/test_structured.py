"""The grammar of a structured answer: it allows the answer, which is what it leaves of what the model would say."""

from hybridfuzz.reference.structured import allowed, is_allowed
from hybridfuzz.reference.tokens import Truth, other_token

LENGTH = 40


def structured(stop_at: int = 0, least: int = 0) -> Truth:
    truth = Truth((("a", 5),))
    truth.stop_tokens(stop_at, least, has_grammar=True)
    truth.reach(5 + LENGTH)
    return truth


TRUTH = structured()
ANSWER = TRUTH.tokens[5:]
MASKED = [place for place in range(LENGTH) if TRUTH.is_masked(5 + place)]


def test_the_answer_is_allowed() -> None:
    for place in range(LENGTH):
        assert allowed(TRUTH, place, ANSWER[place:]) == LENGTH - place


def test_the_model_s_first_choice_is_forbidden_at_some_even_places_and_its_next_one_stands_there() -> None:
    assert len(MASKED) > LENGTH // 8 and not any(place % 2 for place in MASKED)
    for place, right in enumerate(ANSWER):
        first = TRUTH.first(5 + place)
        assert is_allowed(TRUTH, place, first) == (place not in MASKED)
        assert right == (other_token(first) if place in MASKED else first)


def test_another_token_is_refused_at_even_places_only() -> None:
    for place, right in enumerate(ANSWER):
        assert is_allowed(TRUTH, place, other_token(right)) == (place % 2 == 1)


def test_drafts_are_what_the_model_would_say_or_what_the_grammar_leaves() -> None:
    """So that a right draft of a drafter that knows no grammar must be refused, and one that follows it accepted."""
    for place in MASKED:
        [unaware, aware] = [TRUTH.drafts(5 + place, 1, 1), TRUTH.drafts(4 + place, 2, 2)] if place else [[], []]
        if (5 + place) % 2 == 0 and place:
            assert unaware == [TRUTH.first(5 + place)] and allowed(TRUTH, place, unaware) == 0
            assert aware == ANSWER[place - 1 : place + 1]
    wrong = TRUTH.drafts(6, 3, 0), TRUTH.drafts(7, 3, 1)
    assert wrong[0][0] != ANSWER[1] and wrong[1][0] == ANSWER[2] and wrong[1][1] != ANSWER[3]


def test_behind_a_wrong_token_anything_goes() -> None:
    wrong = other_token(ANSWER[1])
    assert allowed(TRUTH, 0, [ANSWER[0], wrong, other_token(ANSWER[2])]) == 3


def test_stop_tokens_that_come_too_early_leave_what_the_grammar_allows() -> None:
    for stop_at in range(1, 12):
        truth = structured(stop_at, least=9)
        assert all(
            is_allowed(truth, place, token) and (place + 1 == stop_at or token not in truth.withheld)
            for place, token in enumerate(truth.tokens[5:14])
        )


def test_another_turn_s_answer_is_free() -> None:
    truth = TRUTH.continued(20, (("b", 3),))
    truth.stop_tokens(0)
    truth.reach(60)
    assert all(truth.tokens[at] == truth.first(at) for at in range(23, 60))
    truth.stop_tokens(0, has_grammar=True)
    truth.reach(60)
    assert not all(truth.tokens[at] == truth.first(at) for at in range(23, 60)), "asked for a grammar, it answers anew"


def test_behind_the_place_where_it_is_complete_a_grammar_is_over() -> None:
    """Nobody advances it there, so a step in flight samples what the model says."""
    truth = structured(stop_at=4)
    assert [truth.is_bound(5 + place) for place in range(6)] == [True] * 4 + [False] * 2
    for place in range(4, LENGTH):
        assert truth.tokens[5 + place] == truth.first(5 + place) and not truth.is_masked(5 + place)
        assert is_allowed(truth, place, other_token(truth.tokens[5 + place]))
