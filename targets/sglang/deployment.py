"""The SGLang server that a trace's configuration stands for. Importable without SGLang."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..base.client_requests import ANSWER_OF_GENERATE, GENERATE, calls_of, variable
from ..base.deployment import Client, Deployment, Implementation, Scale
from ..base.issue_form import Form, Section
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Step,
    SwitchStorage,
    Trace,
    Turn,
    has_drafts,
    has_reasoning,
    least_tokens,
    logprob_start,
)
from .compat.sizes import (
    DELAYED,
    Sizes,
    eviction_config,
    routing_key_of,
    sizes_of,
    slots_with,
    storage_config,
    storage_request,
)
from .sampling import GREEDY, sampling_of


class Model(NamedTuple):
    """A model with one kind of state layer.

    layer         the kind of layer, in words
    architecture  its name in SGLang's model registry
    checkpoint    a public checkpoint of it; a shell variable where we know of none that can be verified
    few_layers    overrides of its configuration with which four layers are left, of all kinds that the caches know
    """

    layer: str
    architecture: str
    checkpoint: str
    few_layers: Mapping[str, Any] = {}


GDN = Model("gated delta nets", "Qwen3NextForCausalLM", "Qwen/Qwen3-Next-80B-A3B-Instruct", {"num_hidden_layers": 4})
"""The target checks the contract of its state layers."""
MAMBA2 = Model(
    "Mamba 2", "NemotronHForCausalLM", "nvidia/NVIDIA-Nemotron-Nano-9B-v2", {"hybrid_override_pattern": "M-M*"}
)
"""For traces that have such layers. Its configuration takes the number of layers from the pattern."""
WINDOWS = Model("convolution states beside sliding windows", "InklingForConditionalGeneration", '"$MODEL"')
"""For traces with sliding windows: the only architecture of 0.5.23 that has them beside states (`mamba2_config` and
`is_hybrid_swa_model`). Its states are convolution windows alone."""
ADAPTERS = ("--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "all")
OWN = (
    "scheduler (planning, admission, chunking, retraction, aborts), ScheduleBatch, Req, batch result processor",
    "UnifiedRadixCache with its tree cores, request and state pools, KV allocators",
    "linear-attention backend: planning and storing of prefill snapshots, commit of accepted and tracked states",
)
REPLACED = (
    "the model's layers: stand-ins that keep, in SGLang's own convolution, temporal and KV tensors, an exact digest of "
    "the tokens behind each state, key and value; the next token is a function of that digest",
    "one turn of event_loop_normal or event_loop_overlap, the choice of the request that is retracted, index "
    "kernels (in plain PyTorch), output to clients",
    "CUDA's streams, events and the replay of graphs: a model of them, where what may be late is as late as SGLang's "
    "own waits allow",
    "scheduler features that no scenario uses: switched off",
    "packages that SGLang imports and that are not installed, such as sgl_kernel: empty modules",
)
DRAFTS = {
    "ngram": "the n-gram corpus: drafts are as many right and wrong tokens as the scenario states",
    "eagle": "the draft model: it guesses from that digest of the target model; the scenario makes guesses wrong",
}
PEERS = {
    "decode": "the prefill server and the network: the right content is written to the places that the decode server "
    "names, some turns later",
    "prefill": "the decode server and the network: what the prefill server names is read from its registered buffers, "
    "at once or up to four turns later",
}
FLAGS = (
    ("eviction", "--radix-eviction-policy", "lru"),
    ("path_states", "--mamba-max-states-per-path", "-1"),
    ("hicache", "--hicache-write-policy", "no"),
)
"""Options of a trace that are flags of the server's prefix cache, with the server's own values."""
RETRACTS = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"}
"""SGLang's own switch: it retracts a request every so many forward passes."""
UNLOCKS = {"SGLANG_OPT_RELEASE_PREFILL_SWA": "1"}
EAGERLY = {"SGLANG_DISABLE_LAZY_COMPACTION": "1"}
RANKS = ("--tp-size", "2", "--attn-dp-size", "2")
"""Of a server on one of whose ranks the trace runs."""
SCALE = Scale(64, what="snapshot intervals")
"""The smallest grid of snapshots of a server's GDN model: the chunk of its prefill kernel."""
PHRASES = (
    (r"\b[Bb]lock (\d+) \(column \d+\)", r"Mamba slot \1"),
    (r"\b[Bb]lock(?= \d+\b.*\bstate\b)", "Mamba slot"),
    (r"\b[Bb]lock(?= \d)", "KV page"),
    (r"\bthe block was\b", "it was"),
    (r"\bcolumn (\d+) of (\S+) attention group \d+", r"KV page number \1 of \2 row in req_to_token"),
    (r"\bcolumn \d+ of (\S+) mamba group \d+", r"\1 Mamba slot"),
    (r"\bmamba group \d+", "the Mamba pool"),
    (r"\battention group \d+", "the KV pool"),
    (r"\bis published as depth (\d+) of", r"is in the radix tree as the end of the first \1 tokens of"),
    (r"\bas depth (\d+) of prefix \S+ in group \d+", r"as the end of the first \1 tokens of a prefix"),
    (r"\bis not published\b", "is not in the radix tree"),
    (r"\boutside the pool\b", "in host memory or storage"),
)
"""`Deployment.phrases`."""
FORM = Form(
    (
        Section(
            "Checklist",
            text="- [ ] I searched related issues but found no solution.\n"
            "- [ ] The bug persists in the latest version.\n"
            "- [ ] This has environment info and a minimal reproduction.\n"
            "- [ ] This is a bug report, not a general question.\n"
            "- [ ] This is in English.",
        ),
        Section("Describe the bug", ("bug", "cause")),
        Section("Reproduction", ("reproduction", "expected", "server", "more")),
        Section("Environment", ("environment",)),
    ),
    title="[Bug] ",
    collects="python3 -m sglang.check_env",
)
"""`.github/ISSUE_TEMPLATE/1-bug-report.yml`."""
EAGER = "--disable-cuda-graph"
PARSER = "qwen3"
"""A reasoning parser that SGLang registers: reasoning ends with `</think>`."""
SYNCHRONOUS = "--disable-overlap-schedule"
PAUSE = """await client.post(f"{URL}/pause_generation", cast_to=object, body={'mode': 'retract'})"""
CONTINUE = 'await client.post(f"{URL}/continue_generation", cast_to=object, body={})'
CLEAR = """await client.post(f"{URL}/hicache/storage-backend/clear", cast_to=object)"""
DETACH = """await client.delete(f"{URL}/hicache/storage-backend", cast_to=object)"""
ATTACH = """await client.put(f"{{URL}}/hicache/storage-backend", cast_to=object, body={!r})"""
WHEN_IDLE = "  # refused while requests run"
ADMIN = ("--admin-api-key", "-")
"""Without a key a server refuses both; "-" is the client's."""
WORDS = {
    "speculative decoding": "speculative",
    "priority scheduling": "priority",
    "preemption": "retract",
    "pause generation": "pause_generation",
    "reset prefix cache": "flush_cache",
    "session": "streaming session",
    "prefix caching": "radix cache",
    "async scheduling": "overlap schedule",
}
"""Terms that a report searches for -> how issues of SGLang write them."""
NOUNS = {"preempt": "retraction", "reset_prefix_cache": "flush of the cache"}
"""A preemption is another thing there: that of priority scheduling."""
CORES = ("rust", "python")
"""Cores of the radix tree; a server's default is Rust where it is built, otherwise Python."""


