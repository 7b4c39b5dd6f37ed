"""What real models are not driven with is refused: a trace that asks for it must not run as if it had not."""

import pytest
from msgspec import structs

from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory
from hybridfuzz.targets.vllm.models import mixer, windows


def config(**options: str) -> Config:
    groups = (Group("mamba", 16), Group("attention", 16))
    return Config(num_blocks=40, groups=groups, conv_width=4, options=options)


def test_a_plain_configuration_is_supported() -> None:
    assert GpuFactory("vllm", "cuda", ()).supports(config()) == ""


def test_inputs_that_the_models_lack_are_refused() -> None:
    supports = GpuFactory("vllm", "cuda", (), gpus=2).supports
    for inputs in ("images", "adapters"):
        assert supports(config(inputs=inputs)) == supports(config(inputs=inputs, connector="store")) == ""
        assert supports(config(inputs=inputs, graphs="decode")) == ""
        assert f"with {inputs}" in supports(config(inputs=inputs, graphs="piecewise"))
        assert f"have no {inputs}" in supports(config(inputs=inputs, ranks="2"))
    assert "Qwen3.5" in supports(config(inputs="images", mixer="mamba2"))
    assert "Granite 4 only" in supports(config(inputs="adapters", mixer="mamba1"))


def test_an_mtp_head_has_a_group_of_its_own_on_the_v2_runner() -> None:
    def headed(*more: Group, **options: str) -> Config:
        groups = (Group("mamba", 16), Group("attention", 16), *more, Group("attention", 16, draft=True))
        return structs.replace(config(**options), groups=groups, num_speculative_tokens=2, num_blocks=60)

    factory = GpuFactory("vllm", "cuda", (), gpus=2)
    supports = factory.supports
    assert supports(headed()) == supports(headed(graphs="decode")) == supports(headed(data_parallel="2")) == ""
    assert supports(headed(mixer="mamba2")) == supports(headed(mixer="nemotron_h")) == ""
    assert mixer(headed(mixer="mamba2")) == "nemotron_h"
    assert "no MTP head" in supports(headed(mixer="short_conv"))
    assert "the window of a layer" in supports(headed(Group("attention", 16, window=20), mixer="mamba2"))
    assert "the V2 runner" in supports(headed(runner="v1"))
    assert "without the head" in supports(headed(connector="store"))
    assert "with adapters" in supports(headed(inputs="adapters"))
    assert "full graphs of the model only" in supports(headed(graphs="piecewise"))
    assert "ranks in processes" in supports(headed(ranks="2"))
    assert "a group of the model's" in supports(headed(Group("mamba", 16)))
    larger = (*config().groups, Group("attention", 32, draft=True))
    assert "as large as those of full" in supports(structs.replace(headed(), groups=larger))
    assert factory.capabilities.extra_groups >= {"draft-group"}


def test_windows_beside_full_attention_are_those_of_nemotron_h() -> None:
    def windowed(mixer: str, **window: int) -> Config:
        made = config(mixer=mixer)
        group = structs.replace(Group("attention", 16, window=20), **window)
        return structs.replace(made, groups=(*made.groups, group), num_blocks=60)

    supports = GpuFactory("vllm", "cuda", ()).supports
    assert supports(windowed("mamba2")) == supports(windowed("nemotron_h")) == ""
    assert mixer(windowed("mamba2")) == "nemotron_h"
    assert windows(windowed("mamba2")) == [0, 0, 20]
    assert "Nemotron-H alone" in supports(windowed("gdn"))
    assert "as large as those of full attention" in supports(windowed("mamba2", block_size=32))
    connected = windowed("mamba2")
    connected = structs.replace(connected, options={**connected.options, "connector": "store"})
    assert "with connectors" in supports(connected)
    assert "chunked-local" in supports(windowed("mamba2", window=0, chunk=32))
    assert "beside it" in supports(structs.replace(windowed("mamba2"), groups=windowed("mamba2").groups[::2]))


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
        ("connector=store", {}),
        ("connector=sync", {}),
        ("load_failure=fail", {}),
        ("conv_layout=DS", {}),
        ("data_parallel=2", {}),
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
    assert "on a GPU" not in GpuFactory("vllm", "interpreter", ()).supports(config(data_parallel="2"))
    assert "ReplaySSM needs" in supports(config(replay="3"))
    assert supports(config(replay="3", runner="v1", mixer="mamba2")) == ""
    assert "V1 runner without drafts" in supports(config(sampling="varied"))
    assert supports(config(sampling="varied", runner="v1")) == ""


def test_blocks_of_states_may_be_smaller_than_those_of_attention() -> None:
    supports = GpuFactory("vllm", "cuda", ()).supports
    groups = (Group("mamba", 16), Group("attention", 32))
    assert supports(structs.replace(config(), groups=groups)) == ""
    assert "or a multiple" in supports(structs.replace(config(), groups=(Group("mamba", 32), Group("attention", 16))))


def test_ranks_are_taken_if_they_are_asked_for_and_each_can_have_a_gpu() -> None:
    one, two = GpuFactory("vllm", "cuda", (), gpus=1), GpuFactory("vllm", "cuda", (), gpus=2)
    assert two.capabilities.options["ranks"] == ("1",)
    assert "2" in one.capabilities.accepts["ranks"]
    assert two.supports(config(ranks="2")) == ""
    for reason in (one.supports(config(ranks="2")), two.supports(config(ranks="3"))):
        assert "needs a GPU for each data-parallel rank" in reason
    assert GpuFactory("vllm", "interpreter", (), gpus=0).supports(config(ranks="3")) == ""
    assert "1 to 8" in two.supports(config(ranks="9"))
