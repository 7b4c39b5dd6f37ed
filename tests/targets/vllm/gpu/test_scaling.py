"""Scaled traces keep blocks and rests; witness scripts are written for what the public API can do."""

from pathlib import Path

import pytest
from msgspec import structs

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import on_device, parse
from hybridfuzz.targets.base.trace import Arrive, Config, ExternalLoad, Group, Resume, Step, Trace, Turn, check_config
from hybridfuzz.targets.vllm.confirmation import choices, configured, forms
from hybridfuzz.targets.vllm.gpu.factory import GpuFactory
from hybridfuzz.targets.vllm.gpu.scaling import candidates, from_start, nearest, scaled, to_boundary
from hybridfuzz.targets.vllm.gpu.stand_ins import ATTENTION, GPU, OPERATORS, stood_in_for
from hybridfuzz.targets.vllm.gpu.witness import write_witness

CORPUS = Path(__file__).parents[4] / "corpus" / "vllm"
TRACES = sorted(CORPUS.glob("0.33.0--*.json"))
FACTORY = GpuFactory("vllm", "cuda", ())
LACKING = {
    "linear-": "no real model",
    "encoder-output": "no images",
    "session-keeps-encoder-output": "no images",
    "session-slot-not-counted-images": "no images",
    "as-full-block-drafter": "the drafter has no layer",
    "second-reset-asserts": "a host's tier",
    "zeroed-before-save": "blocks of a window",
    "lookup-evicts-its-hit": "hits inside blocks",
    "stale-window-block--": "windows are not driven with connectors",
    "stale-window-block-at-end": "blocks of a window",
    "idle-server-stores-for-ever": "SimpleCPUOffloadConnector",
    "host-reset-clears-all-events": "SimpleCPUOffloadConnector",
}
"""Traces of the corpus that real models cannot run, and words of the reason."""


def trace_of(*lengths: int) -> Trace:
    config = Config(num_blocks=40, groups=(Group("mamba", 4), Group("attention", 4)), max_model_len=32)
    arrivals = [Arrive(f"r{index}", (("a", length),), 3) for index, length in enumerate(lengths)]
    return Trace(config, (*arrivals, Step(budget=6)))


def lengths(trace: Trace) -> list[int]:
    return [sum(length for _, length in event.prompt) for event in trace.events if isinstance(event, Arrive)]


def test_a_window_grows_like_a_length_and_the_pool_has_a_block_for_its_beginning() -> None:
    trace = trace_of(11)
    groups = (*trace.config.groups, Group("attention", 4, window=13))
    made = scaled(structs.replace(trace, config=structs.replace(trace.config, groups=groups, num_blocks=8)), 16)
    assert [group.window for group in made.config.groups] == [0, 0, 3 * 16 + 1]
    assert made.config.num_blocks == made.config.smallest_pool() + 1


def test_a_length_keeps_its_blocks_and_its_rest() -> None:
    made = scaled(trace_of(1, 3, 4, 5, 11), 16)
    assert lengths(made) == [1, 3, 16, 17, 35]
    assert made.events[-1] == Step(budget=18)


def test_a_length_can_keep_its_distance_to_the_next_boundary() -> None:
    assert lengths(scaled(trace_of(3, 7, 11, 13), 16, [nearest])) == [3, 31, 47, 49]
    assert lengths(scaled(trace_of(3, 4, 5, 7), 16, [to_boundary])) == [15, 28, 29, 31]


def test_each_prompt_can_keep_its_own_form() -> None:
    """A request that decodes up to a boundary beside one that hits the block before it needs both."""
    made = scaled(trace_of(4, 4), 16, [to_boundary, from_start])
    assert lengths(made) == [28, 16]
    assert made in list(candidates(trace_of(4, 4), 16))


def test_parts_of_a_prompt_end_where_the_scaled_prefixes_end() -> None:
    config = trace_of().config
    trace = Trace(config, (Arrive("r", (("a", 8), ("b", 5)), 3),))
    assert scaled(trace, 16).events == (Arrive("r", (("a", 32), ("b", 17)), 3),)


def test_a_sessions_turns_are_scaled_too() -> None:
    config = trace_of().config
    trace = Trace(config, (Arrive("r", (("a", 8),), 3, session=True), Step(), Resume("r", (("b", 5),), 2)))
    made = scaled(trace, 16)
    assert [one.prompt for one in made.events if isinstance(one, Turn)] == [(("a", 32),), (("b", 17),)]
    assert made.config.max_model_len >= 32 + 3 + 17 + 2