def deployment(variant: str, trace: Trace, version: str, device: str = "") -> Deployment:
    """Return the server for a trace of a release. A variant may fix the tree core."""
    del version, device
    config = trace.config
    core = variant if variant in CORES else config.options.get("tree_core", "")
    has_windows = any(group.window for group in config.groups)
    model = WINDOWS if has_windows else MAMBA2 if sizes_of(config).mamba2 else GDN
    cores = tuple(Implementation(f"{one.capitalize()} tree core", {"tree_core": one}, one == CORES[0]) for one in CORES)
    return Deployment(
        title="SGLang",
        command=("python", "-m", "sglang.launch_server", "--model-path", model.checkpoint),
        flags=(*_weights(model), *_flags(trace)),
        variables=_variables(trace, core),
        scaled=tuple(_scaled(config)),
        implementations=cores if core in CORES and not variant else (),
        own=OWN,
        replaced=(
            *REPLACED,
            *([DRAFTS[sizes_of(config).drafter]] if config.num_speculative_tokens else ()),
            *[text for part, text in PEERS.items() if part == sizes_of(config).disaggregation],
        ),
        packages=("torch", "triton", "transformers", "numpy"),
        environment=("-m", "sglang.check_env"),
        tracker="https://github.com/sgl-project/sglang/issues",
        features=("HiCache",) if sizes_of(config).hicache != "no" else (),
        words=WORDS,
        phrases=PHRASES,
        nouns=NOUNS,
        sources="python",
        form=FORM,
        sizes=tuple(_sizes(config)),
        notes=tuple(_notes(model)),
        model=model.layer,
        architecture=model.architecture,
        scale=SCALE,
        limits=_limits(config),
        scheduling=(SYNCHRONOUS,),
        client=_client(trace),
        is_stood_in=True,
    )


