"""The table of what vLLM's kits cannot do: its rows, and that everything is in it."""

from typing import get_args

import pytest

from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import kit_limits
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Step, Trace
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.kit_limits import SHOWN, Case, Kit, limits, refusal
from hybridfuzz.targets.vllm.options import options_of
from hybridfuzz.targets.vllm.release import Release
from hybridfuzz.targets.vllm.repro import write_scripts


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
    asked = Config(
        num_blocks=40,
        groups=(Group("mamba", 16), Group("attention", 16)),
        options={"inputs": "images", "mixer": "mamba2"},
    )
    assert refusal("real", Case(asked, options_of(asked))) == "images are driven with Qwen3.5: mixer=gdn"
    assert VllmFactory("vllm", Release()).supports(config(runner="v3")) == "runner=v3 is not driven on this release"


def test_whatever_the_table_shows_has_a_script_and_nothing_else() -> None:
    trace = Trace(config(), (Arrive("r0", (("a", 3),), 2), Step()))
    for oracle, field in (*SHOWN, ("M7", "budget"), ("M8", "publish")):
        failure = Failure(oracle, field or "x", "broken", trace.events, 1, "r0", 0, 3, 2, "r0")
        if SHOWN.get((oracle, field)):
            assert write_scripts("", trace, failure)
        else:
            with pytest.raises(TargetError, match=f"no stand-alone script can show {oracle}"):
                write_scripts("", trace, failure)
