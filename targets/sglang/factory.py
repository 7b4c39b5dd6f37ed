"""The SGLang target's capabilities. Importable without SGLang: the rest is imported when an engine is opened."""

from __future__ import annotations

import msgspec

from ..base.protocol import Capabilities, Observation, Target, TargetError
from ..base.releases import cannot_import
from ..base.stock import Setting
from ..base.trace import Config
from .kit_limits import BOTH, Case, options_of, refusal

STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")
TREE_CORES = ("python", "rust")
"""Of the latest release; "legacy" is the cache that older ones have."""
EVENTS = frozenset({"arrive", "step", "preempt", "abort", "reset_prefix_cache", "evict"})
OBSERVES = frozenset[Observation]({"pool", "tables", "accesses", "content", "device_order", "leftovers"})
SESSIONS = "sessions"
STOCK = (
    Setting("--enable-streaming-session", events=frozenset({"resume"}), is_rare=True),
    Setting("POST /flush_cache", events=frozenset({"reset_prefix_cache"})),
    Setting("a retraction at a moment that the scenario chooses", events=frozenset({"preempt"})),
    Setting("--mamba-radix-cache-strategy", {"strategy": "extra_buffer"}),
    Setting("--disable-overlap-schedule", {"async_depth": "1"}),
    Setting("--disable-radix-cache", {"mamba_cache_mode": "slots", "enable_prefix_caching": "true"}),
    Setting("--speculative-algorithm", {"num_speculative_tokens": "0"}, is_common=True),
)
"""What 0.5.23 runs for a model with gated delta nets on a GPU, where nothing is set: the strategy "auto" becomes
extra_buffer wherever overlap is on (`srt/arg_groups/overrides.py`). Sizes of pools, pages and tracks are left as they
are."""
MIXED = (
    Setting("--attn-dp-size", {"dp": "1"}, events=frozenset({"dummy_run"})),
    Setting("POST /pause_generation", events=frozenset({"pause"})),
    Setting("--enable-mixed-chunk", {"mixed_chunk": "no"}),
    Setting("--enable-priority-scheduling", {"policy": "fcfs"}),
    Setting("--schedule-policy", {"order": "fcfs"}),
    Setting("--retraction-policy", {"retraction": "length"}, is_rare=True),
    Setting("--prefill-max-requests", {"prefill_rows": "0"}, is_rare=True),
    Setting("--schedule-conservativeness", {"conservativeness": "1"}),
    Setting("--prefill-decode-interval", {"prefill_interval": "0"}, is_rare=True),
    Setting(
        "--enable-prefill-delayer",
        {"delay": "no"},
        {
            "queue": "--enable-prefill-delayer with --prefill-delayer-queue-min-ratio",
            "free": "--min-free-slots-delay",
        },
        is_rare=True,
    ),
    Setting("--disable-priority-preemption", {"preempts": "yes"}, is_rare=True),
    Setting("--chunked-prefill-size -1", {"chunked": "yes"}, is_rare=True),
    Setting("--radix-eviction-policy", {"eviction": "lru"}, is_rare=True),
    Setting("--enable-linear-replayssm", {"replay": "0"}, is_rare=True),
    Setting("--enable-int8-mamba-checkpoint", {"int8_checkpoints": "no"}, is_rare=True),
    Setting("--mamba-max-states-per-path", {"path_states": "-1"}, is_rare=True),
    Setting("SGLANG_OPT_RELEASE_PREFILL_SWA", {"early_unlock": "no"}, is_rare=True),
    Setting(
        "--enable-custom-logit-processor",
        {"logits": "plain"},
        {"shaped": "logit_bias or --enable-custom-logit-processor"},
        rare=frozenset({"processors"}),
    ),
    Setting("--disaggregation-mode", {"disaggregation": "no"}),
    Setting("--enable-session-radix-cache", {"session_tags": "no"}, is_rare=True),
    Setting(
        "--enable-unified-memory",
        {"unified_memory": "no"},
        {"eager": "--enable-unified-memory with SGLANG_DISABLE_LAZY_COMPACTION"},
        rare=frozenset({"eager"}),
    ),
    Setting(
        "inputs",
        {"inputs": "tokens"},
        {
            "images": "images in prompts",
            "adapters": "--enable-lora or cache_salt",
            "tenants": "extra_key beside --enable-lora or cache_salt",
        },
    ),
)
"""Only of releases that are driven with them."""
HOST_TIER = (
    Setting("--enable-hierarchical-cache", {"hicache": "no"}),
    Setting("--hicache-mem-layout", {"host_layout": "page_first"}),
)
"""Only with a core that shows what is on the host."""
BEHIND_HOST = (
    Setting("--hicache-storage-backend", {"storage": "no"}),
    Setting("--hicache-host-memory-mode", {"host_mode": "cache"}),
    Setting("PUT and DELETE /hicache/storage-backend", events=frozenset({"switch_storage"})),
    Setting("POST /hicache/storage-backend/clear", {"storage_cleared": "no"}, is_rare=True),
    Setting("hicache_storage_pass_prefix_keys", {"prefix_keys": "no"}, is_rare=True),
    Setting("hicache_write_policy of PUT /hicache/storage-backend", {"attach_policy": "same"}, is_rare=True),
)
"""Only where SGLang's hash of pages can be compiled."""
POLICIES = ("write_through", "write_through_selective", "write_back")
ASKED = frozenset({"images", "adapters", "structured-output", "failing-grammars", "prompt-logprobs", "logprobs-from"})
ASKED |= {"reasoning"}
"""Features of requests that are driven since the same release as `MIXED`."""
TREES = frozenset({"draft-trees"})
"""Feature of drafts more than one of which may follow the same token."""
SERVES_WHOLE = frozenset({"long-answers", "preempt", "preemption", "padding", "stop-tokens"})
SERVES_WHOLE |= {"stop-strings", "min-tokens", "speculation"}
"""What a server has that decodes."""
COMPUTES = frozenset({"prompts", "chunked-prefill", "zeroing", "images", "adapters", "logprobs-from"})
"""What a server has that computes prompts."""
SENDS, ARRIVES = frozenset({"sends"}), frozenset({"async-loads"})
"""What a prefill server has; what a decode server has: content arrives for requests that wait."""
COPIED = frozenset({"copied-states"})
"""Features with int8 checkpoints."""
HOST, STORED = frozenset({"stores", "loads-back"}), frozenset({"storage"})
"""Features with HiCache, and with a storage behind it."""
SERVING = {
    "mixed_chunk": ("no", "yes"),
    "order": ("fcfs", "fcfs", "lpm", "dfs-weight", "lof", "hrrn", "shortest-prefill-first", "routing-key", "random"),
    "retraction": ("length", "priority"),
    "prefill_rows": ("0", "0", "0", "1"),
    "eviction": ("lru", "lru", "lru", "lfu", "slru", "tlru", "priority"),
    "path_states": ("-1", "-1", "1", "2"),
    "session_tags": ("no", "yes"),
    "ignore_eos": ("no", "no", "yes"),
    "conservativeness": ("1", "1", "0.14", "0"),
    "prefill_interval": ("0", "0", "0", "2"),
    "delay": ("no", "no", "slots", "no", "queue", "no", "slots", "free", "queue"),
    "preempts": ("yes", "yes", "no"),
    "chunked": ("yes", "yes", "yes", "yes", "yes", "no"),
    "drafter": ("eagle", "ngram"),
    "breadth": ("1", "1", "1", "1", "1", "1", "1", "2", "3"),
    "matches": ("full", "full", "full", "short"),
    "sampled": ("no", "target", "no", "target", "rejection", "no", "block"),
    "logits": (*("plain", "shaped") * 4, "plain", "processors"),
    "window_ratio": ("1", "0.5"),
    "early_unlock": ("no", "no", "no", "yes"),
    "state_layers": ("gdn", "gdn", "mamba2"),
    "unified_memory": ("no", "lazy", "no", "lazy", "eager"),
    "inputs": ("tokens", "tokens", "tokens", "tokens", "images", "adapters", "tenants"),
    "replay": ("0", "0", "0", "0", "0", "0", "0", "3", "0", "0", "0", "0", "0", "0", "0", "6"),
    "int8_checkpoints": ("no", "few", "no", "default"),
    "disaggregation": ("no", "no", "no", "prefill", "no", "no", "no", "no", "no", "decode"),
}
"""Options of such releases: `--enable-mixed-chunk`, `--schedule-policy`, `--retraction-policy`,
`--prefill-max-requests` ("0": any number), `--radix-eviction-policy`,
`--mamba-max-states-per-path`, `--enable-session-radix-cache`, `ignore_eos` of requests, the share of an answer that
admission reserves (`--schedule-conservativeness`: after 600 decodes a server with 1 is where one with 0.14 begins),
`--prefill-decode-interval`, what holds prompts back while requests decode (`--enable-prefill-delayer`, with
`--prefill-delayer-queue-min-ratio`, `--min-free-slots-delay`), `--disable-priority-preemption` and
`--chunked-prefill-size -1`, what makes drafts (`--speculative-algorithm`), how many of them may follow the same token
(`--speculative-eagle-topk`, `--speculative-ngram-max-bfs-breadth`), whether a match of n-grams is shorter than the
drafts, so that the rest is padding, how drafts are verified for requests with a temperature
(`--speculative-use-rejection-sampling`, `--speculative-use-block-verification`; "no": there are none), whether requests
rule out tokens that their answers do not need (`logit_bias`, `--enable-custom-logit-processor`),
`--swa-full-tokens-ratio`,
`SGLANG_OPT_RELEASE_PREFILL_SWA`, what the model's state layers are, whether keys, values and states share one memory
(`--enable-unified-memory`; "eager" with `SGLANG_DISABLE_LAZY_COMPACTION`: each free moves pages), what requests have
beside token ids, the entries of the ring with which a decode does not store its state
(`--linear-replayssm-cache-len` with `--enable-linear-replayssm`; 16 on a server), whether the tree keeps states in
int8, in slots of their own (`--enable-int8-mamba-checkpoint`; "few": `--int8-mamba-ckpt-size`), and which part of
serving the server has (`--disaggregation-mode`; "decode" with prefix caching has
`--disaggregation-decode-enable-radix-cache`)."""
TAKEN = {"strip_thinking": ("no", "yes"), "optimistic": ("0", "1", "2")}
"""Values that are not drawn: `--strip-thinking-cache` beside answers that are reasoning alone, with which SGLang frees
what the tree owns, and how often at most a prefill server computes a prompt whose decode server has not answered yet
(`--optimistic-prefill-attempts`), with which a requeued request's grammar is not reset (docs/explanation/sglang.md)."""
REFUSED = {"host_layout": ("layer_first",)}
"""Values that a server refuses, so that the reason is told (`kit_limits`)."""
KEYED = ("a", "adapter.b", "adapter.c", "salt.d")
DOCUMENTS = {"images": ("a", "image.b", "image.c"), "adapters": KEYED, "tenants": KEYED}
HIERARCHY = {
    "hicache": ("no", *POLICIES),
    "host_ratio": ("2", "1", "0.5"),
    "host_layout": ("page_first", "page_first", "page_first_direct"),
    "host_copies": ("early", "late", "slow"),
}
"""Options of the host tier, for trees whose core shows what is on the host: `--hicache-write-policy` ("no": no
HiCache), `--hicache-ratio`, `--hicache-mem-layout` with the `--hicache-io-backend` that fits, and when copies between
host and device run (host_copies.py)."""
STORAGE = {
    "storage": ("no", "file"),
    "host_mode": ("cache", "buffer"),
    "context_flag": ("yes", "no"),
    "prefetch": ("wait_complete", "timeout", "best_effort"),
    "storage_pace": ("all", "each", "one"),
    "storage_limits": ("no", "room", "faults"),
    "storage_cleared": ("no", "yes"),
    "prefix_keys": ("no", "yes"),
    "attach_policy": ("same", "same", *POLICIES),
}
"""Options of what is behind the host (`--hicache-storage-backend`): whether the host is a cache beside it or a buffer
(`--hicache-host-memory-mode`), whether the server is told a request's most tokens, on which a buffer's locks depend
(`--context-length`), when a request stops to wait for it (`--hicache-storage-prefetch-policy`), how fast, large and
reliable it is (storage.py), whether clients that flush the cache clear it (`POST /clear_hicache_storage_backend`),
whether it is told the hashes before a page (`hicache_storage_pass_prefix_keys`), and the policy with which clients
attach it again (`hicache_write_policy` of `PUT /hicache/storage-backend`).
"""
PRESSURE = {
    "strategy": ("no_buffer", "no_buffer", "extra_buffer"),
    "spare_states": ("0",),
    "conservativeness": ("0", "0.14"),
    "hicache": ("write_through", "write_through", "write_through_selective"),
    "host_copies": ("slow",),
    "storage": ("no",),
}
"""Values with which memory is short: few state slots for a request and none beyond those of the server, an admission
that reserves little or nothing for what answers still need, and a host to which what is published is copied, mostly at
once, by copies that last and lock it. Without a storage, with which what is evicted leaves the host, too."""
TOGETHER = (
    ("window", "unified_memory"),
    ("window", "unified_memory"),
    ("window", "unified_memory"),
    ("window", "breadth", "drafts"),
    *(("disaggregation",),) * 6,
)
"""The code of the first two is that of neither alone (`allocator/unified_hybrid_swa.py`): as many configurations aim at
both as at three extras. Beside windows the accepted path of a tree is moved in two pools (`SWAKVPool`). A prefill or
decode server has event loops and queues of its own, and fits few other extras."""
DRAFTS = 3
"""Most drafts in a verification, for releases whose speculation the target can drive."""


