"""The table of what vLLM's kits cannot do: its rows, and that everything is in it."""

from typing import get_args

from hybridfuzz.targets.base.registry import kit_limits
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.kit_limits import SHOWN, Case, Kit, limits, refusal
from hybridfuzz.targets.vllm.options import options_of
from hybridfuzz.targets.vllm.release import Release
from hybridfuzz.targets.vllm.repro import ASSERTIONS


def config(**options: str) -> Config:
    return Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options=options)


def test_each_kit_has_rows_and_no_reason_is_left_with_a_placeholder() -> None:
    found = limits()
    assert {limit.kit for limit in found} == set(get_args(Kit))
    assert not [limit for limit in found if "{" in limit.reason or not limit.feature]
    assert "mixer=MIXER does not speculate in this release" in {limit.reason for limit in found}
    assert list(kit_limits("vllm@0.33.0")) == found
    assert kit_limits("python:my_engine:FACTORY") == ()


def test_a_reason_names_the_value_of_the_trace() -> None:
    plain = config()
    assert (
        refusal("real", Case(plain, options_of(plain)))
        == "its attention kernel takes block sizes that are multiples of 16"
    )
    asked = Config(num_blocks=40, groups=(Group("mamba", 16), Group("attention", 16)), options={"inputs": "images"})
    assert refusal("real", Case(asked, options_of(asked))) == "inputs=images is driven on the shadow layers only"
    assert VllmFactory("vllm", Release()).supports(config(runner="v3")) == "runner=v3 is not driven on this release"


def test_a_script_asserts_exactly_what_the_table_says() -> None:
    assert ASSERTIONS.keys() == SHOWN.keys()
