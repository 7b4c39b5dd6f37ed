"""Tags name prefixes: any change of tokens or order changes the tag; what follows is known ahead."""

import random

import pytest

from hybridfuzz.reference.tokens import (
    CONTINUATION,
    EMPTY,
    NO_INPUT,
    PLACEHOLDER,
    SHARED,
    VOCABULARY,
    Image,
    Truth,
    chain,
    document_token,
    draft_tokens,
    mix,
    next_token,
    other_token,
    window_of,
)


def test_mix_is_stable() -> None:
    """Tags are stored in corpus files' expectations: their values never change."""
    assert chain(EMPTY, (5, 6)) == (mix(EMPTY, 5), mix(mix(EMPTY, 5), 6))


def test_mix_tells_order_and_tokens_apart() -> None:
    tags = [mix(mix(EMPTY, first), second) for first in range(60) for second in range(60)]
    assert len(set(tags)) == len(tags)
    assert not {EMPTY, NO_INPUT} & set(tags)


def test_chain_equals_repeated_mix_and_may_be_split() -> None:
    tokens = tuple(document_token("a", index) for index in range(20))
    whole = chain(EMPTY, tokens)
    for cut in range(len(tokens) + 1):
        first = chain(EMPTY, tokens[:cut])
        assert first + chain(first[-1] if first else EMPTY, tokens[cut:]) == whole


def test_documents_are_fixed_and_differ() -> None:
    first, again = Truth([("a", 30)]), Truth([("a", 30)])
    assert first.tokens == again.tokens
    assert first.tokens != Truth([("b", 30)]).tokens
    assert first.prompt_length == 30


def test_tokens_are_the_models() -> None:
    """0 and 1 stand for padding and unknown: neither documents nor the model produce them."""
    seen = {document_token(document, index) for document in "abc" for index in range(500)}
    seen |= {next_token(random.Random(seed).getrandbits(63)) for seed in range(500)}
    assert seen <= set(range(2, VOCABULARY))


@pytest.mark.parametrize("token", range(2, VOCABULARY))
def test_other_token_is_another_legal_token(token: int) -> None:
    assert other_token(token) != token
    assert 2 <= other_token(token) < VOCABULARY


def test_equal_paths_share_tags_until_they_part() -> None:
    """The prefix tree: sharing is explicit in the path."""
    short, long, fork = Truth([("a", 10)]), Truth([("a", 20)]), Truth([("a", 10), ("b", 10)])
    assert short.tags == long.tags[:11] == fork.tags[:11]
    assert long.tags[11] != fork.tags[11]


def test_document_position_counts_within_the_document() -> None:
    """The same document in another place is the same tokens with other tags."""
    plain, moved = Truth([("b", 5)]), Truth([("a", 7), ("b", 5)])
    assert moved.tokens[7:] == plain.tokens
    assert not set(moved.tags[8:]) & set(plain.tags[1:])


def test_continuation_is_the_models_own_answer() -> None:
    """A second turn that quotes the first answer has the first request's tags."""
    first = Truth([("a", 12)])
    first.reach(20)
    second = Truth([("a", 12), (CONTINUATION, 8), ("b", 4)])
    assert second.tokens[:20] == first.tokens
    assert second.tags[:21] == first.tags
    assert second.prompt_length == 24


def test_continuation_first_follows_the_empty_prefix() -> None:
    truth = Truth([(CONTINUATION, 3)])
    assert truth.tokens[0] == next_token(EMPTY)


def test_growth_by_piece_equals_growth_at_once() -> None:
    slow, fast = Truth([("a", 3)]), Truth([("a", 3)])
    for length in range(3, 40):
        slow.reach(length)
    fast.reach(39)
    assert slow.tokens == fast.tokens
    assert len(fast.tags) == len(fast.tokens) + 1
    fast.reach(5)
    assert len(fast.tokens) == 39
    assert fast.prompt_length == 3


def test_slots_are_tags_after_each_position() -> None:
    truth = Truth([("a", 10)])
    assert truth.slots(0, 10) == truth.tags[1:11]
    assert truth.slots(4, 6) == [truth.tag(5), truth.tag(6)]
    assert truth.slots(12, 14) == truth.tags[13:15]