class SglangFactory:
    """Opens engines of the SGLang that can be imported in this process."""

    def __init__(
        self,
        name: str,
        tree_core: str = "",
        tree_cores: tuple[str, ...] = TREE_CORES,
        drafts: int = DRAFTS,
        strategies: tuple[str, ...] = STRATEGIES,
        features: frozenset[str] = frozenset({"padding", "snapshots", "stop-strings", "min-tokens"}),
        sessions: bool = False,
        mixes: bool = False,
        hashes: bool = True,
    ) -> None:
        self.name = name
        self.tree_core = tree_core
        self.hashes = hashes
        has_host = mixes and tree_core not in ("rust", BOTH)
        has_storage = has_host and hashes
        stock = STOCK + MIXED * mixes + HOST_TIER * has_host + BEHIND_HOST * has_storage
        options = {
            # Half of what is drawn of no_buffer is refused: it needs pages of one token and no overlap.
            "strategy": ("no_buffer", *strategies),
            "tree_core": (tree_core,) if tree_core else tree_cores,
            "track": ("1", "2"),
            "spare_states": ("0", "0", "1", "2", "6"),
            **(SERVING if mixes else {}),
            **(HIERARCHY if has_host else {}),
            **(STORAGE if has_storage else {}),
        }
        host = (HOST if has_host else frozenset()) | (STORED if has_storage else frozenset())
        self.capabilities = Capabilities(
            events=EVENTS
            | ({"resume"} if sessions else set())
            | ({"dummy_run", "pause"} if mixes else set())
            | ({"switch_storage"} if has_storage else set()),
            modes=("slots", "slots", "none"),
            observes=OBSERVES | {"side_by_side"} if tree_core == BOTH else OBSERVES,
            # (grid of snapshots, KV page)
            block_sizes=((4, 1), (8, 1), (4, 4), (8, 4), (8, 2)),
            group_counts=((1, 1),),
            layers_per_group=(1, 2),
            max_speculative_tokens=drafts,
            speculative_modes=("slots", "none"),
            policies=("fcfs", "priority") if mixes else ("fcfs",),
            # Releases without snapshots allow overlap only without prefix cache, and then free a delayed token late.
            max_async_depth=1 if "snapshots" in features else 0,
            conv_widths=(4,),
            windows=(4, 8) if mixes and tree_core != "rust" else (),
            features=features
            | {"pool", "reset-when-idle", "stop-tokens"}
            | host
            | (ASKED | TREES | COPIED | SENDS | ARRIVES if mixes else frozenset())
            | (frozenset({"aborted-turns"}) if sessions else frozenset()),
            documents={"inputs": DOCUMENTS} if mixes else {},
            features_with=_features_with(mixes, host, tree_core, sessions),
            # "A relaxed version of penalties for speculative decoding": it counts verifications, not tokens.
            # Where a grammar allows nothing but a stop token that comes too early, its client gets an error.
            # Drafts that a grammar refuses are not cut before they are verified.
            lacks=frozenset({"least-beside-drafts", "least-by-grammar", "cut-drafts"}),
            engine=("sglang",),
            stock=stock if "snapshots" in features else None,
            has_server="snapshots" in features,
            options=options,
            together=TOGETHER if mixes and tree_core != "rust" else (),
            pressure={name: values for name, values in PRESSURE.items() if mixes and name in options},
            accepts={
                "tree_core": (*TREE_CORES, "legacy") if tree_core else (),
                **(TAKEN if mixes else {}),
                **(REFUSED if has_host else {}),
            },
        )

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        able = self.capabilities
        case = Case(
            config,
            options_of(config),
            self.tree_core,
            able.options["tree_core"],
            able.options["strategy"],
            able.max_async_depth,
            able.max_speculative_tokens,
            self.hashes,
        )
        return refusal("shadow", case)

    def open(self, config: Config) -> Target:
        """Build an engine for one trace."""
        from .target import SglangTarget

        if self.tree_core:
            config = msgspec.structs.replace(config, options={**config.options, "tree_core": self.tree_core})
        return SglangTarget(config)


