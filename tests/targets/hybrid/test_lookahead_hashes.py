"""Lookahead hashes of the embedded target: what is hit, when it is published, and which mistakes are found."""

from typing import Any

import pytest
from support import arrive, make_trace, steps, watch

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Planned
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Group
from hybridfuzz.targets.hybrid.factory import make_factory

EAGLE: dict[str, Any] = {"num_speculative_tokens": 1, "eagle_block_drop": True}
LOOKAHEAD: dict[str, Any] = {**EAGLE, "options": {"hashing": "lookahead"}}


def hits(*events: AnyEvent, **config: Any) -> list[int]:
    watched = watch(make_trace(*events, **config))
    assert watched.outcome.violation is None, watched.outcome.violation.message
    return [row.hit for plan in watched.of(Planned) for row in plan.rows if row.admitted]


def prompt(name: str, *path: tuple[str, int]) -> Arrive:
    return Arrive(name, path, 4)


def test_nothing_is_left_out_where_the_token_behind_agrees() -> None:
    again = arrive("r0", 20), *steps(2), arrive("r1", 20), *steps(2)
    assert hits(*again, **EAGLE) == [0, 0], "there is no state one block earlier"
    assert hits(*again, **LOOKAHEAD) == [0, 16]


def test_a_block_with_another_token_behind_it_is_not_hit() -> None:
    fork = prompt("r0", ("a", 16), ("b", 4)), *steps(2), prompt("r1", ("a", 16), ("c", 4)), *steps(2)
    assert hits(*fork, **LOOKAHEAD) == [0, 0]


def test_a_prompt_that_ends_with_a_block_is_published_once_its_answer_begins() -> None:
    """The state of a prompt of 16 tokens has no key before its 17th token is sampled; the next step publishes it."""
    for behind, hit in (("~", 16), ("b", 0)):
        longer = prompt("r0", ("a", 16)), *steps(3), prompt("r1", ("a", 16), (behind, 4)), *steps(2)
        assert hits(*longer, **LOOKAHEAD) == [0, hit]


def test_without_eagle_or_a_prefix_cache_the_option_has_no_effect() -> None:
    again = arrive("r0", 20), *steps(2), arrive("r1", 20), *steps(2)
    assert hits(*again, options=LOOKAHEAD["options"]) == [0, 16]
    assert hits(*again, **LOOKAHEAD, mamba_cache_mode="none", enable_prefix_caching=False) == [0, 0]


@pytest.mark.parametrize("size", [4, 8])
def test_hits_end_inside_blocks_beside_lookahead_hashes(size: int) -> None:
    """With EAGLE's drop they do not on this target; a key inside a block names the token behind it, too."""
    options = {"hashing": "lookahead", "prefix_match_unit": "2"}
    groups = Group("mamba", 8), Group("attention", size)
    fork = arrive("r0", 13, new=9), *steps(3), arrive("r1", 13), *steps(4)
    assert hits(*fork, **EAGLE, options=options, groups=groups) == [0, 12]


@pytest.mark.parametrize(
    ("slug", "events", "signature"),
    [
        ("token-behind-forgotten", (arrive("r0", 10), *steps(1)), "M2-step-attention-key"),
        ("named-by-a-placeholder", (arrive("r0", 8), *steps(1)), "M2-step-attention-key"),
    ],
)
def test_mistakes_with_the_token_behind_are_found(slug: str, events: tuple[AnyEvent, ...], signature: str) -> None:
    trace = make_trace(*events, **LOOKAHEAD)
    violation = run_trace(make_factory(slug), trace).violation
    assert violation is not None
    assert violation.signature == signature
    assert run_trace(make_factory(slug), make_trace(*events, **EAGLE)).violation is None
