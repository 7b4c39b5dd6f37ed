"""What real models are not driven with is refused: a trace that asks for it must not run as if it had not."""

import pytest

from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory


def config(**options: str) -> Config:
    groups = (Group("mamba", 16), Group("attention", 16))
    return Config(num_blocks=40, groups=groups, conv_width=4, options=options)


def test_a_plain_configuration_is_supported() -> None:
    assert GpuFactory("vllm", "cuda", ()).supports(config()) == ""


@pytest.mark.parametrize(
    "option",
    ["connector=store", "data_parallel=2", "metadata=shared", "prefix_match_unit=4", "reports=all", "reset=paused",
     "prefills=spaced", "pipeline=sync"],
)  # fmt: skip
def test_an_option_of_the_shadow_layers_is_refused(option: str) -> None:
    name, value = option.split("=")
    assert option in GpuFactory("vllm", "cuda", ()).supports(config(**{name: value}))
