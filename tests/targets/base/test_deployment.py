"""Deployments: every flag of a drawn configuration is one of the engine's, and its own parser takes it."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.tell.at_scale import serve
from hybridfuzz.targets.base.deployment import Deployment
from hybridfuzz.targets.base.registry import describe, prepare
from hybridfuzz.targets.base.trace import DummyRun, ExternalLoad, Group, Trace
from hybridfuzz.targets.sglang.deployment import GDN, MAMBA2
from hybridfuzz.targets.sglang.factory import SglangFactory
from hybridfuzz.targets.vllm.deployment import MODELS
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.release import Release

COUNT = 24
CORPUS = Path(__file__).parents[3] / "corpus"
PARSE = {
    "vllm@0.33.0": """\
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
for flags in json.loads(sys.argv[1]):
    found = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(flags)
    if "--num-gpu-blocks-override" in flags:  # with the miniature sizes
        assert found.max_num_seqs and found.num_gpu_blocks_override
    if "--block-size" in flags:
        assert found.block_size == 1024 and found.max_num_batched_tokens
    wanted = None if "None" in flags else 0
    assert found.prefix_cache_retention_interval == wanted, flags
    assert found.scheduler_reserve_full_isl == ("--no-scheduler-reserve-full-isl" not in flags), flags
    assert bool(found.speculative_config) == ("--speculative-config" in flags), flags
print("parsed")
""",
    "sglang@0.5.23": """\
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
for flags in json.loads(sys.argv[1]):
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    found = parser.parse_args(["--model-path", "x", *flags])
    assert found.disable_overlap_schedule == ("--disable-overlap-schedule" in flags)
    if "--max-running-requests" in flags:  # with the miniature sizes
        assert found.max_running_requests and (found.context_length or found.max_total_tokens)
    assert found.page_size
print("parsed")
""",
}


RELEASE = Release(
    local_groups=True,
    partial_hits=True,
    draft_groups=True,
    serving_options=True,
    coordinates=True,
    sessions=True,
    admits_chunks=True,
)


def drawn(target: str) -> list[Trace]:
    factory = VllmFactory("vllm", RELEASE) if target.startswith("vllm") else SglangFactory("sglang", sessions=True)
    return [draw_trace(factory.capabilities, 5, index, {}, factory.supports) for index in range(COUNT)]


@pytest.fixture(params=PARSE)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_flags_are_well_formed_and_complete(target: str) -> None:
    for trace in drawn(target):
        found = describe(target, trace, target.partition("@")[2])
        names = [part for part in found.flags if part.startswith("--")]
        assert len(names) == len(set(names)) >= 3
        assert all(isinstance(part, str) and part for part in (*found.flags, *found.command))
        assert found.own and found.replaced and found.scaled and found.tracker
        drafts = trace.config.num_speculative_tokens
        assert any("speculative" in name for name in names) == bool(drafts)
        assert sum(one.default for one in found.implementations) in ((0, 1) if "sglang" in target else (1,))


def served(target: str, version: str) -> list[list[str]]:
    """The flags of servers for packaged traces, in their own lengths and with every limit."""
    name, _, release = target.partition("@")
    traces = [load_trace(path) for path in sorted(CORPUS.glob(f"{name}/{release}--*.json"))]
    servers = [serve(trace, lambda one: describe(target, one, version), lambda one: False) for trace in traces]
    return [list(one.deployment.flags) for one in servers]


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_the_engines_own_parser_takes_them(target: str) -> None:
    launch = prepare(target, print)
    found = [describe(target, trace, launch.version) for trace in drawn(target)]
    flags = [list(one.flags) for one in found] + [[*one.flags, *one.sizes] for one in found]
    flags += served(target, launch.version)
    command = [launch.python, "-c", PARSE[target], json.dumps(flags)]
    ran = subprocess.run(command, env={**os.environ, **launch.env}, capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("parsed\n"), ran.stderr[-2000:]


CONFIGURE = """\
import json, os, sys, tempfile, transformers
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.utils.argparse_utils import FlexibleArgumentParser
folders = {}
for name in ("Qwen3NextForCausalLM", "GraniteMoeHybridForCausalLM", "JambaForCausalLM", "Lfm2ForCausalLM"):
    config = getattr(transformers, name.replace("ForCausalLM", "Config"))()
    config.architectures, folders[name] = [name], tempfile.mkdtemp()
    config.save_pretrained(folders[name])
for architecture, variables, flags in json.loads(sys.argv[1]):
    assert architecture in ModelRegistry.get_supported_archs(), architecture
    if architecture in folders and "DRAFTER" not in str(flags):
        os.environ |= variables
        words = ["--model", folders[architecture], "--skip-tokenizer-init", *flags]
        found = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(words)
        EngineArgs.from_cli_args(found).create_engine_config()
