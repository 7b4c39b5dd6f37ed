"""The grammar of a structured answer: it allows the answer, which is what it leaves of what the model would say."""

import pytest

from hybridfuzz.reference.structured import allowed, grammar_start, is_allowed
from hybridfuzz.reference.tokens import Truth, other_token

LENGTH = 40


def structured(stop_at: int = 0, least: int = 0, reasoning: int = 0) -> Truth:
    truth = Truth((("a", 5),))
    truth.stop_tokens(stop_at, least, has_grammar=True, reasoning=reasoning)
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


@pytest.mark.parametrize("reasoning", range(1, 12))
def test_reasoning_is_what_the_model_says_and_the_grammar_holds_behind_it(reasoning: int) -> None:
    """Up to the first token that equals the one at its place; the first place of the grammar is the next one."""
    truth, free = structured(reasoning=reasoning), Truth((("a", 5),))
    free.reach(5 + LENGTH)
    first = free.tokens.index(free.tokens[4 + reasoning], 5) + 1
    assert truth.grammar_from == grammar_start(truth) == first and truth.tokens[:first] == free.tokens[:first]
    masked = [place for place in range(LENGTH - reasoning) if truth.is_masked(first + place)]
    assert masked and not any(place % 2 for place in masked)
    assert not any(truth.is_masked(position) for position in range(5, first))
    assert allowed(truth, 0, truth.tokens[first:]) == 5 + LENGTH - first
    assert not any(is_allowed(truth, place, truth.first(first + place)) for place in masked)


def test_reasoning_of_an_answer_that_is_asked_for_again_is_the_same() -> None:
    """A least number of tokens may withhold some of it. A free turn behind it has neither reasoning nor a grammar."""
    for least in (0, 9):
        truth = structured(6, least, reasoning=3)
        tokens, first = truth.tokens[:], truth.grammar_from
        truth.stop_tokens(6, least, has_grammar=True, reasoning=3)
        truth.reach(5 + LENGTH)
        assert (truth.tokens, truth.grammar_from) == (tokens, first)
    truth.stop_tokens(0)
    truth.reach(20)
    assert truth.reasons_until == 0 and all(truth.tokens[at] == truth.first(at) for at in range(5, 20))


def test_a_grammar_is_over_from_the_beginning_if_it_is_complete_within_the_reasoning() -> None:
    """The stop token in the reasoning ends the answer, as any stop token does."""
    truth = structured(stop_at=2, reasoning=4)
    assert truth.answer_length(LENGTH, truth.stop_tokens(2, has_grammar=True, reasoning=4)) == 2
    truth.reach(5 + LENGTH)
    assert not any(truth.is_bound(position) for position in range(5, 5 + LENGTH))


def test_a_copy_that_differs_in_its_reasoning_ends_it_where_its_own_tokens_say() -> None:
    truth = structured(reasoning=4)
    end = truth.reasons_until
    assert truth.branched(6, end).grammar_from == 7
    other = truth.branched(truth.grammar_from - 1, other_token(end))
    assert other.grammar_from == -1
    other.reach(600)
    assert other.grammar_from == (other.tokens.index(end, 5) + 1 if end in other.tokens[5:] else -1)


def test_a_grammar_that_is_asked_although_the_reasoning_does_not_end_allows_everything() -> None:
    truth = structured(reasoning=4)
    truth.withheld, truth.free_from = (truth.reasons_until,), 10_000
    truth._answer_anew()
    assert grammar_start(truth) == 5 and truth.grammar_from == -1
    assert all(is_allowed(truth, place, token) for place in range(4) for token in range(2, 128))
