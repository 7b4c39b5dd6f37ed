"""What the vLLM target can do with a release: the events, options and features that are drawn."""

from __future__ import annotations

from ..base.protocol import Capabilities
from .kit_limits import CONV_WIDTHS
from .options import DEEPEST, SERVING
from .release import Release
from .stock import stock_of

_EVENTS = frozenset({"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict"})
_CONNECTORS = ("none", "none", "store", "transfer")
ALL_CONNECTORS = ("none", "none", "none", "store", "transfer", "sync", "none", "offloading", "offloading")
SIMPLE = ("none", "simple_cpu", "simple_cpu")
"""Further values of `connector` where vLLM has SimpleCPUOffloadConnector, and its options."""
SIMPLE_OPTIONS = {"lazy_offload": ("no", "no", "yes"), "kv_offload_backend": ("cpu", "cpu", "disk")}
OFFLOADING = {"eviction": ("lru", "arc"), "offload": ("prompts", "all", "sync")}
TIERS = ("none", "none", "files", "faults")
REPLAYS = ("0", "0", "3", "6")
CONV_LAYOUTS = ("SD", "SD", "DS")
SAMPLING = ("greedy", "greedy", "greedy", "greedy", "varied")
DOCUMENTS = {"images": ("a", "image.b", "image.c"), "adapters": ("a", "adapter.b", "adapter.c", "salt.d")}
_LOADS = frozenset({"stores", "async-loads", "chosen-loads", "failing-loads"})
CONNECTED = {
    "store": _LOADS,
    "transfer": _LOADS | {"held-for-transfer"},
    "sync": _LOADS | {"sync-loads"},
    "offloading": frozenset({"stores", "async-loads", "sync-loads", "evicts-stored"}),
    "simple_cpu": frozenset({"stores", "async-loads", "evicts-stored", "reloads"}),
}
"""Connector -> features that only some connectors have. What vLLM's own ones (the last two) load is what they stored,
and no load breaks off."""
_PARTIAL_HITS = {"prefix_match_unit": {unit: frozenset({"partial-hits"}) for unit in ("2", "4")}}
_OBSERVES = frozenset({"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers"})


