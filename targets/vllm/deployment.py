"""The vLLM server that a trace's configuration stands for. Importable without vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from ..base.deployment import Deployment, Implementation
from ..base.trace import Config, DummyRun, ExternalLoad, Trace
from .options import PREFILL_INTERVAL, has_graphs, has_peer, is_v2, reports_all, schedules_asynchronously, stages

MODELS = {
    "gdn": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "mamba2": "ibm-granite/granite-4.0-h-tiny",
    "mamba1": "ai21labs/AI21-Jamba-Mini-1.7",
    "short_conv": "LiquidAI/LFM2-1.2B",
    "linear": "inclusionAI/Ring-2.5-1T",
}
"""A public model for each kind of state layer."""
CONNECTORS = {"store": "OffloadingConnector", "transfer": "NixlConnector"}
"""vLLM's own connector that serves requests in the same way, by the option `connector`."""
FAILING = "MooncakeStoreConnector"
"""The one for `store` if loads fail: OffloadingConnector asserts that they do not."""
UNUSUAL = frozenset(
    {
        "--prefix-match-unit",
        "--speculative-config",
        "--kv-transfer-config",
        "--kv-events-config",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--prefill-schedule-interval",
        "--prefix-cache-retention-interval",
    }
)
"""Flags that choose other code of the cache and the scheduler than a server has by default."""
CONNECTOR = (
    "the KV connector: made by vLLM's factory and called through vLLM's connector API; the scenario states what its "
    "store holds, how long a load takes and whether it fails"
)
V2_DEFAULT_SINCE = (0, 28)
"""vLLM #53183."""
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
    connector = (CONNECTOR,) if config.options.get("connector", "none") != "none" else ()
    flags = tuple(_flags(trace))
    return Deployment(
        title="vLLM",
        command=("vllm", "serve", MODELS[config.options.get("mixer", "gdn")]),
        flags=flags,
        variables={"VLLM_USE_V2_MODEL_RUNNER": "1" if is_v2(config) else "0"},
        scaled=tuple(_scaled(config)),
        implementations=(
            Implementation("V2 model runner", {"runner": "v2"}, v2_is_default),
            Implementation("V1 model runner", {"runner": "v1"}, not v2_is_default),
        ),
        unusual=tuple(flag for flag in flags if flag in UNUSUAL),
        own=DEVICE_OWN if device else OWN,
        replaced=(*DEVICE_REPLACED, *(stood_in.split("; ") if stood_in else ()))
        if device
        else (*REPLACED, *connector, *graphs),
        packages=("torch", "triton", "transformers", "numpy"),
        tracker="https://github.com/vllm-project/vllm/issues",
    )


def _release(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version; for a checkout without one, a release whose default runner is V2."""
    match = re.match(r"(\d+)\.(\d+)", version)
    found = (int(match[1]), int(match[2])) if match else (0, 0)
    return found if any(found) else V2_DEFAULT_SINCE


def _flags(trace: Trace) -> Iterator[str]:
    config, k = trace.config, trace.config.num_speculative_tokens
    if config.enable_prefix_caching:
        yield from ("--enable-prefix-caching", "--mamba-cache-mode", config.mamba_cache_mode)
        if config.options.get("retention", "dense") == "dense":
            yield from ("--prefix-cache-retention-interval", "None")
        if config.options.get("prefix_match_unit", "0") != "0":
            yield from ("--prefix-match-unit", config.options["prefix_match_unit"])
    else:
        yield "--no-enable-prefix-caching"
    if k:
        method = "mtp" if config.eagle_block_drop else "ngram"
        speculation: dict[str, object] = {"method": method, "num_speculative_tokens": k}
        if method == "ngram":
            speculation |= {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
        yield from ("--speculative-config", json.dumps(speculation))
    yield "--async-scheduling" if schedules_asynchronously(config) else "--no-async-scheduling"
    if stages(config) > 1:
        yield from ("--pipeline-parallel-size", str(stages(config)))
    yield from ("--scheduling-policy", config.policy)
    yield from ("--max-model-len", str(config.max_model_len), "--max-num-seqs", str(config.max_num_seqs))
    yield from ("--max-num-batched-tokens", str(max(config.max_num_batched_tokens, config.max_num_seqs * (k + 1))))
    if config.long_prefill_token_threshold:
        threshold = min(config.long_prefill_token_threshold, config.max_model_len)
        yield from ("--long-prefill-token-threshold", str(threshold))
    if config.options.get("prefills", "eager") == "spaced":
        yield from ("--prefill-schedule-interval", str(PREFILL_INTERVAL), "--long-prefill-token-threshold-adaptive")
    if reports_all(config):
        yield from ("--kv-events-config", json.dumps({"enable_kv_cache_events": True}), "--kv-cache-metrics")
    yield from ("--num-gpu-blocks-override", str(config.num_blocks))
    if has_graphs(config):
        sizes = sorted({rows * (k + 1) for rows in config.graph_sizes})
        graphs = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}
        yield from ("--compilation-config", json.dumps(graphs))
    else:
        yield "--enforce-eager"
    connector = config.options.get("connector", "none")
    if connector != "none":
        policy = config.options.get("load_failure", "recompute")
        fails = any(isinstance(event, ExternalLoad) and event.breaks_off for event in trace.events)
        name = FAILING if fails and connector == "store" else CONNECTORS[connector]
        transfer = {"kv_connector": name, "kv_role": "kv_both", "kv_load_failure_policy": policy}
        yield from ("--kv-transfer-config", json.dumps(transfer))
    if has_peer(config) or any(isinstance(event, DummyRun) for event in trace.events):
        yield from ("--data-parallel-size", "2")


def _scaled(config: Config) -> Iterator[str]:
    sizes = dict.fromkeys(group.block_size for group in config.groups)
    tokens = " and ".join(map(str, sizes))
    yield f"blocks of {tokens} tokens; on a GPU vLLM derives the block size from the size of a state"
    if config.options.get("connector", "none") != "none":
        yield "hits, delays and failures of the KV connector are given by the scenario; a server's come from its store"
    if config.num_speculative_tokens:
        yield "drafts are given by the scenario; a server's come from its drafter"
    yield "budgets and chunk limits of single steps are given by the scenario; a server's depend on its load"
