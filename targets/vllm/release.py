"""The properties of a vLLM release that decide what the target can drive. Importable without vLLM."""

from __future__ import annotations

from dataclasses import dataclass

from ...reference.layout import Mode


@dataclass(frozen=True)
class Release:
    """A release, in terms of what it has and the target drives. The defaults are what tests start from.

    runners, modes, mixers  model runners, mamba cache modes and state layers
    speculative_modes  cache modes in which it speculates
    plain_mixers   state layers that do not speculate
    limits_of_a_block  settings that must hold a block in mode align
    zeroes         it zeroes blocks
    device_drafts  the V1 runner can schedule ahead of its drafts
    v2_drafts_ahead  the V2 runner can schedule ahead of drafts without EAGLE's rules
    graphs         decode graphs can be captured
    state_per_seat  with decode graphs the pool has at least `max_num_seqs` blocks
    caches_asynchronously  asynchronous scheduling and a prefix cache do not exclude each other
    aligns_tables  block tables are as wide as a multiple of 128 tokens
    connectors     a KV connector can serve hybrid models
    offloads       the connector may be its own, with its own tier in host memory, and loads may be synchronous
    offloads_simply  the connector may be the simple one with host memory or a file
    file_tier      files may stand behind that tier
    local_groups   groups of local attention may stand beside full attention and states
    partial_hits   a hit may end inside a block
    draft_groups   the V2 runner drafts with vLLM's own MTP speculator, whose layer has a group of its own
    shared_metadata  groups of GDN layers can share metadata, as on a GPU
    sessions       requests may be streaming input sessions
    serving_options  prefills can be spaced, the scheduler paused, and pipeline stages and KV events be driven
    admits_chunks  requests may be admitted as soon as there is room for their first chunk
    coordinates    data-parallel ranks are coordinated by vLLM's own code
    replays        Mamba 2 can replay inputs (ReplaySSM)
    conv_layouts   the layout of convolution windows can be chosen
    junctions      states can be published where prompts fork, beside EAGLE
    inputs         requests may have images, adapters and salts
    sampling       requests on the V1 runner may have sampling parameters
    slot_sampling  requests on the V2 runner may have them, too
    stop_tokens    requests may end by a stop token
    stop_strings   they may by a stop string, which the front end finds
    min_tokens     they may not before a minimum number of tokens
    prompt_logprobs  requests may ask for the log-probabilities of their prompts, and then read no prefix cache
    structured_output  answers may have a grammar
    reasoning      answers may have reasoning before the part that has a grammar
    samples        clients may want several samples of a prompt
    lookahead_hashes  keys of blocks may name the token behind them, beside EAGLE or MTP drafts
    """

    runners: tuple[str, ...] = ("v2", "v1")
    modes: tuple[Mode, ...] = ("align", "none")
    mixers: tuple[str, ...] = ("gdn", "mamba2", "short_conv", "linear")
    speculative_modes: tuple[Mode, ...] = ("align", "none")
    plain_mixers: frozenset[str] = frozenset({"mamba1"})
    limits_of_a_block: frozenset[str] = frozenset()
    zeroes: bool = True
    device_drafts: bool = True
    v2_drafts_ahead: bool = True
    graphs: bool = True
    state_per_seat: bool = False
    caches_asynchronously: bool = True
    aligns_tables: bool = False
    connectors: bool = True
    offloads: bool = False
    offloads_simply: bool = False
    file_tier: bool = False
    local_groups: bool = False
    partial_hits: bool = False
    draft_groups: bool = False
    shared_metadata: bool = False
    sessions: bool = False
    serving_options: bool = False
    admits_chunks: bool = False
    coordinates: bool = False
    replays: bool = False
    conv_layouts: bool = False
    junctions: bool = False
    inputs: bool = False
    sampling: bool = False
    slot_sampling: bool = False
    stop_tokens: bool = False
    stop_strings: bool = False
    min_tokens: bool = False
    prompt_logprobs: bool = False
    structured_output: bool = False
    reasoning: bool = False
    samples: bool = False
    lookahead_hashes: bool = False


def installed() -> Release:
    """Return the release that is imported in this process, found by feature detection (`features`)."""
    from .versions import features

    has_v2 = features.has_v2()
    tested = features.coordinates_ranks()  # 0.33: older releases have some of this, too, but were not run with it
    runs_stop_tokens = features.has_connectors()  # 0.32: likewise
    return Release(
        runners=("v2", "v1") if has_v2 else ("v1",),
        modes=features.cache_modes(),
        mixers=features.mixers(),
        speculative_modes=features.speculative_modes(),
        plain_mixers=features.plain_mixers(),
        limits_of_a_block=features.limits_of_a_block(),
        zeroes=features.zeroes_blocks(),
        device_drafts=features.has_device_drafter(),
        v2_drafts_ahead=features.v2_drafts_ahead(),
        graphs=features.has_graph_choice(),
        state_per_seat=features.graphs_need_a_state_per_seat(),
        caches_asynchronously=features.caches_asynchronously(),
        aligns_tables=features.aligns_tables(),
        connectors=features.has_connectors(),
        offloads=tested and features.has_connectors(),
        offloads_simply=tested and features.has_connectors() and features.has_simple_offload(),
        file_tier=tested and features.has_connectors() and features.has_file_tier(),
        local_groups=features.has_local_groups(),
        partial_hits=features.has_partial_hits(),
        draft_groups=has_v2 and features.has_draft_layers(),
        shared_metadata=has_v2 and features.shares_state_indices(),
        sessions=features.has_sessions(),
        serving_options=features.has_serving_options(),
        admits_chunks=tested and features.has_admission_choice(),
        coordinates=tested,
        replays=tested and features.has_replay(),
        conv_layouts=tested and features.has_conv_layouts(),
        junctions=tested and features.has_junctions(),
        inputs=tested,
        sampling=tested,
        slot_sampling=tested and has_v2 and features.has_parameters_in_slots(),
        stop_tokens=runs_stop_tokens,
        stop_strings=tested,
        min_tokens=tested,
        prompt_logprobs=tested,
        structured_output=tested and features.has_structured_output(),
        reasoning=tested and features.has_structured_output() and features.has_reasoning(),
        samples=tested,
        lookahead_hashes=tested and features.has_lookahead_hashes(),
    )
