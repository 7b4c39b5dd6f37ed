"""Tiny models: every layer pattern that a trace can ask for, as the configuration that vLLM reads."""

from itertools import product

import pytest

from hybridfuzz.reference.tokens import IMAGE_TOKENS
from hybridfuzz.targets.base.trace import Config, Group
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory
from hybridfuzz.targets.vllm.models import (
    KEY_VALUE,
    MERGED,
    MIXERS,
    has_layers,
    image_grid,
    layer_kinds,
    mixer,
    model_fields,
)

FACTORY = GpuFactory("vllm", "cuda", ())


def config(mamba: int, attention: int, **fields: object) -> Config:
    groups = (*[Group("mamba", 32)] * mamba, *[Group("attention", 32)] * attention)
    return Config(**{"num_blocks": 60, "groups": groups, "max_model_len": 64, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", KEY_VALUE)
def test_every_model_has_as_many_layers_of_each_kind_as_the_trace(name: str) -> None:
    for mamba, attention in FACTORY.capabilities.group_counts:
        kinds = layer_kinds(config(mamba, attention))
        fields = model_fields(name, kinds)
        fields = fields.get("text_config", fields)
        assert fields["num_hidden_layers"] == len(kinds) == mamba + attention
        if "layer_types" in fields:
            assert [one.endswith("attention") and "linear" not in one for one in fields["layer_types"]] == [
                kind == "a" for kind in kinds
            ]
        elif "hybrid_override_pattern" in fields:
            assert fields["hybrid_override_pattern"] == kinds.replace("m", "M").replace("a", "*")
        elif has_layers(name, kinds):
            period, offset = fields["attn_layer_period"], fields["attn_layer_offset"]
            assert [index % period == offset for index in range(len(kinds))] == [kind == "a" for kind in kinds]


def test_a_model_without_the_layers_is_refused() -> None:
    assert "period" in FACTORY.supports(config(1, 2, options={"mixer": "mamba1"}))
    assert FACTORY.supports(config(1, 1, options={"mixer": "mamba1"})) == ""


@pytest.mark.parametrize("name", ["short_conv", "mamba1"])
def test_models_that_vllm_runs_without_speculation_are_refused_with_it(name: str) -> None:
    assert "speculation" in FACTORY.supports(config(1, 1, num_speculative_tokens=1, options={"mixer": name}))


def test_replay_is_that_of_the_model_with_which_vllm_takes_it() -> None:
    replaying = config(1, 1, options={"runner": "v1", "mixer": "mamba2", "replay": "3"})
    assert FACTORY.supports(replaying) == ""
    assert mixer(replaying) == "nemotron_h"
    ignored = config(1, 1, options={"mixer": "mamba2", "replay": "3"})
    assert "V1 runner" in FACTORY.supports(ignored)
    assert mixer(ignored) == "mamba2"


def test_images_are_those_of_qwen_3_5() -> None:
    assert mixer(config(1, 1, options={"mixer": "gdn", "inputs": "images"})) == "qwen3_5"
    fields = model_fields("qwen3_5", "ma")
    assert fields["vision_config"]["out_hidden_size"] == fields["text_config"]["hidden_size"]
    sections = fields["text_config"]["rope_parameters"]["mrope_section"]
    rotated = fields["text_config"]["head_dim"] * fields["text_config"]["rope_parameters"]["partial_rotary_factor"]
    assert 2 * sum(sections) == rotated


@pytest.mark.parametrize("tokens", range(1, IMAGE_TOKENS + 1))
def test_an_image_has_as_many_tokens_as_squares_of_patches(tokens: int) -> None:
    frames, rows, columns = image_grid(tokens)
    assert (frames, rows * columns) == (1, tokens * MERGED**2)
    assert rows % MERGED == columns % MERGED == 0
    assert rows <= columns


def test_piecewise_graphs_need_a_gpu() -> None:
    asked = config(1, 1, options={"graphs": "piecewise", "mixer": "gdn"})
    assert FACTORY.supports(asked) == ""
    assert "GPU" in GpuFactory("vllm", "interpreter", ()).supports(asked)


def test_every_draw_of_the_capabilities_is_a_model() -> None:
    capabilities = FACTORY.capabilities
    assert set(capabilities.options["mixer"]) | set(capabilities.accepts["mixer"]) == set(MIXERS)
    for name, (mamba, attention) in product(MIXERS, capabilities.group_counts):
        assert layer_kinds(config(mamba, attention, options={"mixer": name})).count("a") == attention