@pytest.mark.parametrize("width", [2, 3, 4, 8])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 7, 8, 30])
def test_window_is_the_last_inputs_padded_on_the_left(width: int, depth: int) -> None:
    truth = Truth([("a", 8)])
    window = truth.window(depth, width)
    assert len(window) == width - 1
    padded = [NO_INPUT] * (width - 1) + truth.tags[1 : depth + 1]
    assert list(window) == padded[len(padded) - width + 1 :]
    assert window_of(truth.tags[1 : depth + 1], width) == window


@pytest.mark.parametrize("count", range(5))
def test_drafts_are_right_exactly_as_far_as_asked(count: int) -> None:
    """The engine's own verification then accepts exactly that many."""
    truth = Truth([("a", 9)])
    truth.reach(9 + count + 1)
    for right in range(count + 1):
        drafts = draft_tokens(truth.tag(9), count, right)
        assert len(drafts) == count
        assert drafts[:right] == truth.tokens[9 : 9 + right]
        if right < count:
            assert drafts[right] != truth.tokens[9 + right]


def test_an_image_has_content_that_its_tokens_do_not_show() -> None:
    """Prompts with different images have equal tokens and different tags, from the image on."""
    first, second = (Truth((("a", 3), (f"image.{name}", 9), ("b", 2))) for name in ("x", "y"))
    assert first.tokens[:14] == second.tokens[:14] and first.tokens[3:12] == [PLACEHOLDER] * 9
    assert first.tags[:4] == second.tags[:4]
    assert not set(first.tags[4:15]) & set(second.tags[4:15])
    assert [(image.start, image.stop) for image in first.images] == [(3, 10), (10, 12)]  # of IMAGE_TOKENS at most


@pytest.mark.parametrize("document", ["adapter.x", "salt.x"])
def test_an_adapter_changes_the_content_of_all_tokens(document: str) -> None:
    plain, other = Truth(((SHARED, 4), ("b", 3))), Truth(((document, 4), ("b", 3)))
    assert plain.tokens[:7] == other.tokens[:7]
    assert set(plain.tags[1:8]).isdisjoint(other.tags[1:8])
    other.reach(20)
    assert chain(EMPTY, tuple(other.contents(0, other.tokens))) == tuple(other.tags[1:])
    assert draft_tokens(other.tag(7), 5, 5, other.key) == other.tokens[7:12]


def test_contents_follow_an_engine_that_has_other_tokens() -> None:
    """A token of an image is one only where the engine has the placeholder."""
    truth = Truth((("image.x", 4), ("b", 4)))
    assert chain(truth.tags[2], tuple(truth.contents(2, truth.tokens[2:8]))) == tuple(truth.tags[3:9])
    assert truth.contents(2, [9, PLACEHOLDER, 9])[0] == 9


def test_images_that_differ_share_no_content() -> None:
    """Random traces met two images whose first tokens were the same one of 125, so that a hit seemed too short (M8)."""
    eight, nine = Truth((("image.c", 8),)), Truth((("image.c", 9),))
    assert eight.tags[7] == nine.tags[7] and eight.tags[8] != nine.tags[8]
    first = {Image(0, 1, f"image.c.{index}").contents(0) for index in range(1000)}
    assert len(first) == 1000


def test_a_turn_and_a_branch_keep_images_and_adapters() -> None:
    truth = Truth((("adapter.x", 4), ("image.y", 3), ("~", 2)))
    turn = truth.continued(9, (("image.z", 2),))
    assert turn.tags[:10] == truth.tags[:10] and len(turn.images) == 2 and turn.key == truth.key
    branch = truth.branched(8, 5)
    assert branch.tags[:9] == truth.tags[:9] and branch.tokens[8] == 5
    assert chain(EMPTY, tuple(branch.contents(0, branch.tokens))) == tuple(branch.tags[1:])


@pytest.mark.parametrize("stop_at", [0, 5])
def test_a_grammar_restricts_an_answer_however_it_is_asked_for(stop_at: int) -> None:
    """A script named the grammar and its end, and was answered as if there were none."""
    asked, restricted, plain = (Truth([("a", 4)]) for _ in range(3))
    asked.stop_tokens(stop_at, has_grammar=True)
    restricted.restrict(stop_at)
    for truth in (asked, restricted, plain):
        truth.reach(16)
    assert restricted.tokens == asked.tokens != plain.tokens
    assert [restricted.is_bound(place) for place in range(16)] == [asked.is_bound(place) for place in range(16)]