def test_a_trace_with_such_blocks_is_kept() -> None:
    for size in (16, 32):
        once = scaled(trace_of(5), size)
        assert list(candidates(once, 16)) == [once]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_the_corpus_scales_to_configurations_that_can_be_had(path: Path) -> None:
    lacking = [words for name, words in LACKING.items() if name in path.name]
    for trace in forms(load_trace(path)):
        reasons = set()
        for options in choices(trace):
            one = configured(trace, options).config
            check_config(one)
            reasons.add(FACTORY.supports(one))
        assert "" in reasons or any(words in reason for words in lacking for reason in reasons), reasons


def test_causes_that_no_real_model_can_show_are_few() -> None:
    names = [path.name for path in TRACES]
    assert all(any(name in one for one in names) for name in LACKING)


def test_a_device_is_a_part_of_the_target_string() -> None:
    assert on_device("vllm@0.33.0", "cuda") == "vllm@0.33.0@cuda"
    assert parse("vllm@0.33.0@cuda").device == "cuda"
    assert parse("vllm@cuda").version == ""
    assert parse("vllm@/a/tree@v2").version == "/a/tree@v2"


def test_what_is_stood_in_follows_from_the_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "vllm_flash_attn").mkdir()
    assert stood_in_for(tmp_path, "cuda") == (OPERATORS, ATTENTION)
    (tmp_path / "_C_stable_libtorch.abi3.so").touch()
    assert stood_in_for(tmp_path, "cuda") == (ATTENTION,)
    (tmp_path / "vllm_flash_attn" / "_vllm_fa2_C.abi3.so").touch()
    assert stood_in_for(tmp_path, "cuda") == ()
    assert stood_in_for(tmp_path, "interpreter") == (GPU,)


def test_a_witness_script_compiles_and_uses_nothing_of_ours() -> None:
    path = CORPUS / "0.33.0--prompt-as-decode-v1--S6-step-sampled.json"
    script = write_witness(load_trace(path))
    compile(script, "witness.py", "exec")
    assert "hybridfuzz" not in script
    assert "FULL_DECODE_ONLY" in script


@pytest.mark.parametrize("name", ["unscheduled-row-v1", "published-then-preempted", "dummy-run-as-prompt-v1"])
def test_no_witness_for_what_the_public_api_cannot_do(name: str) -> None:
    [path] = [path for path in TRACES if f"--{name}--" in path.name]
    with pytest.raises(TargetError, match="no witness script"):
        write_witness(load_trace(path))


def test_groups_grow_alike_with_the_unit_of_hits_and_what_is_stored() -> None:
    """Boundaries of all groups stay boundaries: 12 tokens are three blocks of states, one and a half of attention."""
    config = Config(
        num_blocks=40,
        groups=(Group("mamba", 4), Group("attention", 8)),
        max_model_len=32,
        options={"prefix_match_unit": "2"},
    )
    trace = Trace(config, (Arrive("r", (("a", 12),), 3), ExternalLoad("r", 9), Step(chunks={"r": 5})))
    forms = list(candidates(trace, 16))
    first, last = forms[0], forms[-1]
    assert [group.block_size for group in first.config.groups] == [16, 32]
    assert first.config.options["prefix_match_unit"] == "8"
    assert first.events == (Arrive("r", (("a", 48),), 3), ExternalLoad("r", 33), Step(chunks={"r": 17}))
    assert [group.block_size for group in last.config.groups] == [16, 16]
    assert last.config.options["prefix_match_unit"] == "2"


def test_a_form_may_have_a_smaller_pool() -> None:
    """A request of 5 tokens has two blocks of 4; of 17 tokens two blocks of 16, but it takes longer to fill another."""
    pools = [one.config.num_blocks for one in candidates(trace_of(5), 16)]
    assert pools[0] == max(pools)
    assert min(pools) == next(candidates(trace_of(5), 16)).config.smallest_pool()


def test_a_request_can_reach_a_farther_boundary_in_more_steps() -> None:
    """One that decodes over a boundary in blocks of 4 needs twelve more tokens in blocks of 16."""
    made = next(one for one in candidates(trace_of(4), 16) if len(one.events) > 2)
    assert made.events[:13] == (Arrive("r0", (("a", 16),), 15), *[Step()] * 12)
    check_config(made.config)


def test_consecutive_traces_share_a_configuration() -> None:
    """An engine is built once for them, and reset."""
    shared = FACTORY.capabilities.traces_per_configuration
    first, last, after = (
        draw_trace(FACTORY.capabilities, 1, index, supports=FACTORY.supports) for index in (0, shared - 1, shared)
    )
    assert first.config == last.config != after.config
    assert first.events != last.events
