"""What the two kits of the SGLang target cannot do, and why: one table. Importable without SGLang.

    shadow  SGLang's scheduler, radix tree and pools around shadow layers (`serving`): exact tags, on a CPU
    script  the same in a file that needs SGLang and torch only (`repro`)

Values of the trace stand in a reason as `{config.NAME}` and `{options.NAME}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Literal, NamedTuple

from ..base.kits import Limit, Row, first_reason, in_words
from ..base.repro import Failure
from ..base.trace import Config

Kit = Literal["shadow", "script"]
BOTH = "both"
"""Both cores of the radix tree in one engine (`core_pair`)."""
_NO_FAILURE = Failure("", "", "", (), 0)
TOKENS, HANG, LEAK, LATE, CRASH = "tokens", "hang", "leak", "late", "crash"
"""What a script shows: a client receives wrong tokens or none, memory is not given back, a request goes on after its
abort, SGLang raises."""
SHOWN: Mapping[tuple[str, str], str] = {
    **{(f"M{number}", ""): TOKENS for number in range(2, 7)},
    **{(f"S{number}", ""): TOKENS for number in range(1, 9)},
    ("M8", "stall"): HANG,
    ("M8", "aborted"): LATE,
    ("M1", ""): LEAK,
    ("M9", ""): LEAK,
    ("CRASH", ""): CRASH,
}
"""Oracle and field ("" for every field) of the violations that a script can show -> how."""


_DEFAULTS: Mapping[str, str] = {
    "strategy": "no_buffer",
    "tree_core": "",
    "mixed_chunk": "no",
    "drafter": "ngram",
    "breadth": "1",
    "sampled": "no",
    "logits": "plain",
    "order": "fcfs",
    "delay": "no",
    "chunked": "yes",
    "hicache": "no",
    "storage": "no",
    "host_mode": "cache",
    "host_layout": "page_first_direct",
    "session_tags": "no",
    "ignore_eos": "no",
    "inputs": "tokens",
    "state_layers": "gdn",
    "unified_memory": "no",
    "replay": "0",
    "track": "1",
    "int8_checkpoints": "no",
    "disaggregation": "no",
    "optimistic": "0",
}
"""The options that a trace may leave out."""


def options_of(config: Config) -> SimpleNamespace:
    """Return the options of a trace, with defaults."""
    return SimpleNamespace(**{**_DEFAULTS, **config.options})


class Case(NamedTuple):
    """What is asked of a kit.

    options      those of the trace (`options_of`)
    core         the variant's core of the radix tree, "" for the trace's own (shadow)
    cores, strategies, async_depth, drafts  what the release is driven with (shadow)
    hashes       whether SGLang's hash of pages can be compiled here (shadow)
    failure      what has to be shown (script)
    """

    config: Config
    options: SimpleNamespace
    core: str = ""
    cores: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    async_depth: int = 0
    drafts: int = 0
    hashes: bool = True
    failure: Failure = _NO_FAILURE

    @property
    def sizes(self) -> dict[str, int]:
        """Block size by kind of group, those with a sliding window left out."""
        return {group.kind: group.block_size for group in self.config.groups if not group.window}

    @property
    def windows(self) -> list[int]:
        """Block sizes of groups with a sliding window."""
        return [group.block_size for group in self.config.groups if group.window]

    @property
    def caches(self) -> bool:
        """True with a radix tree: without one neither strategies nor grids matter."""
        return self.config.mamba_cache_mode != "none"

    @property
    def has_trees(self) -> bool:
        """True if several drafts may follow the same token."""
        return self.config.num_speculative_tokens > 0 and self.options.breadth != "1"

    @property
    def is_part(self) -> bool:
        """True if the server is a prefill or a decode server."""
        return bool(self.options.disaggregation != "no")

    @property
    def is_optimistic(self) -> bool:
        """True if a prefill server computes prompts before their decode servers have answered."""
        return bool(self.options.disaggregation == "prefill" and self.options.optimistic != "0")

    @property
    def allows_optimistic(self) -> bool:
        """True if there is no host tier, or one that a server allows with optimistic prefill."""
        policy = self.options.hicache
        if self.options.storage == "no":
            return policy in ("no", "write_back", "write_through")
        return bool(policy == "write_through" and self.options.host_mode == "buffer")

    @property
    def proposes(self) -> bool:
        """True if a verification compares the draft model's distribution with the target's."""
        return self.config.num_speculative_tokens > 0 and self.options.sampled in ("rejection", "block")

    @property
    def verified(self) -> int:
        """Tokens of a verification."""
        return self.config.num_speculative_tokens * int(self.options.breadth) + 1

    @property
    def track(self) -> int:
        """Tokens between two decode snapshots."""
        return max(self.sizes.values()) * int(self.options.track)

    @property
    def tree_core(self) -> str:
        """The core of the radix tree that runs; "" for the default of the release."""
        core: str = self.core or self.options.tree_core
        return core

    def lacks_core(self) -> bool:
        """Return True if the release has no such core of the tree."""
        return bool(self.options.tree_core) and not self.core and self.options.tree_core not in self.cores


ROWS: tuple[Row[Case], ...] = (
    # ---- Shadow layers. What the release has.
    Row("shadow", "tree_core", lambda c: c.lacks_core() and c.options.tree_core == "rust",
        "this SGLang has no tree core rust (its compiled module is missing)"),
    Row("shadow", "tree_core", lambda c: c.lacks_core(), "this SGLang has no tree core {options.tree_core}"),
    Row("shadow", "strategy", lambda c: c.options.strategy not in c.strategies,
        "strategy {options.strategy} is not driven on this release"),
    Row("shadow", "groups",
        lambda c: sorted(c.sizes) != ["attention", "mamba"] or len(c.config.groups) != 2 + len(c.windows),
        "it needs one mamba group and one attention group"),
    Row("shadow", "window", lambda c: c.windows not in ([], [c.sizes["attention"]]),
        "windows need one group with the pages of the attention group"),
    Row("shadow", "window", lambda c: bool(c.windows) and not (c.caches and c.options.strategy != "no_buffer"),
        "windows need prefix caching with strategy extra_buffer or extra_buffer_lazy: so do models that have both"),
    Row("shadow", "window", lambda c: bool(c.windows) and c.tree_core == "rust",
        "windows need tree_core=python: the Rust core does not show which nodes are locked (both side by side do)"),
    Row("shadow", "state_layers", lambda c: c.options.state_layers != "gdn" and bool(c.windows),
        "state_layers={options.state_layers} excludes windows: no model of SGLang 0.5.23 has both"),
    Row("shadow", "async_depth", lambda c: c.config.async_depth > c.async_depth,
        "async_depth must be at most {case.async_depth}"),
    Row("shadow", "num_speculative_tokens", lambda c: c.config.num_speculative_tokens > c.drafts,
        "num_speculative_tokens must be at most {case.drafts}"),
    # Combinations that a server refuses.
    Row("shadow", "mamba_cache_mode", lambda c: c.config.mamba_cache_mode not in ("none", "slots"),
        "its states have a pool of their own: use mamba_cache_mode=slots"),
    Row("shadow", "strategy",
        lambda c: c.caches and c.options.strategy == "no_buffer" and (c.sizes["attention"] > 1 or c.config.async_depth),
        "strategy no_buffer needs pages of one token and no overlap"),
    Row("shadow", "strategy",
        lambda c: c.caches and c.options.strategy == "extra_buffer_lazy" and not c.config.async_depth,
        "strategy extra_buffer_lazy needs overlap (async_depth=1)"),
    Row("shadow", "block sizes",
        lambda c: c.caches and (c.sizes["mamba"] % c.sizes["attention"] or c.sizes["mamba"] < c.config.conv_width),
        "mamba blocks must be a multiple of attention blocks and no smaller than conv_width"),
    Row("shadow", "num_speculative_tokens",
        lambda c: c.caches and c.config.num_speculative_tokens >= c.sizes["mamba"],
        "num_speculative_tokens must be less than the mamba block size"),
    Row("shadow", "breadth", lambda c: c.has_trees and c.caches and c.verified > c.track,
        "breadth={options.breadth} has too many drafts: the server wants no more tokens in a verification than between "
        "two decode snapshots"),
    Row("shadow", "sampled",
        lambda c: c.proposes and (c.options.drafter != "eagle" or c.options.breadth != "1"),
        "sampled={options.sampled} needs drafter=eagle and breadth=1: the server refuses others"),
    Row("shadow", "logits",
        lambda c: c.options.logits != "plain" and c.config.num_speculative_tokens > 0 and c.options.sampled != "no",
        "logits={options.logits} is not driven with sampled={options.sampled}: what is drawn by chance depends on the "
        "tokens that are ruled out"),
    Row("shadow", "breadth",
        lambda c: c.has_trees and bool(c.windows) and c.options.drafter == "ngram" and c.sizes["attention"] > 1,
        "breadth={options.breadth} of n-grams beside windows needs pages of one token: others need flashinfer, which "
        "the one model with both does not run"),
    Row("shadow", "breadth", lambda c: c.has_trees and c.options.unified_memory != "no",
        "breadth={options.breadth} excludes unified memory: the server refuses trees of drafts with it"),
    Row("shadow", "mixed_chunk",
        lambda c: c.options.mixed_chunk == "yes"
        and c.config.num_speculative_tokens > 0 and c.options.drafter == "ngram",
        "mixed_chunk=yes excludes n-gram drafts: the server switches it off"),
    Row("shadow", "mixed_chunk", lambda c: c.options.mixed_chunk == "yes" and c.options.chunked == "no",
        "mixed_chunk=yes needs chunked=yes: the server switches it off"),
    Row("shadow", "delay", lambda c: c.options.delay in ("slots", "queue") and not c.config.async_depth,
        "delay={options.delay} needs overlap (async_depth=1): so does the server"),
    Row("shadow", "order",
        lambda c: c.config.policy == "priority" and c.options.order not in ("fcfs", "lof"),
        "order={options.order} excludes priorities: the server takes fcfs and lof with them"),
    Row("shadow", "order", lambda c: c.options.order == "shortest-prefill-first" and not c.caches,
        "order=shortest-prefill-first needs prefix caching"),
    Row("shadow", "hicache", lambda c: c.options.hicache != "no" and not c.caches,
        "hicache={options.hicache} needs prefix caching"),
    Row("shadow", "hicache", lambda c: c.options.hicache != "no" and c.tree_core not in ("", "python"),
        "hicache={options.hicache} needs tree_core=python: the other one does not show what is on the host"),
    Row("shadow", "host_layout", lambda c: c.options.hicache != "no" and c.options.host_layout == "layer_first",
        "host_layout=layer_first excludes states: the server ends at its start (`MambaPoolHost`)"),
    Row("shadow", "storage", lambda c: c.options.storage != "no" and c.options.hicache == "no",
        "storage={options.storage} needs hicache: it is behind the host"),
    Row("shadow", "storage", lambda c: c.options.storage != "no" and not c.hashes,
        "storage={options.storage} needs a C++ compiler and headers of OpenSSL: SGLang compiles its hash of pages"),
    Row("shadow", "host_mode",
        lambda c: c.options.host_mode == "buffer" and (c.options.storage == "no" or c.options.hicache == "write_back"),
        "host_mode=buffer needs a storage, and a policy that writes through: the server resolves write_back to one"),
    Row("shadow", "session_tags", lambda c: c.options.session_tags == "yes" and c.tree_core == BOTH,
        "session_tags=yes excludes two cores: the server takes the Python one then"),
    Row("shadow", "unified_memory", lambda c: c.options.unified_memory == "eager" and c.options.hicache != "no",
        "unified_memory=eager excludes HiCache: the server ends at its start (`install_move_gate`)"),
    Row("shadow", "unified_memory",
        lambda c: c.options.unified_memory != "no"
        and c.config.num_speculative_tokens > 0 and c.options.hicache != "no",
        "unified_memory={options.unified_memory} excludes drafts beside HiCache: the server refuses them"),
    Row("shadow", "unified_memory",
        lambda c: c.options.unified_memory != "no"
        and c.config.num_speculative_tokens > 0 and c.options.drafter == "ngram",
        "unified_memory={options.unified_memory} excludes n-gram drafts: the server refuses them"),
    Row("shadow", "replay", lambda c: c.options.replay != "0" and c.caches and c.options.strategy != "no_buffer",
        "replay={options.replay} needs strategy no_buffer: the server refuses the others"),
    Row("shadow", "replay", lambda c: c.options.replay != "0" and c.config.num_speculative_tokens > 0,
        "replay={options.replay} excludes drafts: a verification stores states, and no decode runs"),
    Row("shadow", "replay", lambda c: c.options.replay != "0" and c.options.unified_memory != "no",
        "replay={options.replay} excludes unified memory, whose pool has no rings: the flag has no effect"),
    Row("shadow", "replay", lambda c: c.options.replay != "0" and c.options.state_layers != "gdn",
        "replay={options.replay} needs state_layers=gdn: other layers have no kernel that replays"),
    Row("shadow", "int8_checkpoints", lambda c: c.options.int8_checkpoints != "no" and not c.caches,
        "int8_checkpoints={options.int8_checkpoints} needs prefix caching: nothing else stores a checkpoint"),
    Row("shadow", "int8_checkpoints", lambda c: c.options.int8_checkpoints != "no" and c.options.hicache != "no",
        "int8_checkpoints={options.int8_checkpoints} excludes HiCache: the server refuses both"),
    Row("shadow", "int8_checkpoints", lambda c: c.options.int8_checkpoints != "no" and c.options.unified_memory != "no",
        "int8_checkpoints={options.int8_checkpoints} excludes unified memory, which has no such pool: the flag has no "
        "effect"),
    Row("shadow", "int8_checkpoints", lambda c: c.options.int8_checkpoints != "no" and bool(c.windows),
        "int8_checkpoints={options.int8_checkpoints} excludes windows: the only model that has both has no recurrent "
        "state, of which `Int8CheckpointStore.quantize` wants the largest value"),
    Row("shadow", "disaggregation", lambda c: c.is_part and c.caches and c.options.strategy == "extra_buffer_lazy",
        "disaggregation={options.disaggregation} excludes strategy extra_buffer_lazy: the server refuses it "
        "(`validate_mamba_extra_buffer`)"),
    Row("shadow", "disaggregation", lambda c: c.is_part and c.options.replay != "0",
        "disaggregation={options.disaggregation} excludes replay: the server refuses it (`attention_hook`)"),
    Row("shadow", "disaggregation",
        lambda c: c.options.disaggregation == "prefill" and c.config.num_speculative_tokens > 0,
        "disaggregation=prefill is not driven with drafts"),
    Row("shadow", "optimistic", lambda c: c.is_optimistic and not c.allows_optimistic,
        "optimistic={options.optimistic} with HiCache needs write_through or write_back without a storage, and "
        "write_through and host_mode=buffer with one: the server switches it off (`handle_other_validations`)"),
    Row("shadow", "disaggregation", lambda c: c.is_part and c.options.unified_memory != "no",
        "disaggregation={options.disaggregation} is not driven with unified memory: an assertion about state slots "
        "there has not been explained"),
    Row("shadow", "disaggregation",
        lambda c: c.options.disaggregation == "decode"
        and c.config.num_speculative_tokens > 0 and c.options.drafter == "ngram",
        "disaggregation=decode excludes n-gram drafts: the server refuses them with prefix caching "
        "(`arg_groups/speculative_hook.py`) and ends at its first request without (`FutureMap.stash`)"),
    Row("shadow", "disaggregation",
        lambda c: c.options.disaggregation == "decode" and c.proposes,
        "disaggregation=decode is not driven with sampled={options.sampled}"),
    Row("shadow", "disaggregation", lambda c: c.options.disaggregation == "decode" and c.options.hicache != "no",
        "disaggregation=decode is not driven with HiCache"),
    Row("shadow", "disaggregation", lambda c: c.options.disaggregation == "decode" and c.options.inputs != "tokens",
        "disaggregation=decode is not driven with inputs={options.inputs}: a pause has prompts computed again by their "
        "tokens alone (`Req.build_rebootstrap_payload`)"),
    Row("shadow", "disaggregation", lambda c: c.options.disaggregation == "decode" and bool(c.windows),
        "disaggregation=decode is not driven with windows"),
    Row("shadow", "disaggregation",
        lambda c: c.options.disaggregation == "decode" and c.options.int8_checkpoints != "no",
        "disaggregation=decode is not driven with int8 checkpoints"),
    # ---- Scripts.
    Row("script", "tree_core", lambda c: c.options.tree_core == BOTH, "two tree cores side by side"),
    Row("script", "disaggregation", lambda c: c.options.disaggregation != "no",
        "a prefill or decode server: the stand-ins for the other server and the network are not part of scripts"),
    Row("script", "assertions", lambda c: not shown(c.failure), "{failure.oracle} ({failure.field}) on SGLang yet"),
)  # fmt: skip


def shown(failure: Failure) -> str:
    """Return how a script shows a failure, "" if it cannot."""
    return SHOWN.get((failure.oracle, failure.field)) or SHOWN.get((failure.oracle, ""), "")


def refusal(kit: Kit, case: Case) -> str:
    """Return "", or the reason why a kit cannot run a case."""
    return first_reason(ROWS, kit, case, case=case, config=case.config, options=case.options, failure=case.failure)


def limits() -> list[Limit]:
    """Return the table in words."""
    return in_words(ROWS, "case", "config", "options", "failure")