def capabilities_of(release: Release) -> Capabilities:
    """Return what the target can do with a release."""
    connectors, inputs = release.connectors, release.inputs
    names = (*(ALL_CONNECTORS if release.offloads else _CONNECTORS), *(SIMPLE if release.offloads_simply else ()))
    # `kit_limits`: neither a drafter's own graphs nor any with chunked-local attention.
    groups_without_graphs = frozenset(
        ({"draft-group"} if release.draft_groups else set()) | ({"attention-chunks"} if release.local_groups else set())
    )
    plain = {"none": frozenset({"lookahead-hashes"})} if release.lookahead_hashes else {}
    connected = {name: CONNECTED[name] for name in names if name != "none" and connectors}
    # retention: the state of every boundary is published, or of those that vLLM chooses by default, or also
    # those where prompts fork.
    # hashing: with EAGLE's rules keys name the token behind their block, or hits lose their last block.
    # graphs: decode batches are padded to the trace's graph sizes and replayed, or everything is eager.
    # connector, load_failure: `kv_connector`, or vLLM's own (`offloading`); vLLM's policy for loads that fail.
    # eviction, offload: of `offloading` the policy of its tier, and what is stored, or loaded before a forward.
    # tier: behind its tier stand files, some of which another process removes or cuts off.
    # lazy_offload, kv_offload_backend: of `simple_cpu`: stored once near eviction, and where.
    # reports: statistics and KV events, of which a subscriber must learn what is cached (`cache_events`).
    # reset: between two steps, or once the scheduler was paused and the steps in flight have run.
    # prefills: as the budget allows, or every third step only, while others decode.
    # admission: a prompt starts if the pool has room for all of it, or for its first chunk.
    # pipeline: the steps in flight are those of two pipeline stages, with or without asynchronous scheduling.
    # data_parallel: rows of other ranks pad a batch by our rule, or by vLLM's coordination of two ranks.
    # inputs: prompts are token ids alone, or have images or LoRA adapters and salts (`inputs`).
    # sampling: greedy without parameters, or with parameters of each request's own (`sampling`).
    # replay: entries of the ring with which Mamba 2 decodes replay inputs (ReplaySSM) where vLLM takes it.
    # conv_layout: of a window the channels of each input lie together (SD), or the inputs of each channel (DS).
    # attention: kernels that load pages whole and multiply masked values by 0, or those that do not load them.
    options = {
        "runner": release.runners,
        **({"hashing": ("lookahead", "lookahead", "plain")} if release.lookahead_hashes else {}),
        "retention": ("dense", "default", *(("junctions",) if release.junctions else ())),
        "graphs": ("decode", "none") if release.graphs else ("none",),
        "mixer": release.mixers,
        "attention": ("flash", "triton"),
        **({"metadata": ("each", "each", "shared", "shared")} if release.shared_metadata else {}),
        **({"data_parallel": ("1", "2")} if release.coordinates else {}),
        **({"prefix_match_unit": ("0", "0", "0", "2", "4")} if release.partial_hits else {}),
        **({"connector": names} if connectors else {}),
        **({"load_failure": ("recompute", "fail")} if connectors else {}),
        **(OFFLOADING if connectors and release.offloads else {}),
        **({"tier": TIERS} if release.file_tier else {}),
        **(SERVING if release.serving_options else {}),
        **({"admission": ("prompt", "chunk")} if release.admits_chunks else {}),
        **({"replay": REPLAYS} if release.replays else {}),
        **({"conv_layout": CONV_LAYOUTS} if release.conv_layouts else {}),
        **({"sampling": SAMPLING} if release.sampling else {}),
        **({"inputs": ("tokens", "tokens", "tokens", "tokens", "images", "adapters")} if inputs else {}),
        **(SIMPLE_OPTIONS if release.offloads_simply else {}),
    }
    stock = stock_of(release, options)
    return Capabilities(
        events=_EVENTS
        | ({"external_load"} if connectors else set())
        | ({"resume"} if release.sessions else set())
        | ({"reset_encoder_cache"} if inputs else set()),
        modes=release.modes,
        observes=_OBSERVES,
        # The platform gives both kinds the same block size in align mode; the planner then enlarges attention
        # blocks where another group has larger pages.
        block_sizes=((4, 4), (8, 8), (16, 16), *(((8, 16), (4, 8)) if release.partial_hits else ())),
        # Groups are as large as the smaller bucket of equal layers: these divide evenly.
        group_counts=((1, 1), (2, 1), (3, 1), (1, 2)),
        layers_per_group=(1, 2),
        max_speculative_tokens=4,
        speculative_modes=release.speculative_modes,
        variable_drafts=True,
        max_async_depth=DEEPEST if release.serving_options else 1,
        depths={"pipeline": dict.fromkeys(set(SERVING["pipeline"]) - {"async"}, 1)} if release.serving_options else {},
        eagle_block_drop=True,
        windows=(5, 8, 13) if release.local_groups else (),
        attention_chunks=(1, 2, 3) if release.local_groups else (),
        draft_block_sizes=(4, 8, 16) if release.draft_groups else (),
        policies=("fcfs", "priority"),
        conv_widths=CONV_WIDTHS,
        options=options,
        accepts={"prefix_match_unit": ("8",)} if release.partial_hits else {},
        features=frozenset(
            {"block-tables", "padding"}
            | ({"lookahead-hashes"} if release.lookahead_hashes else set())
            | ({"stop-tokens"} if release.stop_tokens else set())
            | ({"stop-strings"} if release.stop_strings else set())
            | ({"min-tokens"} if release.min_tokens else set())
            | ({"prompt-logprobs"} if release.prompt_logprobs else set())
            | ({"structured-output", "failing-grammars"} if release.structured_output else set())
            | ({"reasoning"} if release.reasoning else set())
            | ({"samples"} if release.samples else set())
            | ({"partial-hits"} if release.partial_hits else set())
            | frozenset().union(*connected.values())
            | ({"storage"} if release.file_tier else set())
            | ({"images", "adapters"} if inputs else set())
        ),
        documents={"inputs": DOCUMENTS} if inputs else {},
        features_with={
            **(
                {"connector": connected | plain, "load_failure": {"fail": frozenset({"failing-loads"})}}
                if connectors
                else {}
            ),
            **(_PARTIAL_HITS if release.partial_hits else {}),
            **({"runner": {"v2": frozenset({"draft-group"})}} if release.draft_groups else {}),
            **({"hashing": {"lookahead": frozenset({"lookahead-hashes"})}} if release.lookahead_hashes else {}),
            **({"tier": dict.fromkeys(TIERS[2:], frozenset({"storage"}))} if release.file_tier else {}),
            "graphs": {"none": groups_without_graphs},
        },
        engine=("vllm",),
        stock=stock,
        has_server=stock is not None,
        lacks=frozenset({"strings-everywhere"} if release.zeroes else {"strings-everywhere", "zeroing"}),
    )
