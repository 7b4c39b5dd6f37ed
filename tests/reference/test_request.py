"""The life of one request: how many tokens are settled, and what a step has to sample."""

import pytest

from hybridfuzz.reference.batch import choice
from hybridfuzz.reference.request import Life
from hybridfuzz.reference.tokens import Truth, other_token
from hybridfuzz.targets.base.trace import Arrive, least_tokens


@pytest.fixture
def life() -> Life:
    return Life("r0", [("a", 10)], 6)


def test_a_new_request_has_nothing(life: Life) -> None:
    assert (life.settled, life.delivered, life.total_length) == (0, 0, 16)
    assert not life.resumed


def test_chunks_add_up(life: Life) -> None:
    life.admit(0)
    assert life.resumed
    life.advance(8, 0, 0)
    assert not life.resumed
    life.advance(2, 0, 1)
    assert life.settled == 10


def test_admission_starts_at_the_hit(life: Life) -> None:
    life.admit(8)
    assert life.settled == 8
    life.advance(2, 0, 1)
    assert life.settled == 10


def test_readmission_forgets_progress_not_output(life: Life) -> None:
    life.admit(0)
    life.advance(10, 0, 1)
    life.delivered = 1
    life.admit(4)
    assert (life.settled, life.delivered, life.resumed) == (4, 1, True)


def test_a_turn_goes_on_from_what_the_client_has_seen() -> None:
    """The prompt of the next turn is the prompt before, what was delivered, and the new part."""
    life = Life("r0", [("a", 10)], 6, session=True)
    life.admit(0)
    life.advance(10, 0, 1)
    life.delivered = 1
    first = life.truth
    first.reach(16)
    seen = first.tokens[:11]
    life.park()
    assert life.parked
    life.resume([("b", 3)], 2)
    assert not life.parked
    assert life.truth.tokens[:11] == seen
    assert life.truth.tokens[11:14] == Truth([("b", 3)]).tokens
    assert (life.known, life.delivered, life.total_length) == (14, 0, 16)
    assert life.truth.tag(12) != first.tag(12), "keys of the first turn keep their meaning"
    life.admit(10)
    assert (life.settled, life.resumed) == (10, True)


def test_only_a_session_parks_and_only_a_parked_one_goes_on(life: Life) -> None:
    with pytest.raises(AssertionError):
        life.park()
    with pytest.raises(AssertionError):
        life.resume([("b", 3)], 2)


@pytest.mark.parametrize("hit", [-1, 16, 99])
def test_impossible_hits_are_refused(life: Life, hit: int) -> None:
    with pytest.raises(AssertionError):
        life.admit(hit)


@pytest.mark.parametrize("accepted", range(4))
def test_only_accepted_drafts_settle(life: Life, accepted: int) -> None:
    """A step of one known token and 3 drafts: the known one, and what was accepted."""
    life.admit(0)
    life.advance(10, 0, 1)
    life.advance(4, 3, accepted + 1)
    assert life.settled == 10 + 1 + accepted


def test_who_verified_drafts_in_its_last_step_has_speculated(life: Life) -> None:
    """An admission forgets it: what a request then starts from was not left by drafts."""
    seen = [life.speculated]
    for start in (0, 11):
        life.admit(start)
        seen.append(life.speculated)
        for count, drafts in ((1, 0), (4, 3), (2, 1)):
            life.advance(count, drafts, 1)
            seen.append(life.speculated)
    assert seen == [False, *(False, False, True, True) * 2]


def test_more_samples_than_drafts_allow_are_refused(life: Life) -> None:
    life.admit(0)
    with pytest.raises(AssertionError):
        life.advance(4, 3, 5)
    with pytest.raises(AssertionError):
        life.advance(2, 3, 1)


@pytest.mark.parametrize("right", range(4))
def test_verification_accepts_up_to_the_first_wrong_draft(life: Life, right: int) -> None:
    life.truth.reach(20)
    drafts = life.truth.tokens[11:14]
    wrong = [*drafts[:right], *(other_token(token) for token in drafts[right:])]
    assert life.sampled_truth(11, wrong) == life.truth.tokens[11 : 11 + right + 1]


