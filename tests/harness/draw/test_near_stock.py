"""Configurations near the stock server: half of all on a target with a server, and the others as before."""

from dataclasses import fields, replace

import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.near_stock import (
    NEAR,
    as_reached,
    at_default,
    departs,
    is_near,
    may_be_near,
    with_unreached,
    without_defaults,
)
from hybridfuzz.harness.draw.overrides import apply_overrides
from hybridfuzz.harness.draw.workload import with_ratios
from hybridfuzz.harness.judge.state_catalogue import required_states
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.trace import Config
from hybridfuzz.targets.hybrid.factory import make_factory
from hybridfuzz.targets.sglang.factory import SglangFactory
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.release import Release

OLD_WAYS = {"state_per_seat": False, "aligns_tables": False}
VLLM = VllmFactory(
    "vllm", replace(Release(), **{one.name: True for one in fields(Release) if one.default is False} | OLD_WAYS)
)
STATE = "step within two settings of the stock server"


def configs(factory: TargetFactory, count: int = 120, **overrides: object) -> list[Config]:
    return [draw_trace(factory.capabilities, 5, index, overrides, factory.supports).config for index in range(count)]


@pytest.mark.parametrize("factory", [VLLM, SglangFactory("sglang")])
def test_half_of_the_configurations_are_near(factory: TargetFactory) -> None:
    drawn = configs(factory)
    near = [config for config in drawn if is_near(config, factory.capabilities)]
    assert len(drawn) * 0.45 <= len(near) <= len(drawn) * 0.9
    assert {config.num_speculative_tokens > 0 for config in near} == {False, True}
    counts = [sum(departs(one, config) for one in factory.capabilities.stock or ()) for config in near]
    assert set(counts) == set(range(NEAR + 1))


def test_what_is_no_setting_is_drawn_as_ever() -> None:
    near = [config for config in configs(VLLM) if is_near(config, VLLM.capabilities)]
    for option in ("mixer", "runner", "attention"):
        assert {config.options[option] for config in near} >= set(VLLM.capabilities.options[option])
    assert len({config.num_blocks for config in near}) > 10


def test_overrides_win() -> None:
    for config in configs(VLLM, 20, mamba_cache_mode="none", enable_prefix_caching=False, policy="priority"):
        assert (config.mamba_cache_mode, config.policy) == ("none", "priority")


def test_a_target_without_a_server_draws_the_same_whatever_the_ratio() -> None:
    factory = make_factory()
    drawn = [
        [
            draw_trace(factory.capabilities, 5, index, {}, factory.supports, workload=with_ratios({"near_stock": one}))
            for index in range(5)
        ]
        for one in ("0", "100")
    ]
    assert drawn[0] == drawn[1]


def test_the_state_is_required_where_it_can_be_reached() -> None:
    able = VLLM.capabilities
    assert STATE in required_states(able, {"policy": "priority", "async_depth": "0"})
    apart = {"policy": "priority", "async_depth": "0", "retention": "dense"}
    assert STATE not in required_states(able, apart) and not may_be_near(apart, able)
    assert STATE not in required_states(structs.replace(able, has_server=False), {})


def test_steps_at_each_default_are_counted_apart_from_states() -> None:
    stock = apply_all(Config(2, ()))
    settings = {one.name for one in VLLM.capabilities.stock or () if one.stock}
    assert set(at_default(stock, VLLM.capabilities)) == settings
    changed = structs.replace(stock, policy="priority")
    assert settings - set(at_default(changed, VLLM.capabilities)) == {"--scheduling-policy priority"}
    assert at_default(stock, make_factory().capabilities) == ()
    reached = {"prefix hit": 3, **as_reached({"--enforce-eager": 40})}
    assert without_defaults(reached) == ({"prefix hit": 3}, {"--enforce-eager": 40})


def test_a_default_that_never_ran_is_in_the_table() -> None:
    settings = {one.name for one in VLLM.capabilities.stock or () if one.stock}
    counted = with_unreached({"--enforce-eager": 40}, VLLM.capabilities)
    assert counted == {**dict.fromkeys(settings, 0), "--enforce-eager": 40}
    summary = Summary("vllm", "", 1, {}, None, 2, 80, 1.0, (), {}, {}, (), (), defaults=counted)
    shares = summary.default_shares
    assert shares["--scheduling-policy priority"] == 0
    assert list(shares)[-1] == "--enforce-eager"
    assert with_unreached({}, make_factory().capabilities) == {}
    assert structs.replace(summary, steps=0).default_shares == {}


def apply_all(config: Config) -> Config:
    """Return the stock server's configuration, as far as its settings say."""
    for setting in VLLM.capabilities.stock or ():
        config = apply_overrides(config, setting.stock)
    return config
