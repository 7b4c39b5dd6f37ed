"""The sizes of one engine, in SGLang's terms. Importable without SGLang."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

from ....reference.layout import cdiv
from ...base.trace import Config
from . import old_releases, tree_api

BASE_SLOTS = 3
"""`MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO`: state slots of a running request without those for snapshots."""
SPARE_PAGES = 2
"""Admission reserves one page more than a request needs, and takes a strictly larger pool for enough."""


def eviction_config(eviction: str, page: int) -> dict[str, int] | None:
    """Return what a policy of eviction is told (`radix_eviction_policy_config`), in tokens; None for nothing.

    The server refuses T-LRU without a threshold: it would be LRU.
    """
    return {"threshold": 4 * page, "next_prompt_estimate": page} if eviction == "tlru" else None


ROW_WORDS = 2
"""64-bit integers of a token's key, and of its value, in a unified memory: SGLang wants rows in multiples of 16 bytes.
The first is used."""
MOST_PREFILLED = 1 << 14
DELAYED = 3
"""`prefill_delayer_max_delay_passes`: a prompt is held back for one pass less. Also the limit in milliseconds
(`prefill_delayer_max_delay_ms`), of which each pass takes one."""
PATIENCE = 2
"""Turns after which a prefetch is cut off by the policy "timeout"."""
ROOM = 12
"""Pages, and as many states, that a storage with little room holds."""


def storage_config(sizes: Sizes) -> dict[str, int | bool]:
    """Return what a storage is told (`hicache_storage_backend_extra_config`).

    Scaled: prefetches of at least 256 tokens, and a second of patience.
    """
    given: dict[str, int | bool] = {"prefetch_threshold": sizes.page, "prefetch_timeout_base": PATIENCE}
    given |= {"hicache_storage_pass_prefix_keys": True} if sizes.prefix_keys else {}
    row = 1 if sizes.unified == "no" else ROW_WORDS
    words = 2 * row * sizes.page * sizes.attention_layers + (1 + sizes.window) * sizes.state_layers
    return given | ({"max_size": 8 * ROOM * words} if sizes.storage_limits == "room" else {})


def storage_request(sizes: Sizes) -> dict[str, str]:
    """Return what a client asks for that attaches the storage (`AttachHiCacheStorageReqInput`)."""
    policy = {} if sizes.attach_policy == "same" else {"hicache_write_policy": sizes.attach_policy}
    return {
        "hicache_storage_backend": sizes.storage,
        "hicache_storage_backend_extra_config_json": json.dumps(storage_config(sizes)),
        "hicache_storage_prefetch_policy": sizes.prefetch,
        **policy,
    }


def routing_key_of(name: str) -> str:
    """Return the key by which a router knows the requests of a client, "" for one without: for one of three."""
    return ("", "a", "b")[sum(name.encode()) % 3]


@dataclass(frozen=True)
class Sizes:
    """A configuration in SGLang's terms; lengths in tokens.

    caching      False with `disable_radix_cache`: no snapshots
    core         of the radix tree, "" for the default of the release
    chunk        grid of prefill snapshots (`mamba_cache_chunk_size`)
    track        grid of decode snapshots (`mamba_track_interval`)
    rows         most running requests
    spare_slots  state slots beyond those that the server provides
    window       inputs that a convolution remembers
    mamba2       True if state layers are Mamba 2, else they are gated delta nets
    drafts       tokens of one verification, 0 without speculation
    breadth      most drafts that follow the same token: above 1 they form a tree (`speculative_eagle_topk`)
    sampled      how a verification samples for requests with a temperature: by the "target"'s probabilities alone, by
                 "rejection" (`speculative_use_rejection_sampling`), or in a "block" of them
                 (`speculative_use_block_verification`); "no" without such requests
    logits       "shaped" if each request rules out the tokens that its answer does not need, by `logit_bias` or,
                 without drafts, by a processor (`enable_custom_logit_processor`); "processors" if all have one; "plain"
                 if nobody rules anything out
    short        True if n-grams that match are shorter than the drafts, and the rest is padding
    drafter      what proposes them (`speculative_algorithm`): "ngram", or "eagle", a draft model
    mixed        True if decodes join the batch of a prefill (`enable_mixed_chunk`)
    order        how waiting requests are sorted (`schedule_policy`)
    retraction   which request gives way when memory runs out (`retraction_policy`): the one with the shortest answer so
                 far ("length"), or the least important ("priority")
    prefill_rows most requests whose prompts are computed in one step (`prefill_max_requests`), 0 for any number
    eviction     which leaf of the tree goes first (`radix_eviction_policy`)
    path_states  most cached states on a path of the tree, -1 for any number
    tags         True if requests name a session, whose nodes the tree keeps (`enable_session_radix_cache`)
    tenant       True if requests bring a key of their own to the tree (`extra_key`), beside an adapter or a salt
    endless      True if a request without a stop token ends by its length alone (`ignore_eos`)
    conservativeness  factor on the share of an answer that admission reserves (`schedule_conservativeness`)
    prefill_interval  rounds between two prefills in which only decodes may run (`prefill_decode_interval`)
    delay        what holds prompts back while requests decode: few free rows ("slots") or few waiting requests
                 (also "queue"; `enable_prefill_delayer`), or fewer than two free rows ("free": `min_free_slots_delay`);
                 "no" for nothing
    preempts     True if a more important request takes the place of one that runs, False if it is only first in the
                 queue (`disable_priority_preemption`)
    chunked      False if each prompt is computed in one step (`chunked_prefill_size` -1)
    hicache      when content is copied to the host (`hicache_write_policy`), "no" without a host tier
    host_ratio   size of the host's pools in sizes of the device's (`hicache_ratio`)
    host_layout  of the host's pools (`hicache_mem_layout`): "page_first", whose copies are kernels, or
                 "page_first_direct", whose copies are direct ones (`hicache_io_backend`)
    copies       when copies between device and host run: as "early" as they may, "late", or "slow", turns later
    storage      what is behind the host (`hicache_storage_backend`), "no" for nothing
    host_mode    what the host is beside a storage: a "cache", or only a "buffer" (`hicache_host_memory_mode`)
    context_given  True if the server is told how long a request may be (`context_length`), else the model says so
    prefetch     when a request stops to wait for it (`hicache_storage_prefetch_policy`)
    storage_pace operations of the storage in each turn of the scheduler: "all", one of "each" thread, or "one"
    storage_limits  "no", or what the storage lacks: "room" for all that it is given; with "faults" some operations fail
    storage_cleared  True if a client that flushes the cache has the storage cleared as well
    prefix_keys  True if the storage is told the hashes of what comes before a page (`hicache_storage_pass_prefix_keys`)
    attach_policy  when content is copied to the host once a client has attached the storage again
                 (`hicache_write_policy`), "same" as before
    graphs       rows of the captured decode graphs; without any, batches run as they are
    priorities   True if more important requests come first, and take the place of others
    sliding      tokens that layers with a sliding window attend to, the token itself included; 0 without such layers
    window_layers, window_ratio  of them: how many, and the size of their pool in sizes of the other layers'
    unified      how pages of a memory that keys, values and states share are moved together (`enable_unified_memory`):
                 "lazy", or "eager", with each free; "no" without such a memory
    strips       True if all answers are reasoning, and the tree keeps the prompts alone (`strip_thinking_cache`)
    early_unlock  True if a request unlocks the windows and the state of its prefix once its own window is behind them
    ring         inputs that a decode may leave out of the stored state (`linear_replayssm_cache_len`), 0 for none
    int8         slots for checkpoints of states in int8 (`enable_int8_mamba_checkpoint`): "default", as many as a
                 server has, "few", or "no"
    disaggregation  the part of serving that the server has (`disaggregation_mode`): "prefill", "decode", "no" for all
    optimistic   most times that a prefill server computes a prompt before its decode server has answered
                 (`optimistic_prefill_attempts`)
    """

    caching: bool
    strategy: str
    overlap: bool
    core: str
    page: int
    chunk: int
    track: int
    rows: int
    spare_slots: int
    pages: int
    context: int
    state_layers: int
    attention_layers: int
    window: int
    drafts: int
    drafter: str = "ngram"
    breadth: int = 1
    short: bool = False
    sampled: str = "no"
    logits: str = "plain"
    mamba2: bool = False
    mixed: bool = False
    graphs: tuple[int, ...] = ()
    priorities: bool = False
    order: str = "fcfs"
    retraction: str = "length"
    prefill_rows: int = 0
    eviction: str = "lru"
    path_states: int = -1
    tags: bool = False
    tenant: bool = False
    endless: bool = False
    conservativeness: float = 1.0
    prefill_interval: int = 0
    delay: str = "no"
    preempts: bool = True
    chunked: bool = True
    hicache: str = "no"
    host_ratio: float = 2.0
    host_layout: str = "page_first_direct"
    copies: str = "early"
    storage: str = "no"
    host_mode: str = "cache"
    context_given: bool = True
    prefetch: str = "timeout"
    storage_pace: str = "all"
    storage_limits: str = "no"
    storage_cleared: bool = False
    prefix_keys: bool = False
    attach_policy: str = "same"
    sliding: int = 0
    window_layers: int = 0
    window_ratio: float = 1.0
    early_unlock: bool = False
    strips: bool = False
    unified: str = "no"
    ring: int = 0
    int8: str = "no"
    disaggregation: str = "no"
    optimistic: int = 0

    @cached_property
    def tree_core(self) -> str:
        """Core of the radix tree."""
        return self.core or tree_api.tree_cores()[0]

    @cached_property
    def slots(self) -> int:
        """State slots of the pool."""
        each = slots_per_request(self.strategy, self.overlap) if self.caching else 1
        given = each * self.rows + self.spare_slots
        if self.disaggregation != "decode":
            return given
        # As many as all rows may need (`HybridMambaDecodeReqToTokenPool`).
        return max(given, self.request_slots * self.request_rows)

    @property
    def extra_rows(self) -> int:
        """Rows of a decode server for requests that do not run yet (`disaggregation_decode_extra_slots`): as many as a
        server with so few running requests has."""
        return 2 * self.rows if self.disaggregation == "decode" else 0

    @property
    def request_rows(self) -> int:
        """Rows of the table of requests, padding left out."""
        return self.rows + self.extra_rows

    @property
    def reserved_tokens(self) -> int:
        """Tokens that a decode server reserves for each request (`num_reserved_decode_tokens`). Scaled: 512."""
        return self.page + 2 * self.decode_tokens

    @property
    def request_slots(self) -> int:
        """Most state slots of one request: the working one and those for snapshots."""
        if self.strategy == "no_buffer":
            return 1
        return 3 if self.overlap or old_releases.always_two_tracks() else 2

    @cached_property
    def first_page(self) -> int:
        """Number of KV page 0."""
        return self.num_slots + self.num_checkpoints

    @property
    def first_checkpoint(self) -> int:
        """Number of checkpoint 0: with int8 the tree keeps states in a pool of their own."""
        return self.num_slots

    @property
    def num_checkpoints(self) -> int:
        """Number of ids of checkpoints."""
        return self.checkpoints + 1 if self.checkpoints else 0

    @cached_property
    def checkpoints(self) -> int:
        """Slots for checkpoints in int8, 0 without them. A few: each running request locks one while it stores another.

        Source of the default: `maybe_init_int8_mamba_checkpoint_pool`.
        """
        if self.int8 == "few":
            return self.rows + 1
        return 2 * self.slots if self.int8 == "default" else 0

    @cached_property
    def first_window_page(self) -> int:
        """Number of page 0 of the layers with a sliding window."""
        return self.first_page + self.num_pages

    @cached_property
    def num_slots(self) -> int:
        """Number of ids of state slots. In a unified memory: as many as would fill it alone; likewise of pages."""
        return self.slots + 1 if self.unified == "no" else self._unified_bytes // self._state_bytes

    @cached_property
    def num_pages(self) -> int:
        """Number of ids of KV pages."""
        return self.pages + 1 if self.unified == "no" else self._unified_bytes // self._token_bytes // self.page

    @cached_property
    def reserved_slots(self) -> int:
        """Number of leading ids of state slots that belong to nobody: padding is written to number 0."""
        return 1 if self.unified == "no" else cdiv(self._sink_bytes, self._state_bytes)

    @cached_property
    def reserved_pages(self) -> int:
        """Number of leading ids of KV pages that belong to nobody."""
        return 1 if self.unified == "no" else cdiv(cdiv(self._sink_bytes, self._token_bytes), self.page)

    @cached_property
    def num_window_pages(self) -> int:
        """Number of ids of pages of layers with a sliding window. In a unified memory these are the ids of KV pages."""
        if not self.sliding:
            return 0
        return self.window_pages + 1 if self.unified == "no" else self.num_pages

    @cached_property
    def reserved_window_pages(self) -> int:
        """Number of leading ids of pages of layers with a sliding window that belong to nobody."""
        return 1 if self.unified == "no" else self.reserved_pages

    @property
    def unified_tokens(self) -> int:
        """Tokens that a unified memory is sized for, one page of them for padding."""
        return (self.pages + 1) * self.page

    @property
    def unified_states(self) -> int:
        """States that a unified memory is sized for, one of them for padding."""
        return self.slots + 1

    @property
    def unified_window_tokens(self) -> int:
        """Tokens of layers with a sliding window that a unified memory is sized for, one page of them for padding."""
        return (self.window_pages + 1) * self.page if self.sliding else 0

    @property
    def _unified_bytes(self) -> int:
        windows = self.unified_window_tokens * self._window_token_bytes
        return self.unified_tokens * self._token_bytes + windows + self.unified_states * self._state_bytes

    @property
    def _sink_bytes(self) -> int:
        return max(self._state_bytes, self.page * self._token_bytes, self.page * self._window_token_bytes)

    @property
    def _token_bytes(self) -> int:
        return 2 * 8 * ROW_WORDS * self.attention_layers

    @property
    def _window_token_bytes(self) -> int:
        return 2 * 8 * ROW_WORDS * self.window_layers

    @property
    def _state_bytes(self) -> int:
        return 8 * (1 + self.window) * self.state_layers

    @property
    def extra_context(self) -> int:
        """Columns of a request's row behind its longest context."""
        return 2 * max(2 * self.drafts, self.decode_tokens) + 2 * self.page + 8

    @cached_property
    def window_pages(self) -> int:
        """Pages of the layers with a sliding window: a share of the others', and enough for two requests.

        A prompt in chunks is never retracted, and its admission leaves nothing for what a row beside it decodes.
        """
        if not self.sliding:
            return 0
        return max(int(self.pages * self.window_ratio), 2 * self.longest)

    @property
    def longest(self) -> int:
        """Most pages of one request, with those that admission reserves."""
        return cdiv(self.context + 2 * self.decode_tokens, self.page) + SPARE_PAGES

    @property
    def draft_steps(self) -> int:
        """Drafts behind one another (`speculative_num_steps`). The server computes those of n-grams so."""
        return self.drafts // self.breadth if self.drafter == "ngram" else (self.drafts - 1) // self.breadth

    @property
    def decode_tokens(self) -> int:
        """Tokens for which a verification of one request may need room (`get_alloc_len_per_decode`)."""
        return decode_tokens(self.drafts, self.breadth, self.drafter, self.page)

    @property
    def prefill_tokens(self) -> int:
        """Most tokens of the prompts that begin in a step (`max_prefill_tokens`). One may be longer alone.

        With chunks these are the limit, and this is the server's own.
        """
        return MOST_PREFILLED if self.chunked else self.context

    @property
    def proposes(self) -> bool:
        """True if drafts are drawn from a distribution that the verification needs."""
        return self.sampled in ("rejection", "block")

    @property
    def eviction_interval(self) -> int:
        """Tokens that leave a window before their slots are given back (`SGLANG_SWA_EVICTION_INTERVAL`)."""
        return self.page

    @property
    def num_blocks(self) -> int:
        """Numbers of state slots and pages together."""
        return self.first_window_page + self.num_window_pages