def _weights(model: Model) -> Iterator[str]:
    """Yield flags that make a large model fit one GPU: few layers, random weights."""
    if model.few_layers:
        yield from ("--load-format", "dummy", "--json-model-override-args", json.dumps(model.few_layers))


def _notes(model: Model) -> Iterator[str]:
    where = "MODEL" if model.checkpoint.startswith('"$') else model.checkpoint
    yield f"stand-ins replace the state layers ({model.layer}, as in {where}: SGLang's {model.architecture})"
    if model.few_layers:
        yield (
            "random weights and 4 layers fit one GPU; compare each answer with that of the same request alone, or "
            "leave both flags out and serve the checkpoint"
        )


def _variables(trace: Trace, core: str) -> Mapping[str, str]:
    """Return the variables of a server; pools of its size run out of memory for no retraction of a trace."""
    has_core = trace.config.enable_prefix_caching and core in CORES
    chosen = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core} if has_core else {}
    is_retracted = any(isinstance(event, Preempt) for event in trace.events)
    has_windows = any(group.window for group in trace.config.groups)
    unlocks = has_windows and trace.config.options.get("early_unlock") == "yes"
    moves = EAGERLY if trace.config.options.get("unified_memory") == "eager" else {}
    return {**chosen, **(RETRACTS if is_retracted else {}), **(UNLOCKS if unlocks else {}), **moves}


