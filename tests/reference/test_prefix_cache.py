"""The hit contract: which lengths are valid, which is the longest, with and without EAGLE."""

import random
from dataclasses import replace
from itertools import chain

import pytest

from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import (
    Key,
    attention_match,
    has_key,
    is_valid_hit,
    key_at,
    keys_given_up,
    keys_needed,
    longest_hit,
    partial_match,
)
from hybridfuzz.reference.tokens import Truth

MAMBA, ATTENTION = Group("mamba", 8), Group("attention", 4)
TAGS = Truth([("a", 64)]).tags


def layout(*groups: Group, eagle: bool = False) -> Layout:
    return Layout(groups, 99, 4, "align", True, eagle_drop=eagle)


BOTH = layout(MAMBA, ATTENTION)


def attention(index: int, *depths: int) -> set[Key]:
    return {Key(index, depth, TAGS[depth]) for depth in depths}


def state(index: int, *depths: int) -> set[Key]:
    return attention(index, *depths)


def test_attention_needs_every_block_mamba_only_the_last_state() -> None:
    assert set(keys_needed(BOTH, 1, TAGS, 12)) == attention(1, 4, 8, 12)
    assert set(keys_needed(BOTH, 0, TAGS, 16)) == state(0, 16)
    assert keys_needed(BOTH, 0, TAGS, 0) == keys_needed(BOTH, 1, TAGS, 0) == []


def test_valid_only_if_every_group_holds_its_part() -> None:
    both = layout(MAMBA, ATTENTION)
    full = state(0, 16) | attention(1, 4, 8, 12, 16)
    assert is_valid_hit(both, full, TAGS, 16)
    assert is_valid_hit(both, set(), TAGS, 0)
    for missing in full:
        assert not is_valid_hit(both, full - {missing}, TAGS, 16)


def test_the_tag_is_part_of_the_key() -> None:
    """The same depth of another prefix is no hit."""
    other = Truth([("b", 64)]).tags
    published = {Key(0, 8, other[8])} | {Key(1, depth, other[depth]) for depth in (4, 8)}
    assert longest_hit(layout(MAMBA, ATTENTION), published, TAGS, 30) == 0
    assert longest_hit(layout(MAMBA, ATTENTION), published, other, 30) == 8


def test_longest_is_limited_by_the_group_that_holds_least() -> None:
    both = layout(MAMBA, ATTENTION)
    published = state(0, 8, 24) | attention(1, 4, 8, 12, 16)
    assert longest_hit(both, published, TAGS, 40) == 8
    assert longest_hit(both, published | attention(1, 20, 24), TAGS, 40) == 24


def test_a_deeper_hit_does_not_need_the_earlier_states() -> None:
    published = state(0, 24) | attention(1, *range(4, 25, 4))
    assert longest_hit(layout(MAMBA, ATTENTION), published, TAGS, 40) == 24


def test_attention_gap_ends_the_match() -> None:
    published = attention(0, 4, 12, 16)
    assert attention_match(layout(ATTENTION), 0, published, TAGS, 20) == 4
    assert longest_hit(layout(ATTENTION), published, TAGS, 20) == 4


@pytest.mark.parametrize(("tokens", "hit"), [(8, 0), (9, 8), (16, 8), (17, 16), (1, 0)])
def test_at_least_one_token_is_left(tokens: int, hit: int) -> None:
    published = state(0, 8, 16) | attention(1, 4, 8, 12, 16)
    assert longest_hit(layout(MAMBA, ATTENTION), published, TAGS, tokens) == hit


def test_hits_lie_on_the_common_grid() -> None:
    """With blocks of 8 and 12 only multiples of 24 fit both."""
    groups = layout(Group("mamba", 8), Group("attention", 12))
    published = state(0, *range(8, 65, 8)) | attention(1, *range(12, 61, 12))
    assert longest_hit(groups, published, TAGS, 48) == 24
    assert longest_hit(groups, published, TAGS, 49) == 48


def test_eagle_gives_up_the_last_matched_attention_block() -> None:
    published = attention(0, 4, 8, 12)
    assert longest_hit(layout(ATTENTION), published, TAGS, 40) == 12
    assert longest_hit(layout(ATTENTION, eagle=True), published, TAGS, 40) == 8
    assert longest_hit(layout(ATTENTION, eagle=True), attention(0, 4), TAGS, 40) == 0


