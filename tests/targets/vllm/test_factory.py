"""The vLLM target's capabilities and refusals, without vLLM."""

from importlib.util import find_spec
from typing import Any

import msgspec
import pytest

from hybridfuzz.harness.judge.state_catalogue import required_states
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.factory import VllmFactory, make_factory
from hybridfuzz.targets.vllm.release import Release

CONFIG = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options={"runner": "v2"})
_SPEC = find_spec("vllm")
BUDGET = frozenset({"max_num_batched_tokens"})
HAS_VLLM = _SPEC is not None and _SPEC.origin is not None  # this very folder passes for a namespace package


def config(runner: str, **changes: object) -> Config:
    return msgspec.structs.replace(CONFIG, options={"runner": runner}, **changes)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (config("v2", async_depth=1, num_speculative_tokens=2), ""),
        (config("v1", async_depth=1), ""),
        (config("v1", async_depth=1, num_speculative_tokens=2), ""),
        (config("v1", num_speculative_tokens=2, eagle_block_drop=True), "drafter"),
        (config("v2", num_speculative_tokens=4, groups=(Group("mamba", 4), Group("attention", 4))), "lower num_spec"),
    ],
)
def test_combinations_that_no_engine_offers_are_refused_with_a_reason(wanted: Config, reason: str) -> None:
    answer = VllmFactory("vllm", Release()).supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


@pytest.mark.parametrize(
    ("release", "wanted", "reason"),
    [
        (
            {"limits_of_a_block": frozenset({"max_num_batched_tokens"})},
            {"max_num_batched_tokens": 7},
            "at least a block",
        ),
        ({"limits_of_a_block": frozenset({"max_num_batched_tokens"})}, {"max_num_batched_tokens": 8}, ""),
        ({"limits_of_a_block": frozenset({"long_prefill_token_threshold"})}, {}, ""),
        ({"plain_mixers": frozenset({"mamba1", "mamba2"})}, {"num_speculative_tokens": 1}, "does not speculate"),
        ({}, {"num_speculative_tokens": 1}, ""),
        (
            {"modes": ("none", "all"), "speculative_modes": ("none", "all")},
            {"mamba_cache_mode": "all", "num_speculative_tokens": 1},
            "V2 runner does not pass",
        ),
        ({"v2_drafts_ahead": False}, {"async_depth": 1, "num_speculative_tokens": 1}, "ahead of drafts"),
        ({"v2_drafts_ahead": False}, {"async_depth": 1, "num_speculative_tokens": 1, "eagle_block_drop": True}, ""),
        ({"modes": ("none", "all"), "aligns_tables": True}, {"mamba_cache_mode": "all"}, "128 tokens"),
        ({"modes": ("none", "all")}, {"mamba_cache_mode": "all"}, ""),
        ({}, {"num_speculative_tokens": 1, "eagle_block_drop": True, "options": {"runner": "v1"}}, "drafter"),
        (
            {"lookahead_hashes": True},
            {"num_speculative_tokens": 1, "eagle_block_drop": True, "options": {"runner": "v1"}},
            "",
        ),
        ({"state_per_seat": True}, {"max_num_seqs": 41}, "a block for each request"),
        ({"state_per_seat": True}, {"max_num_seqs": 40}, ""),
    ],
)
def test_what_a_release_refuses_is_refused(release: dict[str, Any], wanted: dict[str, Any], reason: str) -> None:
    options = {"runner": "v2", "mixer": "mamba2", "graphs": "decode"}
    answer = VllmFactory("vllm", Release(**release)).supports(
        msgspec.structs.replace(CONFIG, **{"options": options, **wanted})
    )
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_capabilities_name_only_groups_that_vllm_forms() -> None:
    for mamba, attention in VllmFactory("vllm", Release()).capabilities.group_counts:
        assert min(mamba, attention) == 1


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_opening_without_vllm_says_what_to_do() -> None:
    with pytest.raises(TargetError, match="vllm@0"):
        make_factory("vllm").open(CONFIG)


LOCAL = Release(local_groups=True, partial_hits=True, draft_groups=True)
DRAFT = Group("attention", 8, draft=True)
FULL = Group("attention", 8)


