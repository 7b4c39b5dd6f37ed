"""The stock server of vLLM: declared for releases whose defaults were looked up, with settings that they have."""

from dataclasses import fields, replace

from hybridfuzz.targets.base.declarations import fault
from hybridfuzz.targets.vllm.capabilities import capabilities_of
from hybridfuzz.targets.vllm.release import Release

NEWEST = replace(Release(), **{field.name: True for field in fields(Release) if field.default is False})


def names(release: Release) -> set[str]:
    return {setting.name for setting in capabilities_of(release).stock or ()}


def test_every_option_that_chooses_code_is_a_setting() -> None:
    able = capabilities_of(NEWEST)
    assert not fault(able) and able.stock
    # The runner is an implementation; kernels and layers are the platform's and the model's;
    # five say more of a connector that is itself a setting; the rest is the client's.
    others = {"runner", "mixer", "attention", "metadata", "sampling", "reset", "eviction", "offload", "tier"}
    others |= {"lazy_offload", "kv_offload_backend"}
    assert {name for setting in able.stock for name in setting.stock} >= able.options.keys() - others


def test_a_setting_that_a_checkout_lacks_is_left_out() -> None:
    assert names(NEWEST) - names(replace(NEWEST, replays=False)) == {"--use-replayssm"}
    assert not fault(capabilities_of(replace(NEWEST, replays=False)))


def test_older_releases_declare_none() -> None:
    assert capabilities_of(Release()).stock is None