print("configured")
"""


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.exhaustive
def test_vllm_accepts_the_configuration_of_a_server() -> None:
    """It refused --async-scheduling with n-gram drafts on V1, and MTP for models without such layers."""
    launch = prepare("vllm@0.33.0", print)
    found = []
    for trace in drawn("vllm@0.33.0"):
        one = describe("vllm@0.33.0", trace, launch.version)
        architecture = MODELS[trace.config.options.get("mixer", "gdn")].architecture
        found.append((architecture, dict(one.variables), list(one.flags)))
    command = [launch.python, "-c", CONFIGURE, json.dumps(found)]
    env = {**os.environ, **launch.env, "VLLM_TARGET_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("configured\n"), ran.stderr[-2000:]


LAYERS = """\
import json, sys
from hybridfuzz.targets.sglang import stubs
stubs.install()
from sglang.srt.configs import NemotronHConfig, Qwen3NextConfig
made = {"NemotronHForCausalLM": NemotronHConfig(), "Qwen3NextForCausalLM": Qwen3NextConfig(full_attention_interval=4)}
for name, overrides in json.loads(sys.argv[1]).items():
    config = made[name]
    many = config.num_hidden_layers
    config.update(overrides)  # as SGLang's `get_config` does
    states = config.mamba_layer_ids if name.startswith("Nemotron") else config.linear_layer_ids
    slots = config.full_attention_layer_ids
    assert config.num_hidden_layers == 4 < many and states and slots and max(*states, *slots) < 4, (name, states, slots)