def _flags(trace: Trace) -> Iterator[str]:
    config = trace.config
    sizes = sizes_of(config)
    blocks = {group.kind: group.block_size for group in config.groups}
    options, page = config.options, blocks["attention"]
    if sizes.disaggregation == "decode":
        yield from ("--num-reserved-decode-tokens", str(sizes.reserved_tokens))
        if config.enable_prefix_caching:
            yield "--disaggregation-decode-enable-radix-cache"
    if sizes.unified != "no":
        yield "--enable-unified-memory"
    if sizes.ring:
        yield from ("--enable-linear-replayssm", "--linear-replayssm-cache-len", str(sizes.ring))
        if not config.enable_prefix_caching:
            yield from ("--mamba-track-interval", str(sizes.track))
    if sizes.int8 != "no":
        yield "--enable-int8-mamba-checkpoint"
    if sizes.int8 == "few":
        yield from ("--int8-mamba-ckpt-size", str(sizes.checkpoints))
    if config.enable_prefix_caching:
        yield from ("--mamba-radix-cache-strategy", options.get("strategy", "no_buffer"))
        track = max(blocks.values()) * int(options.get("track", "1"))
        yield from ("--mamba-track-interval", str(track))
        for option, flag, usual in FLAGS:
            if options.get(option, usual) != usual:
                yield from (flag, options[option])
        if policy := eviction_config(options.get("eviction", "lru"), page):
            yield from ("--radix-eviction-policy-config", json.dumps(policy))
        if options.get("hicache", "no") != "no":
            yield from ("--enable-hierarchical-cache", "--hicache-ratio", options.get("host_ratio", "2"))
            if sizes.host_layout != "page_first":
                yield from ("--hicache-mem-layout", sizes.host_layout)
        if options.get("storage", "no") != "no":
            yield from ("--hicache-storage-backend", options["storage"])
            if options.get("host_mode", "cache") == "buffer":
                yield from ("--hicache-host-memory-mode", "buffer_only")
            yield from ("--hicache-storage-prefetch-policy", options.get("prefetch", "timeout"))
            yield from ("--hicache-storage-backend-extra-config", json.dumps(storage_config(sizes)))
        if options.get("session_tags") == "yes":
            yield "--enable-session-radix-cache"
    else:
        yield "--disable-radix-cache"
    if not config.async_depth:
        yield SYNCHRONOUS
    if options.get("mixed_chunk") == "yes":
        yield "--enable-mixed-chunk"
    if options.get("order", "fcfs") != "fcfs":
        yield from ("--schedule-policy", options["order"])
    if sizes.retraction != "length":
        yield from ("--retraction-policy", sizes.retraction)
    if sizes.prefill_rows:
        yield from ("--prefill-max-requests", str(sizes.prefill_rows))
    if options.get("conservativeness", "1") != "1":
        yield from ("--schedule-conservativeness", options["conservativeness"])
    if options.get("prefill_interval", "0") != "0":
        yield from ("--prefill-decode-interval", options["prefill_interval"])
    if sizes.delay in ("slots", "queue"):
        yield from ("--enable-prefill-delayer", "--prefill-delayer-max-delay-passes", str(DELAYED))
    if sizes.delay == "queue":
        yield from ("--prefill-delayer-queue-min-ratio", "1", "--prefill-delayer-max-delay-ms", str(DELAYED))
    if sizes.delay == "free":
        yield from ("--min-free-slots-delay", "2")
    if sizes.disaggregation != "no":
        yield from ("--disaggregation-mode", sizes.disaggregation)
    if sizes.optimistic:
        yield from ("--optimistic-prefill-attempts", str(sizes.optimistic))
    if sizes.logits != "plain":
        yield "--enable-custom-logit-processor"
    if not sizes.chunked:
        yield from ("--chunked-prefill-size", "-1")
    if sizes.strips:
        yield "--strip-thinking-cache"
    if sizes.strips or any(isinstance(event, Turn) and event.structured for event in trace.events):
        yield from ("--reasoning-parser", PARSER)
    if config.policy == "priority":
        yield from ("--enable-priority-scheduling", "--schedule-low-priority-values-first")
        yield from ("--priority-scheduling-preemption-threshold", "0")
    if not sizes.preempts:
        yield "--disable-priority-preemption"
    if not config.graph_sizes:
        yield EAGER
    yield from ("--page-size", str(page))
    if config.num_speculative_tokens:
        # A verification has the last token and the drafts.
        yield from ("--speculative-algorithm", sizes.drafter.upper())
        yield from ("--speculative-num-draft-tokens", str(sizes.drafts))
        breadth = str(sizes.breadth)
        if sizes.drafter == "ngram":
            yield from ("--speculative-ngram-max-bfs-breadth", breadth)
        else:
            yield from ("--speculative-num-steps", str(sizes.draft_steps), "--speculative-eagle-topk", breadth)
        if sizes.sampled == "rejection":
            yield "--speculative-use-rejection-sampling"
        if sizes.sampled == "block":
            yield "--speculative-use-block-verification"
        if sizes.breadth > 1 and page > 1:
            # N-grams need flashinfer for them; EAGLE may have triton, as the one model with windows does.
            yield from ("--attention-backend", "triton" if sizes.sliding else "flashinfer")
    if any(group.window for group in config.groups):
        yield from ("--swa-full-tokens-ratio", options.get("window_ratio", "1"))
    if options.get("inputs") in ("adapters", "tenants"):
        yield from ADAPTERS
    if any(isinstance(event, Arrive) and event.session for event in trace.events):
        yield "--enable-streaming-session"
    if any(isinstance(event, SwitchStorage) for event in trace.events):
        yield from ADMIN
    has_ranks = not config.num_speculative_tokens or sizes.drafter == "eagle"
    if has_ranks and any(isinstance(event, DummyRun) for event in trace.events):
        yield from RANKS