def test_a_block_of_the_drafter_behind_what_others_have_proves_nothing() -> None:
    """With keys inside blocks, the drafter's lookup ends 2 tokens behind the 32 of the other group: of the five blocks
    that it has it finds four. (A hit of 26 tokens on vLLM was taken for too short.)"""
    groups = (MAMBA, Group("attention", 16), Group("attention", 8, draft=True))
    published = state(0, 8, 16, 24, 32) | attention(1, 16, 32) | attention(2, 8, 16, 24, 32, 40)
    units = {"hash_unit": 2, "hit_unit": 2, "eagle_unit": 2}
    inside = Layout(groups, 99, 4, "align", True, eagle_drop=True, eagle=frozenset({2}), **units)  # type: ignore[arg-type]
    assert longest_hit(inside, published, TAGS, 55) == 24
    whole = replace(inside, hash_unit=0, hit_unit=16, eagle_unit=0)
    assert longest_hit(whole, published, TAGS, 55) == 32


def test_each_group_of_the_drafter_gives_up_a_block_of_what_is_left() -> None:
    published = attention(0, 4, 8, 12) | attention(1, 4, 8, 12)
    assert longest_hit(layout(ATTENTION, ATTENTION, eagle=True), published, TAGS, 40) == 4


def test_eagle_drops_only_what_the_lookup_could_have_used() -> None:
    """Of 16 cached tokens a prompt of 9 may use 8: the drop counts from there."""
    published = attention(0, 4, 8, 12, 16)
    assert longest_hit(layout(ATTENTION, eagle=True), published, TAGS, 9) == 4


def test_eagle_then_falls_back_to_a_state_that_exists() -> None:
    published = state(0, 8, 24) | attention(1, *range(4, 25, 4))
    eagle = layout(MAMBA, ATTENTION, eagle=True)
    assert longest_hit(eagle, published, TAGS, 40) == 8
    assert longest_hit(layout(MAMBA, eagle=True), state(0, 8, 24), TAGS, 40) == 24


@pytest.mark.parametrize("seed", range(40))
def test_longest_is_the_largest_valid_one(seed: int) -> None:
    """Against the definition, over random sets of keys."""
    source = random.Random(seed)
    groups = layout(MAMBA, ATTENTION, MAMBA)
    everything = chain(state(0, *range(8, 65, 8)), attention(1, *range(4, 65, 4)), state(2, *range(8, 65, 8)))
    published = {key for key in sorted(everything) if source.random() < 0.85}
    tokens = source.randint(1, 64)
    valid = [length for length in range(0, tokens, 8) if is_valid_hit(groups, published, TAGS, length)]
    assert longest_hit(groups, published, TAGS, tokens) == max(valid)


LOOKAHEAD = replace(BOTH, lookahead=1)


def behind(token: str) -> Truth:
    """Sixteen tokens of document a, then others."""
    return Truth([("a", 16), (token, 14)])


def test_with_lookahead_a_key_names_the_token_behind_its_depth() -> None:
    """An EAGLE head's last slot of a block depends on it."""
    one, other = behind("b"), behind("c")
    assert key_at(BOTH, 1, one.tags, 16) == key_at(BOTH, 1, other.tags, 16)
    ours = key_at(LOOKAHEAD, 1, one.tags, 16)
    assert ours != key_at(LOOKAHEAD, 1, other.tags, 16)
    assert has_key(LOOKAHEAD, ours, one)
    assert not has_key(LOOKAHEAD, ours, other)
    assert key_at(LOOKAHEAD, 1, one.tags, 12) == key_at(LOOKAHEAD, 1, other.tags, 12)


def test_a_key_whose_tokens_are_not_all_there_is_nobodys() -> None:
    assert key_at(LOOKAHEAD, 1, TAGS[:17], 16) == Key(1, 16, -1)
    assert key_at(LOOKAHEAD, 1, TAGS[:18], 16) == Key(1, 16, TAGS[17])


def test_with_lookahead_nothing_is_given_up_and_the_token_behind_must_agree() -> None:
    tags = behind("b").tags
    published = {key_at(LOOKAHEAD, 0, tags, depth) for depth in (8, 16)}
    published |= {key_at(LOOKAHEAD, 1, tags, depth) for depth in (4, 8, 12, 16)}
    assert longest_hit(LOOKAHEAD, published, tags, 20) == 16
    assert longest_hit(LOOKAHEAD, published, behind("c").tags, 20) == 8
    assert longest_hit(LOOKAHEAD, published, tags, 17) == 16
    assert longest_hit(LOOKAHEAD, published, tags, 16) == 8, "the token behind is not known"
    assert longest_hit(replace(LOOKAHEAD, lookahead=3), published, tags, 18) == 0


