"""The vLLM server that a trace's configuration stands for. Importable without vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ..base.client_requests import ANSWER_OF_COMPLETION, COMPLETIONS, calls_of, is_text, variable
from ..base.deployment import Client, Deployment, Implementation, Scale
from ..base.issue_form import Form, Section
from ..base.trace import (
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    Preempt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Step,
    Trace,
    Turn,
    has_drafts,
    has_reasoning,
    least_tokens,
    needed_kinds,
    tag_of,
)
from .options import (
    PREFILL_INTERVAL,
    Options,
    has_adapters,
    has_disk,
    has_files,
    has_graphs,
    has_peer,
    is_v2,
    offloads,
    offloads_simply,
    options_of,
    rank_count,
    reports_all,
    ring_entries,
    schedules_asynchronously,
    stages,
    windows_are_last,
)
from .sizes import has_eagle_rules


class Model(NamedTuple):
    """A model with one kind of state layer.

    layer         the kind of layer, in words
    architecture  its name in vLLM's model registry
    checkpoint    a public checkpoint of it; a shell variable where we know of none that can be verified
    has_mtp       True if vLLM has a drafter of the model's own layers (MTP)
    layers        number of layers with which it fits one GPU and has all kinds of layers, 0 for all
    """

    layer: str
    architecture: str
    checkpoint: str
    has_mtp: bool = False
    layers: int = 0


MODELS = {
    "gdn": Model("gated delta nets", "Qwen3NextForCausalLM", "Qwen/Qwen3-Next-80B-A3B-Instruct", True, 4),
    "mamba2": Model("Mamba 2", "GraniteMoeHybridForCausalLM", "ibm-granite/granite-4.0-h-tiny"),
    "mamba1": Model("Mamba 1", "JambaForCausalLM", "ai21labs/AI21-Jamba-Mini-1.7", False, 8),
    "short_conv": Model("short convolutions", "Lfm2ForCausalLM", "LiquidAI/LFM2-1.2B"),
    "linear": Model("plain linear attention", "BailingMoeV2_5ForCausalLM", "inclusionAI/Ring-2.5-1T", True, 8),
}
IMAGE_MODELS = {
    "gdn": Model("gated delta nets", "Qwen3_5ForConditionalGeneration", "Qwen/Qwen3.5-0.8B", True),
    "mamba2": Model("Mamba 2", "NemotronH_Nano_VL_V2", '"$MODEL"'),
    "short_conv": Model("short convolutions", "Lfm2VlForConditionalGeneration", '"$MODEL"'),
}
"""Those that take images."""
CONNECTORS = {
    "store": "OffloadingConnector",
    "transfer": "NixlConnector",
    "sync": "OffloadingConnector",
    "offloading": "OffloadingConnector",
    "simple_cpu": "SimpleCPUOffloadConnector",
}
"""vLLM's own connector that serves requests in the same way, by the option `connector`."""
OWN_CONNECTORS = ("none", "offloading", "simple_cpu")
"""Values of that option that need nothing from the scenario."""
SYNC_BUDGET = 1 << 30
"""Bytes that `sync` loads before the forward of one step."""
FAILING = "MooncakeStoreConnector"
"""The one for `store` if loads fail: OffloadingConnector asserts that they do not."""
UNUSUAL = frozenset(
    {
        "--prefix-match-unit",
        "--scheduling-policy",
        "--speculative-config",
        "--kv-transfer-config",
        "--kv-events-config",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--prefill-schedule-interval",
        "--no-scheduler-reserve-full-isl",
        "--prefix-cache-retention-interval",
        "--enable-mamba-shared-prefix-checkpoint",
        "--enable-lora",
        "--use-replayssm",
        "--reasoning-parser",
    }
)
"""Flags that choose other code of the cache and the scheduler than a server has by default."""
CONNECTOR = (
    "the KV connector: made by vLLM's factory and called through vLLM's connector API; the scenario states what its "
    "store holds, how long a load takes and whether it fails"
)
OFFLOADING = "the copies between the caches and host memory: vLLM orders each, and they happen as late as it permits"
SIMPLY = (
    "the copies between the caches and the host: some happen as soon as they are planned, "
    "others as late as vLLM permits"
)
FILES = "a folder of its own for the file tier, whose threads do their work between two steps"
DISK = (
    "a file of its own for the disk backend, whose threads do their work between two steps, through the page cache "
    "(`use_page_cache`), not past it"
)
HOST_BYTES = 1 << 30
"""Bytes of host memory, or of the file, of a server with `offloading` or `simple_cpu`."""
TIERS = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "/tmp/kv"}]}
"""`kv_connector_extra_config` of a server with files behind its host memory."""
MATCH_UNIT = 32
"""`--prefix-match-unit` of a server: vLLM's own example, for blocks of 1,024 tokens."""
BLOCK = 1024
"""`--block-size` of a server: vLLM takes a larger one only where a state needs it, and logs that."""
SCALE = Scale(BLOCK, {"prefix_match_unit": MATCH_UNIT}, ("--block-size", str(BLOCK)))
EAGER = "--enforce-eager"
SCHEDULING = ("--async-scheduling", "--no-async-scheduling")
PARSER = "deepseek_r1"
"""A reasoning parser that vLLM registers: reasoning stands between `<think>` and `</think>`."""
DRAFTER = "DRAFTER"
"""Stands for a checkpoint of an EAGLE drafter, where a model has no drafter of its own."""
COLLECT_ENV = """\
from importlib.metadata import distributions
from vllm import collect_env
names = tuple(collect_env.DEFAULT_PIP_PATTERNS)
found = sorted({f"{one.name}=={one.version}" for one in distributions()})
listed = "\\n".join(one for one in found if any(name in one for name in names))
collect_env.get_pip_packages = lambda *arguments, **keywords: ("pip3", listed)
print(collect_env.get_pretty_env_info())
"""
"""vLLM's own collect_env.py, which wants pip for its list of packages; the environments made here have none."""
WORDS = {
    "speculative decoding": "spec decode",
    "dummy run data parallel": "data parallel dummy",
    "pause generation": "pause_generation",
    "reset prefix cache": "reset_prefix_cache",
    "reset encoder cache": "reset_encoder_cache",
    "session": "StreamingInput",
}
"""Terms that a report searches for -> how issues of vLLM write them."""
PHRASES = (
    (r"\b(Block|block)(?= \d)", "KV cache block"),
    (r"\(column (\d+)\)", r"(entry \1 of its block-table row)"),
    (r"\bcolumn(?= \d+ of )", "block-table entry"),
    (r"\b(mamba|attention) group (\d+)", r"KV cache group \2 (\1)"),
    (r"\(it has (\d+) columns\)", r"(its row has \1 entries)"),
    (r"\bis published as depth (\d+) of", r"is in the prefix cache as the end of the first \1 tokens of"),
    (
        r"\bas depth (\d+) of prefix \S+ in group (\d+)",
        r"as the end of the first \1 tokens of a prefix (group \2)",
    ),
    (r"\bis not published\b", "is not in the prefix cache"),
    (r"\boutside the pool\b", "in the KV connector's store"),
)
"""`Deployment.phrases`."""
FORM = Form(
    (
        Section("Your current environment", ("environment",)),
        Section("🐛 Describe the bug", ("bug", "cause", "reproduction", "expected", "server", "more")),
        Section(
            "Before submitting a new issue...",
            text="- [ ] Make sure you already searched for relevant issues, and asked the chatbot of the docs.",
        ),
    ),
    title="[Bug]: ",
    collects="python collect_env.py",
)
"""`.github/ISSUE_TEMPLATE/400-bug-report.yml`."""
V2_DEFAULT_SINCE = (0, 28)
"""vLLM #53183."""
LOOKAHEAD_SINCE = (0, 33)
"""Since then `disable_lookahead_block_hashes` exists."""
MODE_FOLLOWS_SINCE = (0, 33)
"""Since then `--mamba-cache-mode` has no effect (`_MAMBA_CACHE_MODE_DEPRECATION_MESSAGE`)."""
OWN = (
    "scheduler (synchronous and asynchronous), KV cache manager, coordinator, block pool, cache planning",
    "model runner (V2 or V1): input batch, block tables, Mamba pre- and post-processing, dummy runs, block zeroing",
    "metadata builders of GDN, Mamba 2 and Triton attention; greedy and rejection sampler",
)
REPLACED = (
    "the model's layers: stand-ins that keep, in vLLM's own KV tensors and at the places that vLLM's metadata names, "
    "an exact digest of the tokens behind each state, key and value; the next token is a function of that digest",
    "the drafter: it proposes as many right and wrong drafts as the scenario states",
    "the interpreter of the model runner's Triton kernels (their source is vLLM's)",
)
GRAPHS = (
    "CUDA graphs: vLLM dispatches, pads and fills its buffers; a replay runs the stand-in layers on what was captured",
)
DEVICE_OWN = (
    "model classes with generated weights, their Triton kernels and CUDA graphs",
    "scheduler, KV cache manager, block pool, model runner, metadata builders, samplers",
)
DEVICE_REPLACED = (
    "sampled tokens (chosen by hybridfuzz, so that the scenario repeats) and drafts",
    "checkpoint loading, memory profiling and warm-up; EngineCore and Worker processes",
)


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return the server for a trace of a release."""
    del variant
    config = trace.config
    v2_is_default = _release(version) >= V2_DEFAULT_SINCE
    stood_in = version.partition("stood in: ")[2]
    graphs = GRAPHS if has_graphs(config) and not device else ()
    options = options_of(config)
    offloading = (OFFLOADING, *((FILES,) if has_files(config) else ()))
    simple = (SIMPLY, *((DISK,) if has_disk(config) else ()))
    connector = {"none": (), "offloading": offloading, "simple_cpu": simple}.get(options.connector, (CONNECTOR,))
    model = model_of(trace)
    flags = (*_weights(model), *_flags(trace, model, _release(version)))
    return Deployment(
        title="vLLM",
        unserved=STREAMING * any(isinstance(event, Arrive) and event.session for event in trace.events)
        or WINDOWS * any(group.window for group in config.groups),
        declines=dict(_declines(options)),
        command=("vllm", "serve", model.checkpoint),
        flags=flags,
        variables={
            "VLLM_USE_V2_MODEL_RUNNER": "1" if is_v2(config) else "0",
            **({"VLLM_SSM_CONV_STATE_LAYOUT": "DS"} if windows_are_last(config) else {}),
        },
        scaled=tuple(_scaled(trace)),
        implementations=(
            Implementation("V2 model runner", {"runner": "v2"}, v2_is_default),
            Implementation("V1 model runner", {"runner": "v1"}, not v2_is_default),
        ),
        unusual=tuple(flag for flag in flags if flag in UNUSUAL),
        scheduling=SCHEDULING,
        own=DEVICE_OWN if device else OWN,
        replaced=(*DEVICE_REPLACED, *(stood_in.split("; ") if stood_in else ()))
        if device
        else (*REPLACED, *connector, *graphs),
        packages=("torch", "triton", "transformers", "numpy"),
        environment=("-c", COLLECT_ENV),
        tracker="https://github.com/vllm-project/vllm/issues",
        words=WORDS,
        phrases=PHRASES,
        form=FORM,
        sizes=tuple(_sizes(config)),
        notes=tuple(_notes(trace, model, not device)),
        model=model.layer,
        architecture=model.architecture,
        scale=SCALE,
        limits=_limits(config),
        client=_client(trace),
        is_stood_in=not device,
    )


def model_of(trace: Trace) -> Model:
    """Return the model whose server a trace stands for: one that takes images, if its prompts have any."""
    mixer = options_of(trace.config).mixer
    return IMAGE_MODELS.get(mixer, MODELS[mixer]) if "images" in needed_kinds(trace.events) else MODELS[mixer]


def _release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; for a checkout without one, a release whose default runner is V2."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    return found if any(found) else V2_DEFAULT_SINCE


def _flags(trace: Trace, model: Model, release: tuple[int, int]) -> Iterator[str]:
    config, k = trace.config, trace.config.num_speculative_tokens
    options = options_of(config)
    if config.enable_prefix_caching:
        yield "--enable-prefix-caching"
        if release < MODE_FOLLOWS_SINCE:
            yield from ("--mamba-cache-mode", config.mamba_cache_mode)
        if options.retention == "dense":
            yield from ("--prefix-cache-retention-interval", "None")
        if options.retention == "junctions":
            yield "--enable-mamba-shared-prefix-checkpoint"
        if options.prefix_match_unit:
            yield from ("--prefix-match-unit", str(options.prefix_match_unit))
    else:
        yield "--no-enable-prefix-caching"
    if k:
        method = _speculation(config, model)
        if release >= LOOKAHEAD_SINCE and has_eagle_rules(config) and options.hashing == "plain":
            method["disable_lookahead_block_hashes"] = True
        yield from ("--speculative-config", json.dumps(method))
    yield SCHEDULING[not schedules_asynchronously(config)]
    if stages(config) > 1:
        yield from ("--pipeline-parallel-size", str(stages(config)))
    if config.policy != "fcfs":
        yield from ("--scheduling-policy", config.policy)
    if config.long_prefill_token_threshold:
        yield from ("--long-prefill-token-threshold", str(_threshold(config)))
    if options.prefills == "spaced":
        yield from ("--prefill-schedule-interval", str(PREFILL_INTERVAL), "--long-prefill-token-threshold-adaptive")
    if options.admission == "chunk":
        yield "--no-scheduler-reserve-full-isl"
    if reports_all(config):
        yield from ("--kv-events-config", json.dumps({"enable_kv_cache_events": True}))
        yield from ("--kv-cache-metrics", "--kv-cache-metrics-sample", "1.0")
        if k:
            yield from ("--per-request-spec-decode-metrics", "detailed")
    if has_adapters(config):
        yield "--enable-lora"
    if has_reasoning(trace.events):
        yield from ("--reasoning-parser", PARSER)
    if entries := ring_entries(config):
        yield from ("--use-replayssm", "--replayssm-buffer-len", str(entries))
    if has_graphs(config):
        yield from ("--compilation-config", json.dumps({"cudagraph_mode": "FULL_DECODE_ONLY"}))
    else:
        yield EAGER
    if options.connector != "none":
        fails = any(isinstance(event, ExternalLoad) and event.breaks_off for event in trace.events)
        name = FAILING if fails and options.connector == "store" else CONNECTORS[options.connector]
        policy = options.load_failure
        transfer: dict[str, object] = {"kv_connector": name, "kv_role": "kv_both", "kv_load_failure_policy": policy}
        if name == CONNECTORS["offloading"]:
            syncs = options.connector == "sync" or (offloads(config) and options.offload == "sync")
            own = {"eviction_policy": options.eviction, "offload_prompt_only": options.offload != "all"}
            transfer["kv_connector_extra_config"] = {
                "cpu_bytes_to_use": HOST_BYTES,  # it does not start without
                **(own if offloads(config) else {}),
                **({"sync_load_budget_bytes": SYNC_BUDGET} if syncs else {}),
                **(TIERS if has_files(config) else {}),
            }
        elif offloads_simply(config):
            disk = {"kv_offload_backend": "disk", "disk_path": "/tmp/kv", "disk_capacity_bytes": HOST_BYTES}
            transfer["kv_connector_extra_config"] = {
                "cpu_bytes_to_use": HOST_BYTES,
                **({"lazy_offload": True} if options.lazy_offload == "yes" else {}),
                **(disk if has_disk(config) else {}),
            }
        yield from ("--kv-transfer-config", json.dumps(transfer))
    if has_peer(config) or any(isinstance(event, DummyRun) for event in trace.events):
        yield from ("--data-parallel-size", str(max(rank_count(config), 2)))


STREAMING = (
    "Turns of a session are inputs of one call of `AsyncLLM.generate` (an async generator of `StreamingInput`, with "
    "`resumable` requests behind it); the completions endpoint has none."
)


WINDOWS = (
    "The model of the script has layers with a sliding window beside its states, as vLLM's Nemotron-H takes them. No "
    "checkpoint is named, since none of that kind is known here."
)


def _declines(options: Options) -> Iterator[tuple[str, str]]:
    """Yield the calls whose exceptions `EngineCore._invoke_utility_method` catches. A reset behind a pause also runs
    steps, whose exceptions end the engine."""
    yield tag_of(ResetEncoderCache), "POST /reset_encoder_cache"
    if options.reset == "direct":
        yield tag_of(ResetPrefixCache), "POST /reset_prefix_cache"


def _speculation(config: Config, model: Model) -> dict[str, object]:
    """Return a drafter that has EAGLE's rules if the trace asks for them, and that the runner supports."""
    if has_eagle_rules(config):
        method: dict[str, object] = {"method": "mtp"} if model.has_mtp else {"method": "eagle3", "model": DRAFTER}
    else:  # V1 schedules ahead of its drafts only if they are on the device
        kind = "ngram_gpu" if schedules_asynchronously(config) and not is_v2(config) else "ngram"
        method = {"method": kind, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    return {**method, "num_speculative_tokens": config.num_speculative_tokens}


def _weights(model: Model) -> Iterator[str]:
    """Yield flags that make a large model fit one GPU: few layers, random weights."""
    if model.layers:
        overrides = json.dumps({"num_hidden_layers": model.layers})
        yield from ("--load-format", "dummy", "--hf-overrides", overrides)


def _threshold(config: Config) -> int:
    return min(config.long_prefill_token_threshold, config.max_model_len)


def _limits(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the flags of what limits a step, the pool and a length."""
    tokens = max(config.max_num_batched_tokens, config.max_num_seqs * (config.num_speculative_tokens + 1))
    return {
        "max_num_batched_tokens": ("--max-num-batched-tokens", str(tokens)),
        "max_num_seqs": ("--max-num-seqs", str(config.max_num_seqs)),
        "num_blocks": ("--num-gpu-blocks-override", str(config.num_blocks)),
        "max_model_len": ("--max-model-len", str(config.max_model_len)),
    }


def _sizes(config: Config) -> Iterator[str]:
    """Yield the trace's sizes as flags."""
    k, unit = config.num_speculative_tokens, options_of(config).prefix_match_unit
    yield from (part for flags in _limits(config).values() for part in flags)
    if config.long_prefill_token_threshold:
        yield from ("--long-prefill-token-threshold", str(_threshold(config)))
    if config.enable_prefix_caching and unit:
        yield from ("--prefix-match-unit", str(unit))
    if has_graphs(config):
        sizes = sorted({rows * (k + 1) for rows in config.graph_sizes})
        yield from ("--cudagraph-capture-sizes", *map(str, sizes))


def _client(trace: Trace) -> Client:
    """Return what clients send to a server's /v1/completions."""
    calls = dict(calls_of(trace.events, _fields, partial(_other_calls, trace.config)))
    return Client(COMPLETIONS, ANSWER_OF_COMPLETION, calls, tuple(_forced(trace)))


def _fields(event: Turn, samples: int) -> dict[str, object] | None:
    """Return the fields of a `CompletionRequest`."""
    if isinstance(event, Resume) or event.session:
        return None
    found: dict[str, object] = {"n": samples} if samples > 1 else {}
    found |= {"priority": event.priority} if event.priority else {}
    found |= {"prompt_logprobs": 1} if event.prompt_logprobs else {}
    found |= {"min_tokens": least} if (least := least_tokens(event)) else {}
    found |= {"structured_outputs": {"regex": ".*"}} if event.structured else {}
    found |= {"structured_outputs": {"regex": "("}} if event.bad_grammar else {}
    kind, _, name = event.prompt[0][0].partition(".")
    return found | ({"cache_salt": name} if kind == "salt" and name else {})


def _other_calls(config: Config, event: Event) -> Iterator[str]:
    if isinstance(event, Turn) and (isinstance(event, Resume) or event.session):
        yield f"# {variable(event.name)}: a turn of a session (below)"
    elif isinstance(event, ResetPrefixCache):
        chosen = ("reset_running_requests",) * event.preempt_running + ("reset_external",) * offloads(config)
        more = "?" * bool(chosen) + "&".join(f"{name}=true" for name in chosen)
        yield f'await client.post(f"{{URL}}/reset_prefix_cache{more}", cast_to=object)'
    elif isinstance(event, ResetEncoderCache):
        yield 'await client.post(f"{URL}/reset_encoder_cache", cast_to=object)'
    elif isinstance(event, ExternalLoad) and offloads(config):
        yield f"# Transfers for {variable(event.name)} take {event.delay + 1} steps, unless vLLM waits for them."
    elif isinstance(event, ExternalLoad):
        yield f"# The KV connector has the first {event.length} tokens of {variable(event.name)}'s prompt from here on."
    elif isinstance(event, DummyRun):
        yield "# This data-parallel rank is idle, while the other one decodes."
    elif isinstance(event, Evict):
        yield "# Other prompts fill the free blocks, so that older ones lose their keys."


def _forced(trace: Trace) -> Iterator[str]:
    """Yield what the scenario decides itself, and when a server gets there."""
    config, events = trace.config, trace.events
    kinds = {type(event) for event in events}
    if Preempt in kinds:
        yield (
            "the script preempts a request by name; a server does when its pool runs out of blocks: lower "
            "--num-gpu-blocks-override until vllm:num_preemptions counts"
        )
    if Evict in kinds:
        yield "the script evicts free blocks; on a server other prompts do that as they fill the pool"
    if any(isinstance(event, Step) and event.budget for event in events):
        yield "the script limits the tokens of single steps; on a server other requests take the rest of the budget"
    if any(isinstance(event, Step) and event.chunks for event in events):
        yield "the script limits the chunk of a request; a server splits there when the rest of the step is taken"
    if config.num_speculative_tokens and has_drafts(events):
        yield "drafts are right or wrong as the script says; a server's come from its drafter"
    if options_of(config).connector not in OWN_CONNECTORS:
        yield "the script says what the KV connector's store holds, and how long a load takes"
    if DummyRun in kinds:
        yield "the script makes a data-parallel dummy run; a server's rank does while it is idle and others are not"


def _notes(trace: Trace, model: Model, is_stood_in: bool) -> Iterator[str]:
    config, events = trace.config, trace.events
    where = "MODEL" if model.checkpoint.startswith('"$') else model.checkpoint
    if is_stood_in:
        yield f"stand-ins replace the state layers ({model.layer}, as in {where}: vLLM's {model.architecture})"
    else:
        yield f"the state layers are {model.layer}, as in {where}: vLLM's {model.architecture}"
    for kind in (ResetPrefixCache, ResetEncoderCache):
        if any(isinstance(event, kind) for event in events):
            yield f"POST /{tag_of(kind)} needs VLLM_SERVER_DEV_MODE=1"
    if not all(is_text(event) for event in events if isinstance(event, Turn)):
        yield (
            "parts of a prompt that are called image, adapter or salt: send an image, the adapter's name as model, or "
            "`cache_salt`"
        )
    if model.layers:
        yield (
            f"random weights and {model.layers} layers fit one GPU; compare each answer with that of the same request "
            "alone, or leave both flags out and serve the checkpoint"
        )
    if config.num_speculative_tokens and _speculation(config, model).get("model") == DRAFTER:
        yield "DRAFTER is a checkpoint of an EAGLE drafter for the model"
    if has_reasoning(trace.events):
        yield (
            f"replace {PARSER} by the reasoning parser of your model; prompts of requests with reasoning end inside an "
            "open block of reasoning, the other prompts behind a closed one"
        )
    if options_of(config).tier == "faults" and offloads(config):
        yield "while the server runs, something else removes files below `root_dir`, or cuts them off"
    if options_of(config).connector not in OWN_CONNECTORS:
        yield "the KV connector needs the settings of your store or peer in kv_connector_extra_config"


def _scaled(trace: Trace) -> Iterator[str]:
    config = trace.config
    sizes = dict.fromkeys(group.block_size for group in config.groups)
    tokens = " and ".join(map(str, sizes))
    yield f"blocks of {tokens} tokens; on a GPU vLLM derives the block size from the size of a state"
    if offloads(config) or offloads_simply(config):
        yield "host or file hold a few blocks, so that some are evicted; the scenario says how long a transfer takes"
    elif options_of(config).connector != "none":
        yield "hits, delays and failures of the KV connector are given by the scenario; a server's come from its store"