def local_config(*extra: Group, states: int = 8, **changes: Any) -> Config:
    """Return a configuration with groups beside one of states and one of full attention; words are options."""
    fields = {name: changes.pop(name) for name in ("num_speculative_tokens", "num_blocks") if name in changes}
    groups = (Group("mamba", states), FULL, *extra)
    return Config(**{"num_blocks": 60, **fields}, groups=groups, options={"runner": "v2", **changes})


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (local_config(Group("attention", 8, window=5)), ""),
        (local_config(Group("attention", 16, window=5)), ""),
        (local_config(Group("attention", 4, window=5)), "or a multiple"),
        (
            local_config(Group("attention", 16, window=5), Group("attention", 24, window=5)),
            "the largest attention block must be a multiple",
        ),
        (local_config(Group("attention", 8, window=5), num_blocks=29), "one more block"),
        (local_config(Group("attention", 8, chunk=16)), ""),
        (local_config(Group("attention", 8, chunk=16), graphs="decode"), "no graphs"),
        (local_config(Group("attention", 8, chunk=16), num_speculative_tokens=2), "EAGLE"),
        (local_config(Group("attention", 8, chunk=16), num_speculative_tokens=2, runner="v1"), ""),
        (local_config(Group("attention", 16, chunk=16)), "unequal"),
        (local_config(Group("attention", 8, window=5), connector="store"), ""),
        (local_config(states=4), ""),
        (local_config(states=4, connector="transfer"), ""),
        (local_config(DRAFT, num_speculative_tokens=2), ""),
        (local_config(DRAFT), "if there are drafts"),
        (local_config(DRAFT, num_speculative_tokens=2, connector="store"), ""),
        (local_config(DRAFT, num_speculative_tokens=2, runner="v1"), "the V2 runner"),
        (local_config(DRAFT, num_speculative_tokens=2, graphs="decode"), "graphs"),
        (local_config(DRAFT, DRAFT, num_speculative_tokens=2), "one drafter"),
        (local_config(Group("attention", 16, draft=True), num_speculative_tokens=2), ""),
        (local_config(Group("mamba", 8), DRAFT, num_speculative_tokens=2), "into a group of the model's"),
        (local_config(Group("mamba", 8), Group("attention", 16, draft=True), num_speculative_tokens=2), ""),
        (local_config(prefix_match_unit="2"), ""),
        (local_config(prefix_match_unit="2", connector="store"), ""),
        (local_config(prefix_match_unit="2", mixer="mamba2"), "whose window it must hold"),
        (local_config(prefix_match_unit="4", mixer="mamba2"), ""),
        (local_config(Group("attention", 12, window=5), states=4, prefix_match_unit="8"), "prefix_match_unit"),
        (local_config(prefix_match_unit="2", num_blocks=17), "one more block for each group"),
    ],
)
def test_local_groups_and_unequal_blocks_are_those_that_the_planner_makes(wanted: Config, reason: str) -> None:
    answer = VllmFactory("vllm", LOCAL).supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_a_release_without_local_groups_or_unequal_blocks_refuses_and_draws_none() -> None:
    factory = VllmFactory("vllm", Release())
    assert "no groups of local attention" in factory.supports(local_config(Group("attention", 8, window=5)))
    assert "blocks of one size" in factory.supports(local_config(states=4))
    capabilities = factory.capabilities
    assert "no group of its own" in factory.supports(local_config(DRAFT, num_speculative_tokens=2))
    assert (capabilities.windows, capabilities.attention_chunks, capabilities.draft_block_sizes) == ((), (), ())
    assert "prefix_match_unit" not in capabilities.options
    assert "partial-hits" not in capabilities.features


@pytest.mark.parametrize(
    ("overrides", "lost"),
    [
        ({}, set()),
        ({"runner": "v2"}, set()),
        ({"runner": "v1"}, {"proposals written by the drafter", "dummy run with a drafter present"}),
        (
            {"graphs": "decode"},
            {
                "proposals written by the drafter",
                "dummy run with a drafter present",
                "blocks of an earlier attention chunk freed",
                "hit behind an attention chunk",
            },
        ),
    ],
)
def test_a_campaign_with_a_fixed_option_need_not_reach_what_it_rules_out(
    overrides: dict[str, object], lost: set[str]
) -> None:
    """100,000 clean steps with runner=v1 were called vacuous, since only V2 drives a drafter's group."""
    capabilities = VllmFactory("vllm", Release(draft_groups=True, local_groups=True)).capabilities
    assert set(required_states(capabilities)) - set(required_states(capabilities, overrides)) == lost