def _limits(config: Config) -> dict[str, tuple[str, ...]]:
    """Return the flags of what limits a step, the pools and a length."""
    sizes = sizes_of(config)
    each = slots_with(sizes.strategy, 2 if sizes.overlap else 1)
    states = str(each * sizes.rows + sizes.spare_slots)
    slots = ("--max-mamba-cache-size", states) if config.enable_prefix_caching else ()
    is_told = config.options.get("context_flag", "yes") == "yes"
    return {
        "max_num_batched_tokens": _most_tokens(config, sizes),
        "max_num_seqs": ("--max-running-requests", str(config.max_num_seqs)),
        "num_blocks": ("--max-total-tokens", str(sizes.pages * sizes.page), *slots),
        **({"max_model_len": ("--context-length", str(config.max_model_len))} if is_told else {}),
    }


def _most_tokens(config: Config, sizes: Sizes) -> tuple[str, str]:
    """Return the flag of the most prompt tokens in a step."""
    if sizes.chunked:
        return "--chunked-prefill-size", str(config.max_num_batched_tokens)
    return "--max-prefill-tokens", str(sizes.prefill_tokens)


def _sizes(config: Config) -> Iterator[str]:
    """Yield the trace's sizes as flags."""
    limits = _limits(config)
    shown = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")
    yield from (part for name in shown if name in limits for part in limits[name])


def _client(trace: Trace) -> Client:
    """Return what clients send to a server's /generate."""
    sessions = {event.name for event in trace.events if isinstance(event, Arrive) and event.session}
    aborts = [event for event in trace.events if isinstance(event, Abort)]
    ends = {event.name for event in aborts if event.keeps_session or event.name not in sessions}
    has_keys = trace.config.options.get("order") == "routing-key"
    is_sampled = sizes_of(trace.config).sampled != "no"
    fields = partial(_fields, ends, trace.config.policy == "priority", has_keys, is_sampled)
    calls = calls_of(trace.events, fields, _Others(trace))
    return Client(GENERATE, ANSWER_OF_GENERATE, dict(calls), tuple(_forced(trace)))


def _fields(
    aborted: Collection[str], has_priorities: bool, has_keys: bool, is_sampled: bool, event: Turn, samples: int
) -> dict[str, object]:
    """Return the fields of a request besides its prompt and length; those that are aborted have an id. With priorities
    each gets its own, also 0: SGLang ranks a request without one last."""
    in_session = isinstance(event, Resume) or event.session
    found: dict[str, object] = {"n": samples} if samples > 1 else {}
    found |= {"session_params": {"id": event.name}} if in_session else {}
    found |= {"rid": event.name} if event.name in aborted else {}
    found |= {"routing_key": key} if has_keys and (key := routing_key_of(event.name)) else {}
    found |= {"min_new_tokens": least} if (least := least_tokens(event)) else {}
    found |= {"regex": ".*"} if event.structured else {}
    found |= {"require_reasoning": True} if event.structured and event.reasoning else {}
    found |= {"regex": "("} if isinstance(event, Arrive) and event.bad_grammar else {}
    if is_sampled and not {"min_new_tokens", "regex"} & found.keys():
        chance = sampling_of(event.name)
        found |= {name: value for name, value in chance._asdict().items() if value != getattr(GREEDY, name)}
    if isinstance(event, Arrive) and event.prompt_logprobs:
        found |= {"return_logprob": True, "logprob_start_len": logprob_start(event)}
    return found | ({"priority": event.priority} if isinstance(event, Arrive) and has_priorities else {})