def test_a_right_draft_after_a_wrong_one_does_not_count(life: Life) -> None:
    life.truth.reach(20)
    first, second = life.truth.tokens[11:13]
    assert life.sampled_truth(11, [other_token(first), second]) == [first]
    assert life.sampled_truth(11, []) == [first]


def test_an_answer_ends_with_the_first_stop_token() -> None:
    """The stop token is given by its place; an earlier token that equals it ends the answer, too."""
    answer = Truth([("a", 10)])
    answer.reach(30)
    tokens = answer.tokens[10:30]
    assert len(set(tokens)) < len(tokens), "no token comes twice, so nothing is shown"
    for place, token in enumerate(tokens, 1):
        life = Life("r0", [("a", 10)], 20, stop_at=place)
        assert (life.stops, life.answer_length) == ((token,), tokens.index(token) + 1)
        assert (life.total_length, life.foreseen_length) == (10 + life.answer_length, 30)


@pytest.mark.parametrize("before", [1, 3, 9])
def test_an_answer_ends_with_all_tokens_of_its_stop_string(before: int) -> None:
    """The last token alone does not end it; a string that begins before the answer has those tokens that there are."""
    answer = Truth([("a", 10)])
    answer.reach(30)
    tokens = answer.tokens[10:30]
    second = 11
    assert tokens.index(tokens[second - 1]) < second - 1, "the last token comes once, so nothing is shown"
    assert Life("r0", [("a", 10)], 20, stop_at=second).answer_length < second
    life = Life("r0", [("a", 10)], 20, stop_at=second, string_before=before)
    assert (life.stops, life.answer_length) == ((tokens[second - 1],), second)
    assert Life("r0", [("a", 10)], 20, stop_at=1, string_before=before).answer_length == 1


@pytest.mark.parametrize(("stop_at", "least"), [(0, 3), (2, 3), (3, 3), (5, 3), (5, 1), (9, 8)])
def test_no_stop_token_comes_before_the_least_number_of_tokens(stop_at: int, least: int) -> None:
    """The model's next choice stands where a stop token would; the answer goes on from that."""
    free = Truth([("a", 10)])
    free.reach(30)
    life = Life("r0", [("a", 10)], 20, stop_at=stop_at, min_tokens=least)
    life.truth.reach(30)
    answer, early = life.truth.tokens[10:30], min(place for place in (stop_at, least) if place)
    assert free.tokens[9 + early] in life.stops
    assert not set(life.stops) & set(answer[:least])
    assert answer[: early - 1] == free.tokens[10 : 9 + early]
    assert answer[early - 1] == other_token(free.tokens[9 + early])
    assert life.truth.holds_back(9 + early) and not life.truth.holds_back(10 + least)
    ends = [place for place, token in enumerate(answer, 1) if token in life.stops]
    assert life.answer_length == min(ends, default=20) <= (stop_at if stop_at > least else 20)
    assert life.truth.stop_tokens(stop_at, least) == life.stops, "asked again, it says the same"


def test_the_end_of_the_context_wins_over_the_least_number_of_tokens() -> None:
    """A request asks for more tokens than its context holds: what ends it is `max_new_tokens`."""
    asked = Arrive("r0", (("a", 10),), 6, stop_at=2, min_tokens=9)
    life = Life("r0", asked.prompt, 6, stop_at=2, min_tokens=least_tokens(asked))
    life.truth.reach(16)
    assert (life.answer_length, least_tokens(asked)) == (6, 6)
    assert not set(life.stops) & set(life.truth.tokens[10:16])


@pytest.mark.parametrize(("document", "stop_at", "least"), [("c", 15, 16), ("a", 3, 8), ("b", 1, 4), ("a", 8, 5)])
def test_a_grammar_that_is_complete_allows_a_stop_token_before_the_least_number_of_tokens(
    document: str, stop_at: int, least: int
) -> None:
    """And nowhere else. In the answer to c a stop token that was withheld led to another token at place 15: it goes on,
    and its last token was expected to be a stop token, which vLLM rightly withheld (S6, a false alarm)."""
    life = Life("r0", [(document, 1)], 20, stop_at=stop_at, min_tokens=least, structured=1)
    life.truth.reach(30)
    answer = life.truth.tokens[1:]
    assert not set(life.stops) & {*answer[: stop_at - 1], *answer[stop_at:least]}
    assert life.answer_length == stop_at or answer[stop_at - 1] not in life.stops


