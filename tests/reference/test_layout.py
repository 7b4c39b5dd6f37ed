"""How many columns and blocks a request needs, by kind of group and cache mode."""

from dataclasses import replace

import pytest

from hybridfuzz.reference.layout import (
    Group,
    Layout,
    cached_columns,
    cdiv,
    first_attended,
    peak_blocks,
    required_columns,
    smallest_pool,
)

ATTENTION, MAMBA = Group("attention", 4), Group("mamba", 16)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (7, 1), (8, 1), (9, 2), (16, 2)])
def test_cdiv(tokens: int, blocks: int) -> None:
    assert cdiv(tokens, 8) == blocks


def test_hit_unit_is_the_least_common_multiple_unless_given() -> None:
    groups = (Group("mamba", 6), Group("attention", 4))
    assert Layout(groups, 9, 4, "align", True).hit_unit == 12
    assert Layout(groups, 9, 4, "align", True, hit_unit=2).hit_unit == 2


def test_a_layout_needs_groups() -> None:
    with pytest.raises(AssertionError):
        Layout((), 9, 4, "align", True)
    with pytest.raises(AssertionError):
        Layout((Group("mamba", 0),), 9, 4, "align", True)


@pytest.mark.parametrize(
    ("group", "mode", "tokens", "speculative", "columns"),
    [
        (ATTENTION, "align", 17, 3, 5),
        (ATTENTION, "none", 16, 0, 4),
        (MAMBA, "none", 90, 0, 1),
        (MAMBA, "none", 90, 3, 4),
        (MAMBA, "align", 16, 0, 1),
        (MAMBA, "align", 17, 0, 2),
        (MAMBA, "align", 17, 3, 5),
        (MAMBA, "all", 17, 3, 5),
        (MAMBA, "all", 1, 4, 5),
        (Group("mamba", 16, slots=3), "slots", 90, 2, 3),
        (ATTENTION, "slots", 17, 3, 5),
    ],
)
def test_required_columns(group: Group, mode: str, tokens: int, speculative: int, columns: int) -> None:
    """Drafts cost attention nothing beyond their tokens, and mamba one scratch column each."""
    assert required_columns(group, mode, tokens, speculative) == columns  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("speculative", [0, 3])
def test_align_holds_a_bounded_number_of_states(ahead: int, speculative: int) -> None:
    """However long the request: the running state, the one before, scratch, and one for each step ahead."""
    long = peak_blocks(MAMBA, "align", 4000, speculative, ahead)
    assert long == 2 + speculative + ahead
    assert peak_blocks(MAMBA, "align", 10, speculative, ahead) == 1 + speculative
    inner = replace(MAMBA, inner_states=True)
    assert peak_blocks(inner, "align", 4000, speculative, ahead) == long + 1
    assert peak_blocks(MAMBA, "all", 4000, speculative, ahead) == 250 + speculative
    assert peak_blocks(ATTENTION, "align", 4000, speculative, ahead) == 1000


def test_smallest_pool_adds_groups_and_the_null_block() -> None:
    groups = (MAMBA, MAMBA, ATTENTION)
    assert smallest_pool(groups, "align", 40, 2, 1) == 1 + 5 + 5 + 10
    assert smallest_pool(groups, "none", 40, 2, 1) == 1 + 3 + 3 + 10
    assert smallest_pool(groups, "slots", 40, 2, 1) == 1 + 10, "states have a pool of their own"


def test_a_hit_fills_columns_with_cached_blocks_except_state_slots() -> None:
    """A state slot is copied out of the cache: the request never holds the cached one."""
    assert cached_columns(ATTENTION, "slots", 12) == 3
    assert cached_columns(MAMBA, "align", 32) == 2
    assert cached_columns(MAMBA, "slots", 32) == 0


@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_longer_requests_never_need_fewer_columns(mode: str) -> None:
    for group in (ATTENTION, MAMBA):
        columns = [required_columns(group, mode, tokens, 2) for tokens in range(1, 80)]  # type: ignore[arg-type]
        assert columns == sorted(columns)


def test_the_drafter_writes_ahead_of_the_model() -> None:
    """One column for each block of the tokens and of the proposals behind them."""
    draft = Group("attention", 4, draft=True)
    assert required_columns(draft, "align", 8, 0) == 2
    assert required_columns(draft, "align", 8, 1) == 3
    assert required_columns(draft, "align", 8, 5) == 4


def test_a_window_reaches_back_to_itself_and_the_tokens_before() -> None:
    """The token at position 20 with a window of 6 attends to 15 .. 20."""
    assert first_attended(Group("attention", 4, window=6), 20) == 15
    assert first_attended(Group("attention", 4, window=6), 5) == 0
    assert first_attended(Group("attention", 4), 20) == 0


def test_a_window_holds_what_it_has_not_passed() -> None:
    group = Group("attention", 4, window=6)
    assert peak_blocks(group, "align", 24, 0, 0) == 6
    assert peak_blocks(group, "align", 24, 0, 0, settled=20) == 6 - 15 // 4
    late = replace(group, lag=6)
    assert [peak_blocks(late, "align", 24, 0, 0, settled) for settled in (8, 20)] == [6, 6 - 9 // 4]


def test_eagle_gives_up_blocks_of_the_drafter_or_of_all_full_attention() -> None:
    window, draft = Group("attention", 4, window=6), Group("attention", 4, draft=True)
    plain = Layout((MAMBA, ATTENTION, window), 9, 4, "align", True)
    assert plain.eagle_groups == frozenset()
    assert Layout(plain.groups, 9, 4, "align", True, eagle_drop=True).eagle_groups == {1}
    assert Layout((*plain.groups, draft), 9, 4, "align", True, eagle_drop=True).eagle_groups == {3}


def test_a_chunk_is_what_its_tokens_attend_to() -> None:
    """Attention with chunks of 8 reaches back to the last multiple of 8; earlier columns may be given back."""
    group = Group("attention", 4, chunk=8)
    assert [first_attended(group, computed) for computed in (0, 7, 8, 15, 16)] == [0, 0, 8, 8, 16]
    assert [peak_blocks(group, "align", 20, 0, 0, settled) for settled in (0, 7, 8, 15, 16)] == [5, 5, 3, 3, 1]


def test_an_engine_may_extend_the_eagle_drop_to_other_groups() -> None:
    groups = (Group("mamba", 4), Group("attention", 4), Group("attention", 4, window=6))
    assert Layout(groups, 20, 4, "align", True, eagle_drop=True).eagle_groups == {1}
    assert Layout(groups, 20, 4, "align", True, eagle_drop=True, eagle=frozenset({1, 2})).eagle_groups == {1, 2}
    assert not Layout(groups, 20, 4, "align", True, eagle=frozenset({1, 2})).eagle_groups
