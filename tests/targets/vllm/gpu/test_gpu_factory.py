"""What real models are not driven with is refused: a trace that asks for it must not run as if it had not."""

import pytest
from msgspec import structs

from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory


def config(**options: str) -> Config:
    groups = (Group("mamba", 16), Group("attention", 16))
    return Config(num_blocks=40, groups=groups, conv_width=4, options=options)


def test_a_plain_configuration_is_supported() -> None:
    assert GpuFactory("vllm", "cuda", ()).supports(config()) == ""


@pytest.mark.parametrize("option", ["connector=store", "conv_layout=DS", "inputs=images", "replay=3"])
def test_an_option_of_the_shadow_layers_is_refused(option: str) -> None:
    name, value = option.split("=")
    assert option in GpuFactory("vllm", "cuda", ()).supports(config(**{name: value}))


@pytest.mark.parametrize(
    ("option", "more"),
    [
        ("metadata=shared", {}),
        ("prefix_match_unit=8", {}),
        ("reports=all", {}),
        ("reset=paused", {}),
        ("prefills=spaced", {}),
        ("admission=chunk", {}),
        ("pipeline=sync", {"async_depth": 1}),
    ],
)
def test_an_option_of_the_scheduler_is_for_real_models_too(option: str, more: dict[str, int]) -> None:
    name, value = option.split("=")
    assert GpuFactory("vllm", "cuda", ()).supports(structs.replace(config(**{name: value}), **more)) == ""
    assert value in GpuFactory("vllm", "cuda", ()).capabilities.options[name]


def test_limits_of_both_kinds_of_layers_hold() -> None:
    supports = GpuFactory("vllm", "cuda", ()).supports
    assert "must be a multiple of prefix_match_unit" in supports(config(prefix_match_unit="6"))
    assert "steps in flight" in supports(config(pipeline="sync"))
    assert "on a GPU" in GpuFactory("vllm", "interpreter", ()).supports(config(data_parallel="2"))
