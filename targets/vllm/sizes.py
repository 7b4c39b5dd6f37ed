"""The numbers of a trace's configuration from which a `VllmConfig` is built. Importable without vLLM.

`Sizes` is copied into the scripts of `repro`.
"""

from __future__ import annotations

from typing import NamedTuple

from ...reference.layout import cdiv
from ..base.trace import Config, Group
from .options import (
    PREFILL_INTERVAL,
    drafts_on_device,
    has_graphs,
    options_of,
    ring_entries,
    schedules_asynchronously,
)


class Sizes(NamedTuple):
    """Sizes and switches of one engine.

    block_size, mamba_block_size  tokens of a block of attention, of states
    hit_block_size  tokens of the smallest block that has a key
    page_bytes      of one layer's part of a block
    method          of the drafter: ngram, ngram_gpu or mtp
    plain_hashes    with mtp, keys of blocks do not name the token behind them
    asynchronous    the next step is planned before the last one has run
    every_boundary  states are published at every block boundary; junctions: also where prompts fork
    prefill_interval  steps from one with prefills to the next, 0 for any
    graph_rows      rows of the decode batches for which graphs are captured
    ring            inputs that ReplaySSM keeps
    """

    num_blocks: int
    block_size: int
    mamba_block_size: int
    hit_block_size: int
    page_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    mode: str = "align"
    prefix_caching: bool = True
    num_drafts: int = 0
    method: str = "ngram"
    asynchronous: bool = False
    policy: str = "fcfs"
    long_prefill: int = 0
    every_boundary: bool = False
    junctions: bool = False
    prefix_match_unit: int = 0
    reserve_full_isl: bool = True
    prefill_interval: int = 0
    graph_rows: tuple[int, ...] = ()
    ring: int = 0
    plain_hashes: bool = False


def sizes_of(config: Config) -> Sizes:
    """Return the sizes of an engine with shadow layers."""
    options = options_of(config)
    caching = config.mamba_cache_mode != "none"
    return Sizes(
        num_blocks=config.num_blocks,
        block_size=block_size(config, "attention"),
        mamba_block_size=block_size(config, "mamba") if caching else config.max_model_len,
        # As `EngineCore` does once the groups are planned.
        hit_block_size=min(group.block_size for group in config.groups if group.kind == "attention" or caching),
        page_bytes=page_words(config) * 8,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        mode=config.mamba_cache_mode,
        prefix_caching=config.enable_prefix_caching,
        num_drafts=config.num_speculative_tokens,
        method="mtp" if has_eagle_rules(config) else "ngram_gpu" if drafts_on_device(config) else "ngram",
        asynchronous=schedules_asynchronously(config),
        policy=config.policy,
        long_prefill=config.long_prefill_token_threshold,
        every_boundary=config.enable_prefix_caching and options.retention == "dense",
        junctions=config.enable_prefix_caching and options.retention == "junctions",
        prefix_match_unit=options.prefix_match_unit if config.enable_prefix_caching else 0,
        reserve_full_isl=options.admission != "chunk",
        prefill_interval=PREFILL_INTERVAL if options.prefills == "spaced" else 0,
        graph_rows=tuple(sorted(set(config.graph_sizes))) if has_graphs(config) else (),
        ring=ring_entries(config),
        plain_hashes=has_eagle_rules(config) and options.hashing == "plain",
    )


def has_eagle_rules(config: Config) -> bool:
    """Return True if a trace asks for EAGLE's rules: the last matched block of a hit is computed again."""
    return config.eagle_block_drop or any(group.draft for group in config.groups)


def block_size(config: Config, kind: str) -> int:
    """Return the tokens per block of the groups of a kind."""
    return next(group.block_size for group in config.groups if group.kind == kind)


def hash_unit(config: Config) -> int:
    """Return the tokens per key of the prefix cache."""
    return options_of(config).prefix_match_unit or config.hash_block_size


def layer_groups(config: Config) -> list[Group]:
    """Return the group of each layer of the model, from bottom to top: interleaved, as in real hybrid models."""
    target = [one for one in config.groups if not one.draft]
    mamba, attention = (
        [one for one in target if one.kind == kind for _ in range(one.layers)] for kind in ("mamba", "attention")
    )
    each = cdiv(len(mamba), len(attention))
    return [group for index, one in enumerate(attention) for group in (*mamba[each * index : each * (index + 1)], one)]


def page_words(config: Config) -> int:
    """Return the 8-byte words of a page: those of the largest attention block with keys large enough for a state."""
    largest = max(group.block_size for group in config.groups if group.kind == "attention")
    entries = ring_entries(config)
    state = config.conv_width + config.num_speculative_tokens + (entries + 2 if entries else 0)
    return 2 * largest * cdiv(state, 2 * largest)


def head_size(config: Config, size: int) -> int:
    """Return the 8-byte words per key with which a block of `size` tokens fills a page."""
    return page_words(config) // (2 * size)