print("configured")
"""


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_sglang_has_all_kinds_of_layers_with_few_of_them() -> None:
    """A configuration with a pattern of layers ignored the number of layers: such a server has all of them."""
    launch = prepare("sglang@0.5.23", print)
    found = {one.architecture: one.few_layers for one in (GDN, MAMBA2)}
    command = [launch.python, "-c", LAYERS, json.dumps(found)]
    ran = subprocess.run(command, env={**os.environ, **launch.env}, capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("configured\n"), ran.stderr[-2000:]


def test_an_sglang_server_has_the_model_of_its_trace() -> None:
    plain, windowed = make_trace(), make_trace(groups=(*make_trace().config.groups, Group("attention", 1, window=4)))
    assert describe("sglang@0.5.23", plain, "0.5.23").command[-1] == GDN.checkpoint
    found = describe("sglang@0.5.23", windowed, "0.5.23")
    assert found.command[-1] == '"$MODEL"' and "--json-model-override-args" not in found.flags
    assert any("InklingForConditionalGeneration" in note for note in found.notes)


def test_a_library_has_no_position_ids_where_its_model_takes_none() -> None:
    """A report on a model without them told of runs with and without."""

    def titles(family: str) -> str:
        found = describe("transformers@5.24.0", make_trace(options={"family": family}), "5.24.0")
        return " ".join(one.title for one in found.implementations)

    assert "position ids" in titles("bamba") and "position ids" not in titles("mamba2")


def vllm(trace: Trace, version: str = "0.33.0", spec: str = "vllm@0.33.0") -> Deployment:
    return describe(spec, trace, version)


@pytest.mark.parametrize(
    ("version", "default"),
    [("0.33.0", "V2"), ("0.28.0", "V2"), ("0.27.1", "V1"), ("1.0.0", "V2"), ("0.0.0.dev0", "V2"), ("", "V2")],
)
def test_the_default_runner_is_that_of_the_release(version: str, default: str) -> None:
    [found] = [one.title for one in vllm(make_trace(), version).implementations if one.default]
    assert found == f"{default} model runner"


def test_a_dummy_run_needs_data_parallel_ranks() -> None:
    plain = make_trace(arrive("r0", 3), *steps(2))
    with_dummy = structs.replace(plain, events=(*plain.events, DummyRun(2)))
    assert "--data-parallel-size" in vllm(with_dummy).flags
    assert "--data-parallel-size" not in vllm(plain).flags


@pytest.mark.parametrize(
    ("connector", "name"),
    [
        ("none", ""),
        ("store", "OffloadingConnector"),
        ("transfer", "NixlConnector"),
        ("sync", "OffloadingConnector"),
        ("offloading", "OffloadingConnector"),
    ],
)
def test_a_connector_is_configured_with_its_policy(connector: str, name: str) -> None:
    trace = make_trace(arrive("r0", 3), options={"connector": connector, "load_failure": "fail"})
    flags = vllm(trace).flags
    assert ("--kv-transfer-config" in flags) == bool(name)
    if name:
        chosen = json.loads(flags[flags.index("--kv-transfer-config") + 1])
        assert (chosen["kv_connector"], chosen["kv_load_failure_policy"]) == (name, "fail")
        size = chosen.get("kv_connector_extra_config", {}).get("cpu_bytes_to_use", 0)
        assert (size > 0) == (name == "OffloadingConnector"), "it does not start without"


@pytest.mark.parametrize(("reset", "is_answered"), [("direct", True), ("paused", False)])
def test_vllm_answers_a_reset_that_raises_with_an_error(reset: str, is_answered: bool) -> None:
    """Behind a pause the same event also runs steps; an exception there ends the engine."""
    found = vllm(make_trace(arrive("r0", 3), options={"reset": reset})).declines
    assert ("reset_prefix_cache" in found) is is_answered and "step" not in found


def test_what_the_trace_needs_is_configured_and_named() -> None:
    """A store whose loads fail is not OffloadingConnector, which asserts that they do not."""
    options = {"connector": "store", "data_parallel": "2", "prefix_match_unit": "2"}
    found = vllm(make_trace(arrive("r0", 5), ExternalLoad("r0", 4, breaks_off=True), options=options))
    named = {"--kv-transfer-config", "--data-parallel-size", "--prefix-match-unit"}
    assert named <= set(found.unusual) <= set(found.flags)
    assert found.sizes[found.sizes.index("--prefix-match-unit") + 1] == "2"
    chosen = json.loads(found.flags[found.flags.index("--kv-transfer-config") + 1])
    assert chosen["kv_connector"] == "MooncakeStoreConnector"
    assert any("KV connector" in clause for clause in found.replaced)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"retention": "junctions"}, ["--enable-mamba-shared-prefix-checkpoint"]),
        ({"inputs": "adapters"}, ["--enable-lora"]),
        (
            {"runner": "v1", "mixer": "mamba2", "replay": "4"},
            ["--use-replayssm", "--replayssm-buffer-len", "4"],
        ),
        ({"reports": "all"}, ["--kv-cache-metrics", "--kv-cache-metrics-sample", "1.0"]),
    ],
)
def test_an_option_has_its_flags(options: dict[str, str], flags: list[str]) -> None:
    found = vllm(make_trace(arrive("r0", 3), options=options)).flags
    assert "\n".join(flags) in "\n".join(found)


def test_the_layout_of_windows_is_a_variable() -> None:
    found = vllm(make_trace(arrive("r0", 3), options={"conv_layout": "DS"})).variables
    assert found["VLLM_SSM_CONV_STATE_LAYOUT"] == "DS"


def test_metrics_of_drafts_need_drafts() -> None:
    flag = "--per-request-spec-decode-metrics"
    plain = make_trace(arrive("r0", 3), options={"reports": "all"})
    drafting = structs.replace(plain, config=structs.replace(plain.config, num_speculative_tokens=1))
    assert flag not in vllm(plain).flags and flag in vllm(drafting).flags


def test_a_prompt_with_an_image_needs_a_model_that_takes_images() -> None:
    """The command named a model of text."""
    event = structs.replace(arrive("r0", 3), prompt=(("a", 3), ("image.x", 2)))
    assert vllm(make_trace(event)).command == ("vllm", "serve", "Qwen/Qwen3.5-0.8B")
    assert vllm(make_trace(arrive("r0", 3))).command != ("vllm", "serve", "Qwen/Qwen3.5-0.8B")


def test_the_command_has_no_miniature_size() -> None:
    """An 80B model was printed with --max-model-len 16 and a pool of 20 blocks: no server starts like that."""
    found = vllm(make_trace(arrive("r0", 5), options={"mixer": "gdn"}))
    small = {"--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--num-gpu-blocks-override"}
    assert small <= set(found.sizes) and not small & set(found.flags)
    assert found.flags[: found.flags.index("--hf-overrides")] == ("--load-format", "dummy")


def test_a_model_without_a_known_checkpoint_is_named_by_its_architecture() -> None:
    event = structs.replace(arrive("r0", 3), prompt=(("a", 3), ("image.x", 2)))
    found = vllm(make_trace(event, options={"mixer": "short_conv"}))
    assert found.command == ("vllm", "serve", '"$MODEL"')
    assert any("Lfm2VlForConditionalGeneration" in note for note in found.notes)


def test_a_real_model_has_other_stand_ins() -> None:
    version = "0.33.0, real model on cuda, stood in: attention: Triton's; two operators in PyTorch"
    found = vllm(make_trace(), version, "vllm@0.33.0@cuda")
    assert any("Triton kernels and CUDA graphs" in clause for clause in found.own)
    assert found.replaced[-2:] == ("attention: Triton's", "two operators in PyTorch")
    assert not any("digest" in clause for clause in found.replaced)


def test_a_target_without_a_description_has_its_name() -> None:
    assert describe("python:some:THING", make_trace()) == Deployment("some:THING")


def test_a_mutant_is_named() -> None:
    assert any("accepted-count-zero" in clause for clause in describe("hybrid:accepted-count-zero", make_trace()).own)