WINDOW = Group("attention", 4, window=6)


def test_a_window_needs_only_the_blocks_that_the_next_token_attends_to() -> None:
    """Position 16 with a window of 6 attends to 11 .. 16: the blocks that end at 12 and 16."""
    assert set(keys_needed(layout(WINDOW), 0, TAGS, 16)) == attention(0, 12, 16)
    assert set(keys_needed(layout(WINDOW), 0, TAGS, 4)) == attention(0, 4)


def test_a_window_is_not_downward_closed() -> None:
    """A hit of 16 is valid where the shorter ones are not."""
    both = layout(WINDOW)
    published = attention(0, 12, 16)
    assert longest_hit(both, published, TAGS, 40) == 16
    assert longest_hit(both, published, TAGS, 16) == 0


def test_eagle_gives_up_a_block_of_the_drafter_only() -> None:
    draft = Group("attention", 4, draft=True)
    groups = layout(ATTENTION, draft, eagle=True)
    published = attention(0, 4, 8, 12, 16) | attention(1, 4, 8, 12)
    assert longest_hit(groups, published, TAGS, 40) == 8
    assert longest_hit(groups, published | attention(1, 16), TAGS, 40) == 12


def test_what_is_loaded_the_pool_need_not_hold() -> None:
    """A hit of 8 and a load of 8 more: attention below 8 as far as the token after 16 attends to it, and no state."""
    assert keys_needed(BOTH, 0, TAGS, 8, loaded=8) == []
    assert set(keys_needed(layout(ATTENTION), 0, TAGS, 8, loaded=8)) == attention(0, 4, 8)
    assert set(keys_needed(layout(WINDOW), 0, TAGS, 8, loaded=4)) == attention(0, 8)
    assert keys_needed(layout(WINDOW), 0, TAGS, 8, loaded=8) == []


def test_a_block_that_ends_behind_the_hit_is_not_needed() -> None:
    """Lengths inside a block: only the whole blocks below count, whatever is left over."""
    for length, depths in ((3, ()), (4, (4,)), (7, (4,)), (8, (4, 8)), (11, (4, 8))):
        assert set(keys_needed(BOTH, 1, TAGS, length)) == attention(1, *depths)


@pytest.mark.parametrize("num_tokens", range(6, 20))
def test_one_token_is_left_to_compute_inside_a_block_too(num_tokens: int) -> None:
    """On a fine grid the last whole page may end long before the longest hit."""
    fine = Layout((MAMBA, Group("attention", 8)), 99, 4, "align", True, hit_unit=2, hash_unit=2)
    published = state(0, 4, 8, 10, 12, 14) | attention(1, 8)
    longest = longest_hit(fine, published, TAGS, num_tokens)
    assert longest == max(depth for depth in (4, 8, 10, 12, 14) if depth < num_tokens)


def test_a_hit_at_the_end_of_a_chunk_needs_nothing_of_a_chunked_group() -> None:
    group = Group("attention", 4, chunk=8)
    assert keys_needed(layout(MAMBA, group), 1, TAGS, 8) == []
    assert set(keys_needed(layout(MAMBA, group), 1, TAGS, 12)) == attention(1, 12)
    assert set(keys_needed(layout(MAMBA, group), 1, TAGS, 15 + 1)) == set()


def test_a_window_that_eagle_drops_from_needs_the_block_after_the_hit() -> None:
    """The drop takes one block off the match, which in a group with a window need not begin at the first token."""
    groups = (Group("mamba", 4), Group("attention", 4), Group("attention", 4, window=5))
    dropping = Layout(groups, 99, 4, "align", True, eagle_drop=True, eagle=frozenset({1, 2}))
    everything = state(0, 4, 8, 12, 16) | attention(1, 4, 8, 12, 16) | attention(2, 12, 16)
    assert longest_hit(dropping, everything, TAGS, 30) == 12
    assert longest_hit(dropping, everything - attention(2, 16), TAGS, 30) == 0
    assert keys_given_up(dropping, 2, TAGS, 12) == [*attention(2, 16)]
    assert keys_given_up(dropping, 1, TAGS, 12) == []


@pytest.mark.parametrize(("depths", "matched"), [((), 8), ((10,), 10), ((9,), 8), ((10, 11, 12), 10), ((12,), 8)])
def test_a_partial_key_extends_the_match_on_its_grid(depths: tuple[int, ...], matched: int) -> None:
    """The first eight tokens match in whole blocks of four; a full block would have been matched before."""
    assert partial_match(BOTH, 1, attention(1, *depths), TAGS, 8, 2) == matched
