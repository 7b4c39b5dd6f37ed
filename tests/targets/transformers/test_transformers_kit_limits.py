"""The table of what the transformers target and its scripts cannot do, without transformers."""

from typing import get_args

import pytest

from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import kit_limits, write_scripts
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Config, Group, Trace
from hybridfuzz.targets.transformers.kit_limits import Case, Kit, limits, refusal

GROUPS = (Group("mamba", 4), Group("attention", 1))


def config(**options: str) -> Config:
    return Config(60, GROUPS, mamba_cache_mode="none", options=options)


def test_each_kit_has_rows_and_no_reason_is_left_with_a_placeholder() -> None:
    found = limits()
    assert {limit.kit for limit in found} == set(get_args(Kit))
    assert not [limit for limit in found if "{" in limit.reason or not limit.feature]
    assert "MODEL_TYPE has no static cache" in {limit.reason for limit in found}
    assert list(kit_limits("transformers@5.23.0")) == found


def test_a_reason_names_the_family() -> None:
    assert refusal("shadow", Case(config(family="mamba", cache="static"))) == "mamba has no static cache"
    assert refusal("shadow", Case(config(family="jamba", cache="static"))) == ""


def test_what_no_script_can_show_is_refused() -> None:
    with pytest.raises(TargetError, match="no stand-alone script can show a failure of"):
        write_scripts("transformers", Trace(config(), ()), Failure("S3", "temporal", "", (), 1))