def slots_per_request(strategy: str, overlap: bool) -> int:
    """Return the state slots that the server provides for each running request.

    Source: `_calculate_mamba_ratio`; up to 0.5.9 `init_memory_pool`, which depends on speculation, not on overlap.
    """
    return slots_with(strategy, 2 if overlap or old_releases.always_two_tracks() else 1)


def slots_with(strategy: str, tracks: int) -> int:
    """Return the state slots of a running request that has `tracks` of them for decode snapshots."""
    return BASE_SLOTS + {"no_buffer": 0, "extra_buffer": tracks, "extra_buffer_lazy": 1}[strategy]


def decode_tokens(drafts: int, breadth: int, drafter: str, page: int) -> int:
    """Return the tokens for which a verification of `drafts` tokens may need room; of a draft model's tree, each branch
    has pages of its own."""
    if breadth == 1 or page == 1 or drafter == "ngram":
        return drafts
    steps = (drafts - 1) // breadth
    return max(cdiv(page - 1 + steps, page) * page * breadth, drafts)


def sizes_of(config: Config) -> Sizes:
    """Return the sizes of an engine for a configuration."""
    states = [group for group in config.groups if group.kind == "mamba"]
    attention = [group for group in config.groups if group.kind == "attention" and not group.window]
    windows = [group for group in config.groups if group.window]
    options = config.options
    caching = config.mamba_cache_mode != "none"
    page, chunk = attention[0].block_size, states[0].block_size
    hicache = options.get("hicache", "no") if caching else "no"
    unified = options.get("unified_memory", "no")
    attach_policy = options.get("attach_policy", "same")
    if attach_policy == "write_back" and options.get("host_mode") == "buffer":
        attach_policy = "same"  # a server that starts with both takes another one
    breadth = int(options.get("breadth", "1")) if config.num_speculative_tokens else 1
    drafts = breadth * config.num_speculative_tokens + 1 if config.num_speculative_tokens else 0
    drafter = options.get("drafter", "ngram") if drafts else "ngram"
    room = decode_tokens(drafts, breadth, drafter, page)
    # A common pool of blocks includes those of one request's state.
    state_blocks = 0 if caching else 1 + config.num_speculative_tokens
    return Sizes(
        caching=caching,
        strategy=options.get("strategy", "no_buffer") if caching else "no_buffer",
        overlap=bool(config.async_depth),
        core=options.get("tree_core", ""),
        page=page,
        chunk=chunk,
        track=max(chunk, page) * int(options.get("track", "1")),
        rows=config.max_num_seqs,
        spare_slots=int(options.get("spare_states", "0")),
        pages=config.num_blocks - 1 - state_blocks + SPARE_PAGES + cdiv(2 * room, page),
        context=config.max_model_len,
        state_layers=states[0].layers,
        attention_layers=attention[0].layers,
        window=config.conv_width - 1,
        drafts=drafts,
        drafter=drafter,
        breadth=breadth,
        short=options.get("matches") == "short" and drafter == "ngram" and drafts > 0,
        sampled=options.get("sampled", "no") if drafts else "no",
        logits=options.get("logits", "plain"),
        mamba2=options.get("state_layers") == "mamba2",
        mixed=options.get("mixed_chunk") == "yes",
        graphs=config.graph_sizes,
        priorities=config.policy == "priority",
        order=options.get("order", "fcfs"),
        # The server refuses the other one without priorities.
        retraction=options.get("retraction", "length") if config.policy == "priority" else "length",
        prefill_rows=int(options.get("prefill_rows", "0")),
        eviction=options.get("eviction", "lru"),
        path_states=int(options.get("path_states", "-1")),
        tags=options.get("session_tags") == "yes" and caching,
        tenant=options.get("inputs") == "tenants",
        endless=options.get("ignore_eos") == "yes",
        conservativeness=float(options.get("conservativeness", "1")),
        prefill_interval=int(options.get("prefill_interval", "0")),
        delay=options.get("delay", "no"),
        preempts=options.get("preempts", "yes") == "yes" or config.policy != "priority",
        chunked=options.get("chunked", "yes") == "yes",
        hicache=hicache,
        host_ratio=float(options.get("host_ratio", "2")),
        # A unified memory cannot be copied directly: the server resolves one layout to the other.
        host_layout="page_first" if unified != "no" else options.get("host_layout", "page_first_direct"),
        copies=options.get("host_copies", "early"),
        storage=options.get("storage", "no") if hicache != "no" else "no",
        host_mode=options.get("host_mode", "cache"),
        context_given=options.get("context_flag", "yes") == "yes",
        prefetch=options.get("prefetch", "timeout"),
        storage_pace=options.get("storage_pace", "all"),
        storage_limits=options.get("storage_limits", "no"),
        storage_cleared=options.get("storage_cleared") == "yes",
        prefix_keys=options.get("prefix_keys") == "yes",
        attach_policy=attach_policy,
        sliding=windows[0].window if windows else 0,
        window_layers=windows[0].layers if windows else 0,
        window_ratio=float(options.get("window_ratio", "1")),
        early_unlock=options.get("early_unlock") == "yes",
        strips=options.get("strip_thinking") == "yes",
        unified=unified,
        ring=int(options.get("replay", "0")),
        int8=options.get("int8_checkpoints", "no") if caching else "no",
        disaggregation=options.get("disaggregation", "no"),
        optimistic=int(options.get("optimistic", "0")) if options.get("disaggregation") == "prefill" else 0,
    )
