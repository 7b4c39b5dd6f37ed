"""A trace's options are parsed in one place, without vLLM."""

import pytest

from hybridfuzz.targets.base.trace import Config, Group, TraceError
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory
from hybridfuzz.targets.vllm.options import Options, options_of
from hybridfuzz.targets.vllm.release import Release

EVERYTHING = Release(
    partial_hits=True, shared_metadata=True, serving_options=True, coordinates=True, replays=True, conv_layouts=True,
    junctions=True, inputs=True, sampling=True, admits_chunks=True, lookahead_hashes=True,
    offloads=True,
    offloads_simply=True,
    file_tier=True,
)  # fmt: skip


def config(**options: str) -> Config:
    return Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options=options)


def test_every_option_that_is_drawn_is_parsed() -> None:
    """An option without a field would be drawn and read by nothing."""
    drawn = VllmFactory("vllm", EVERYTHING).capabilities.options.keys()
    real = GpuFactory("vllm", "cuda", (), gpus=2).capabilities.options.keys()
    assert drawn | real == set(Options.__struct_fields__)


def test_each_value_that_is_drawn_is_accepted_and_kept() -> None:
    for name, values in VllmFactory("vllm", EVERYTHING).capabilities.options.items():
        for value in values:
            assert str(getattr(options_of(config(**{name: value})), name)) == value


def test_a_number_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match=r"options: .*\$\.replay"):
        options_of(config(replay="three"))


def test_options_of_other_targets_are_ignored() -> None:
    assert options_of(config(tree_core="rust")) == Options()