def _features_with(
    mixes: bool, host: frozenset[str], tree_core: str, sessions: bool
) -> dict[str, dict[str, frozenset[str]]]:
    """Return the features that depend on options: `host`, those of the host tier, windows, trees of drafts, copied
    states, and what is driven on servers that have one part of serving."""
    whole, computes = (SERVES_WHOLE, COMPUTES) if mixes else (frozenset[str](), frozenset[str]())
    turns = frozenset({"resume", "aborted-turns"} if mixes and sessions else ())
    windows = frozenset({"sliding-window"}) if mixes and tree_core != "rust" else frozenset[str]()
    copied, trees = (COPIED, TREES) if mixes else (frozenset[str](), frozenset[str]())
    found = {
        "breadth": {value: trees for value in SERVING["breadth"] if value != "1"},
        "hicache": {**dict.fromkeys(POLICIES, host), "no": copied if host else frozenset[str]()},
        "storage": {"file": host & STORED},
        "host_mode": {"cache": host},
        "tree_core": {tree_core or "python": host | windows},
        "int8_checkpoints": {"no": host | windows, "few": copied, "default": copied},
        "unified_memory": {"no": copied | trees},
        "disaggregation": {
            "no": whole | trees | turns | computes | host | windows | copied,
            "prefill": SENDS | computes | host | windows | copied if mixes else frozenset[str](),
            "decode": ARRIVES | whole | trees if mixes else frozenset[str](),
        },
        "strategy": {strategy: windows for strategy in STRATEGIES if strategy != "no_buffer"},
    }
    return {option: values for option, values in found.items() if any(values.values())}