@pytest.mark.parametrize("place", [0, 7])
def test_an_answer_without_its_stop_token_ends_at_its_most_tokens(place: int) -> None:
    assert Life("r0", [("a", 10)], 6, stop_at=place).answer_length == 6


def test_a_stop_token_is_that_of_one_turn() -> None:
    life = Life("r0", [("a", 10)], 6, session=True, stop_at=2)
    life.admit(0)
    life.delivered = life.answer_length
    assert life.delivered == 2
    life.park()
    life.resume([("b", 3)], 5)
    assert (life.known, life.total_length) == (15, 20)
    life.delivered = 5
    life.park()
    life.resume([("b", 3)], 5, dropped=1, stop_at=1)
    assert (life.known, life.answer_length, life.total_length) == (22, 1, 23)


def test_a_copy_of_a_row_has_its_stop_token() -> None:
    """A copy of rank 1 has another last token, so that another answer follows; the stop token is the source's."""
    source, copied = Life("r0", [("a", 10)], 6, stop_at=3), Life("r0.1", (), 0)
    source.delivered = 1
    copied.copy_of(source, 1)
    assert copied.stops == source.stops
    assert copied.answer_length == copied.truth.answer_length(6, source.stops)


def test_what_a_request_samples_whose_grammar_does_not_compile_counts_for_nothing() -> None:
    """It is computed on another token, and an engine may still hold back its stop tokens there."""
    failing, plain = (
        Life("r0", [("a", 8)], 8, stop_at=4, grammar_fails=fails, min_tokens=2) for fails in (True, False)
    )
    failing.compute_instead((0,))
    assert failing.ends_before(1)
    assert not plain.ends_before(9)


def test_a_prompt_with_log_probabilities_is_computed_until_the_answer_begins() -> None:
    """A preemption before that starts it from nothing again; later its log-probabilities are known."""
    life = Life("r0", [("a", 10)], 6, prompt_logprobs=True)
    life.admit(0)
    assert life.needs_its_prompt
    life.delivered = 1
    assert not life.needs_its_prompt
    assert not Life("r1", [("a", 10)], 6).needs_its_prompt


def test_a_copy_goes_on_behind_the_stop_token_that_it_begins_with() -> None:
    """The newest token of a copy is another one than that of its source: by chance its stop token."""
    source, copied = Life("r0", [("a", 10)], 6), Life("r0.1", (), 0)
    source.delivered = 2
    newest = choice(source.truth.stop_tokens(2)[0], 1)
    source.stops = (newest,)
    copied.copy_of(source, 1)
    assert copied.truth.tokens[11] == newest
    assert (copied.stops, copied.answer_length) == ((), 6)


def test_a_turn_has_its_own_grammar() -> None:
    life = Life("r0", [("a", 10)], 6, session=True, structured=2)
    life.delivered = 6
    life.park()
    life.resume([("b", 3)], 5)
    assert life.structured == 0
    life.delivered = 5
    life.park()
    life.resume([("b", 3)], 5, structured=3)
    assert life.structured == 3


def test_other_tokens_take_the_place_of_a_prompt_only_if_its_client_gets_nothing() -> None:
    """An engine may end a request by the prefill of one token. Its adapter stays."""
    aborted = Life("r0", [("adapter.b", 10)], 6, structured=2)
    before = aborted.truth
    aborted.compute_instead((0,))
    assert aborted.truth is before
    aborted.aborted = True
    aborted.compute_instead((0,))
    assert (aborted.truth.tokens, aborted.truth.prompt_length, aborted.truth.key) == ([0], 1, before.key)
    failing = Life("r1", [("a", 10)], 6, grammar_fails=True)
    failing.compute_instead((0,))
    assert failing.truth.tokens == [0]


def test_stop_tokens_are_held_back_behind_other_tokens_too() -> None:
    """An engine that computes one token instead of the prompt still holds them back, as long as the answer is short."""
    failing = Life("r0", [("c", 10)], 2, grammar_fails=True, min_tokens=1)
    failing.compute_instead((0,))
    failing.truth.reach(3)
    plain = Truth((((0,), 1),))
    plain.reach(2)
    assert plain.tokens[1] in failing.truth.withheld
    assert failing.truth.tokens[1] == other_token(plain.tokens[1])
    assert failing.truth.free_from == 2
