"""The table of what SGLang's kits cannot do, without SGLang."""

from typing import get_args

from hybridfuzz.targets.base.registry import kit_limits
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.sglang.kit_limits import CRASH, SHOWN, Case, Kit, limits, options_of, refusal, shown
from hybridfuzz.targets.sglang.repro import ENDS

CONFIG = Config(num_blocks=60, groups=(Group("mamba", 4), Group("attention", 1)), mamba_cache_mode="slots")


def test_each_kit_has_rows_and_no_reason_is_left_with_a_placeholder() -> None:
    found = limits()
    assert {limit.kit for limit in found} == set(get_args(Kit))
    assert not [limit for limit in found if "{" in limit.reason or not limit.feature]
    assert "this SGLang has no tree core TREE_CORE" in {limit.reason for limit in found}
    assert list(kit_limits("sglang:sessions@0.5.23")) == found


def test_the_first_row_that_applies_gives_the_reason() -> None:
    able = Case(CONFIG, options_of(CONFIG), "", ("python",), ("no_buffer",), 1, 3)
    assert refusal("shadow", able) == ""
    assert refusal("shadow", able._replace(cores=("legacy",))) == ""
    config = Config(60, CONFIG.groups, "slots", options={"tree_core": "rust"})
    asked = able._replace(config=config, options=options_of(config))
    assert refusal("shadow", asked) == "this SGLang has no tree core rust (its compiled module is missing)"
    assert refusal("shadow", asked._replace(core="python")) == "", "the variant's core replaces the trace's"


def test_a_failure_is_shown_by_its_field_or_for_every_field_of_its_oracle() -> None:
    assert {*ENDS, CRASH} == set(SHOWN.values())
    assert shown(Failure("S2", "anything", "", (), 0)) == "tokens"
    assert shown(Failure("M8", "stall", "", (), 0)) == "hang"
    assert shown(Failure("M8", "publication", "", (), 0)) == ""
