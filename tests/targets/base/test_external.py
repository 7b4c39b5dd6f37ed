"""Content outside of a pool: what another engine stores, and what a load must bring."""

from dataclasses import replace

import pytest

from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.external import computed_elsewhere, keys_to_load, longest_load, whole_blocks
from hybridfuzz.targets.base.observe import SlotContent, StateContent

LAYOUT = Layout((Group("mamba", 16), Group("attention", 8), Group("attention", 8, window=10)), 20, 4, "align", True)
TRUTH = Truth((("a", 60),))
STORED = dict(computed_elsewhere(LAYOUT, TRUTH.tokens[:41], True, whole_blocks(LAYOUT)))


def test_another_engine_stores_attention_blocks_and_the_last_state() -> None:
    assert [key.depth for key in STORED if key.group == 1] == [8, 16, 24, 32, 40]
    assert [key.depth for key in STORED if key.group == 0] == [32]
    assert STORED[Key(0, 32, TRUTH.tag(32))] == StateContent(TRUTH.tag(32), TRUTH.window(32, 4))
    assert STORED[Key(1, 24, TRUTH.tag(24))] == SlotContent(TRUTH.slots(16, 24))
    assert not [key for key, _ in computed_elsewhere(LAYOUT, TRUTH.tokens[:41], False, 16) if key.group == 0]


@pytest.mark.parametrize(
    ("local", "tokens", "found"), [(0, 41, 32), (0, 33, 32), (0, 32, 0), (16, 41, 16), (32, 41, 0), (0, 17, 0)]
)
def test_a_load_ends_at_a_state_and_leaves_a_token(local: int, tokens: int, found: int) -> None:
    assert longest_load(LAYOUT, STORED, TRUTH.tags, local, tokens) == found


def test_nothing_is_stored_for_no_tokens() -> None:
    """As of a session whose first turn was aborted. Where keys name the token behind their block the last boundary
    lay in front of the first token."""
    assert list(computed_elsewhere(replace(LAYOUT, lookahead=1), (), True, 8)) == []


def test_a_load_brings_what_the_hit_lacks() -> None:
    """Of a sliding window only the blocks that the next token attends to; of a state the last one."""
    depths = [[key.depth for key in keys_to_load(LAYOUT, index, TRUTH.tags, 16, 32)] for index in range(3)]
    assert depths == [[32], [24, 32], [24, 32]]
    assert [key.depth for key in keys_to_load(LAYOUT, 2, TRUTH.tags, 0, 32)] == [24, 32]


def test_a_load_that_completes_hits_brings_what_a_window_lacks_of_the_hit() -> None:
    """After 40 tokens the window of 10 begins at position 31, inside a hit of 32 tokens."""
    completing = replace(LAYOUT, loads_complete_hits=True)
    found = [[key.depth for key in keys_to_load(layout, 2, TRUTH.tags, 32, 40)] for layout in (LAYOUT, completing)]
    assert found == [[40], [32, 40]]
    assert [key.depth for key in keys_to_load(completing, 1, TRUTH.tags, 32, 40)] == [40]


def test_content_of_another_prefix_is_not_loaded() -> None:
    other = Truth((("b", 60),))
    assert longest_load(LAYOUT, STORED, other.tags, 0, 41) == 0


def test_a_drafters_block_is_stored_with_the_token_after_it() -> None:
    """The last slot of a drafter's block depends on that token, so the last whole block of 24 tokens is left out."""
    layout = Layout((Group("mamba", 8), Group("attention", 8, draft=True, shift=1)), 20, 4, "align", True)
    stored = dict(computed_elsewhere(layout, TRUTH.tokens[:24], True, 8))
    assert [key.depth for key in stored if key.group == 1] == [8, 16]
    assert stored[Key(1, 16, TRUTH.tag(16))] == SlotContent(TRUTH.slots(9, 17))