class _Others:
    """Calls that are no requests."""

    def __init__(self, trace: Trace) -> None:
        self.sessions = {event.name for event in trace.events if isinstance(event, Arrive) and event.session}
        self.sizes = sizes = sizes_of(trace.config)
        self.clear = [CLEAR] * (sizes.storage != "no" and sizes.storage_cleared)
        self.is_attached = True

    def switch(self) -> Iterator[str]:
        """Yield the call that detaches the storage, or attaches it again."""
        self.is_attached = not self.is_attached
        if self.is_attached:
            yield f"{ATTACH.format(storage_request(self.sizes))}{WHEN_IDLE}"
        else:
            yield f"{DETACH}{WHEN_IDLE}"

    def __call__(self, event: Event) -> Iterator[str]:
        """Yield the lines of an event, or those before a request."""
        if isinstance(event, Arrive) and event.session:
            asked = {"capacity_of_str_len": 100_000, "session_id": event.name, "streaming": True}
            yield f'await client.post(f"{{URL}}/open_session", cast_to=object, body={asked!r})'
        elif isinstance(event, Abort) and event.name in self.sessions and not event.keeps_session:
            closed = {"session_id": event.name}
            yield f"{variable(event.name)}.cancel()"
            yield f'await client.post(f"{{URL}}/close_session", cast_to=object, body={closed!r})'
        elif isinstance(event, Abort):
            aborted = {"rid": event.name}
            yield f'await client.post(f"{{URL}}/abort_request", cast_to=object, body={aborted!r})'
        elif isinstance(event, Pause):
            yield from (PAUSE, CONTINUE)
        elif isinstance(event, ResetPrefixCache) and event.preempt_running:
            yield from (PAUSE, 'await client.post(f"{URL}/flush_cache", cast_to=object)', *self.clear, CONTINUE)
        elif isinstance(event, ResetPrefixCache):
            yield 'await client.post(f"{URL}/flush_cache", cast_to=object)' + WHEN_IDLE
            yield from self.clear
        elif isinstance(event, SwitchStorage):
            yield from self.switch()
        elif isinstance(event, Evict):
            yield "# Other prompts fill the pool, so that older ones are evicted."


def _forced(trace: Trace) -> Iterator[str]:
    """Yield what the scenario decides itself, and when a server gets there."""
    kinds = {type(event) for event in trace.events}
    if Preempt in kinds:
        yield (
            "the script retracts a request by name; with SGLANG_TEST_RETRACT a server retracts a request that decodes "
            "every SGLANG_TEST_RETRACT_INTERVAL forward passes: try other intervals. Without it a server retracts when "
            'its pools run out ("#retracted_reqs" in its log)'
        )
    if Evict in kinds:
        yield "the script evicts nodes of the radix tree; on a server other prompts do that as they fill the pools"
    if trace.config.num_speculative_tokens and has_drafts(trace.events):
        source = "n-gram corpus" if sizes_of(trace.config).drafter == "ngram" else "draft model"
        yield f"drafts are right or wrong as the script says; a server's come from its {source}"
    if sizes_of(trace.config).sampled != "no":
        yield "verifications sample what the script expects, since their random numbers are chosen; a server's are not"
    if has_reasoning(trace.events):
        yield (
            f"reasoning ends with the token that the script names; replace {PARSER} by the reasoning parser of your "
            "model, which has its own"
        )
    if sizes_of(trace.config).logits != "plain":
        yield (
            "each request rules out tokens that its answer does not need, by logit_bias or by a custom_logit_processor "
            "with custom_params of its own; a client of a server names tokens of its model, some of them very likely"
        )
    if any(isinstance(event, Step) and (event.budget or event.chunks) for event in trace.events):
        yield "the script limits the tokens of single steps; on a server other requests take the rest of a chunk"


def _scaled(config: Config) -> Iterator[str]:
    chunk = next((group.block_size for group in config.groups if group.kind == "mamba"), 0)
    if config.enable_prefix_caching:
        yield f"snapshot grid of {chunk} tokens; a server's is its model's chunk size (at least 64 for GDN models)"
    yield f"pools: {config.num_blocks - 1} pages of keys and values, and the fewest state slots that a server takes"
    if sizes_of(config).disaggregation == "decode":
        yield "about a page is reserved for each answer; a server's default (--num-reserved-decode-tokens) is 512"
        yield "what the prefill server computed arrives 1 to 3 turns after the places for it are named"
    for window in [group.window for group in config.groups if group.window]:
        yield f"sliding window of {window} tokens, given back in batches of one page; a server's has hundreds, in 128"
    if config.num_speculative_tokens:
        source = "n-gram corpus" if sizes_of(config).drafter == "ngram" else "draft model"
        yield f"how many drafts are right is the scenario's choice; a server's come from its {source}"
    if sizes_of(config).short:
        yield "the corpus fills up short matches with any token; a server's with token 0, which a model may say as well"