def variants() -> dict[str, str]:
    """Return the variants. `sglang:CORE@RELEASE` overrides a trace's tree core, for comparisons.

    `sglang:sessions@RELEASE` is the name that older findings and campaigns have for a release with streaming sessions.
    """
    cores = {core: f"always the {core} tree core" for core in TREE_CORES}
    cores[BOTH] = "both tree cores in one engine: every operation on both, every answer compared"
    return cores | {SESSIONS: "as without a variant; refuses releases without streaming sessions"}


def make_factory(variant: str) -> SglangFactory:
    """Return the factory, in a process of the engine's environment.

    Imports SGLang: ten seconds or more, before a campaign's clock starts.
    """
    from . import storage, stubs
    from .compat import old_releases, scheduler_api, session_api, tree_api

    try:
        stubs.install()
        from . import target

        tree_cores, strategies, features = tree_api.tree_cores(), old_releases.strategies(), old_releases.features()
        features |= frozenset({"stop-strings"}) if scheduler_api.finds_strings() else frozenset()
        features |= frozenset({"min-tokens"}) if scheduler_api.has_least_tokens() else frozenset()
        features |= frozenset({"drafts-past-length"}) if scheduler_api.speculates() else frozenset()
        drafts = DRAFTS if scheduler_api.speculates() else 0
        mixes = scheduler_api.is_driven_fully()
        hashes = mixes and storage.can_hash()
    except ImportError as error:
        raise cannot_import("SGLang", "sglang@0.5.23", error) from error
    del target
    sessions = session_api.has_sessions()
    if variant == SESSIONS and not sessions:
        raise TargetError("this SGLang has no sessions that the target can drive; use sglang@0.5.23")
    if variant == BOTH and not tree_api.has_both():
        raise TargetError("this SGLang has no two tree cores; use sglang:both@0.5.23")
    name, core = (f"sglang:{SESSIONS}", "") if variant == SESSIONS else ("sglang", variant)
    return SglangFactory(name, core, tree_cores, drafts, strategies, features, sessions, mixes, hashes)
