"""The `Target` protocol, and the description of what a target can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from ...reference.layout import Layout, Mode
from ...reference.prefix_cache import Key
from .numbers import Bytes
from .observe import Content, Effect, View
from .stock import Setting
from .trace import Config, Event


class TargetError(Exception):
    """A target is not available or does not support a configuration; the message is one line with the remedy."""


class MisfitError(TargetError):
    """The adapter does not fit this version of its engine: a name that it reads has moved. The message names the error
    and the line of the adapter."""


class EngineError(RuntimeError):
    """A stand-in of an adapter, such as an interpreter of kernels, found the engine's own code at fault: a store out of
    bounds, say. It counts as an exception of the engine, although the adapter raises it."""


class EngineStalled(EngineError):
    """The engine does not end what an adapter waits for inside one event. The finding is a HANG, as without a bound on
    that wait, but needs no time limit."""


Usual = Literal[
    "chunked-prefill", "preemption", "zeroing", "drafts-past-end", "least-beside-drafts", "least-by-grammar",
    "cut-drafts", "prompts", "long-answers", "strings-everywhere",
]  # fmt: skip
"""Features that a target has unless it lists them in `Capabilities.lacks`."""
Observation = Literal[
    "pool", "labels", "tables", "accesses", "content", "caches", "device_order", "estimates", "leftovers", "numeric",
    "real_model", "side_by_side",
]  # fmt: skip
"""Words of `Capabilities.observes`: each enables the oracles that need it (docs/reference/capabilities.md)."""
Feature = Literal[
    "pool", "block-tables", "padding", "stores", "partial-hits", "lookahead-hashes", "snapshots", "chunks",
    "async-loads", "failing-loads", "held-for-transfer", "sync-loads", "images", "adapters", "reset-when-idle",
    "stop-tokens", "loads-back", "prompt-logprobs", "structured-output", "samples",
    "stop-strings", "min-tokens", "failing-grammars", "overlaps", "storage", "drafts-past-length",
    "chosen-loads", "evicts-stored", "logprobs-from", "reasoning", "aborted-turns", "copied-states",
    "draft-trees", "reloads", "sends",
]  # fmt: skip
"""Words of `Capabilities.features` (docs/reference/capabilities.md)."""


PLAIN_DOCUMENTS = ("a", "b", "c")
"""Documents of plain text that prompts are drawn from: few, so that prefixes are shared."""


class Capabilities(Struct, frozen=True):
    """What the workload may draw, and which observations the oracles may use.

    What happens
    events       event tags that the target understands ("step" and "arrive" always)
    policies     orders in which waiting requests are admitted
    max_async_depth  most steps that may be planned ahead of the one that the device runs
    depths       switch -> value -> the most with it, where that is fewer

    Sizes
    block_sizes  (mamba, attention) pairs to draw from; all groups of a kind have the same size. Prompt and output
                 lengths, max_model_len, token budgets and chunk limits are drawn in multiples of the larger one. Of
                 plain caches: the chunk sizes of the kernels, at whose multiples something may change
    group_counts (mamba groups, attention groups) pairs to draw from
    layers_per_group  numbers of layers to draw from
    draft_block_sizes  for an attention group of the drafter's own, 0 for that of the model's attention; () where a
                 target has none
    windows      tokens that a sliding-window attention group reaches back, () where a target has none
    attention_chunks  chunks of a chunked-local attention group, in blocks, () where a target has none
    conv_widths  tokens that a convolution sees, its own included, to draw from
    max_model_len  upper bound of a request's prompt and output, in tokens

    Caching and speculation
    modes        mamba cache modes; "none" means prefix caching off
    max_speculative_tokens  most drafts of a step (k), 0 where there is no speculation
    speculative_modes  the cache modes in which the target speculates
    variable_drafts  rows of one step may have different numbers of drafts
    eagle_block_drop  the target has EAGLE's rules: a hit may leave out its last matched block, or keys name the token
                 behind their block

    The target's own switches
    options      switches and their values, drawn per trace. A value that is listed several times is drawn more often,
                 and is the usual one: a configuration that is refused falls back to it
    accepts      further values of switches: a trace may have them, but they are not drawn
    pressure     switch -> values with which memory is short or given back late. Configurations under pressure have
                 one of them each, and few running requests; without any there are none
    together     switches with a usual value, "window" for sliding windows and "drafts", that seldom occur together:
                 some configurations aim at all of a tuple, as others do at one extra
    documents    switch -> value -> documents that prompts are drawn from with it, instead of plain ones
    features_with  switch -> value -> features, usual ones too, "speculation", events and kinds of groups
                 ("sliding-window", "attention-chunks", "draft-group") that the target has only with it, or with another
                 value that lists them: a campaign that fixes the switch to a value without them does not have to reach
                 their states. Traces with such a value have no such events, and without "long-answers" no answers of
                 several tokens

    What is judged
    observes     words of `Observation`: each enables the oracles that need it
    features     what else the target has. "block-tables": all groups draw blocks from one pool and name them in tables;
                 "pool": blocks of another kind of pool. With neither the target has plain caches: no size of a pool is
                 drawn, and states of a pool are not required. "padding", "stores", "partial-hits",
                 "lookahead-hashes" (keys may name the token behind their block), "snapshots", "held-for-transfer",
                 "sync-loads", "loads-back" (the cache keeps content outside the pool and loads it back), "storage" (and
                 reads back what it does not hold there any more), "chosen-loads" (the trace chooses what is loaded, and
                 which loads break off), "evicts-stored" (content outside the pool is evicted), "reloads" (what the
                 pool evicts may be loaded for whoever asks for it again), "sends" (an answer of one token is held back
                 until another engine has received the content of its request), "images",
                 "copied-states" (a state that is cached is copied into a block of the cache's own),
                 "overlaps" and "failing-loads" make reached states required; so does "async-loads", which also makes
                 the workload draw delays of loads; "chunks" makes it draw chunk limits for single requests
    notes        what a reader should know of this version, one clause each
    lacks        what nearly every engine does and this one does not: states that need it are not required
    engine       import names of the engine's packages. Their functions are suggested as places of a bug, and an
                 exception is the engine's if the innermost frame of engine and adapter is theirs, else the adapter's.
                 Without any the two cannot be told apart

    What a server runs
    stock        settings by which a configuration may depart from the stock server, those first that are tried first to
                 be without; None where that is not declared: findings then have no severity (`group.findings.severity`)
    has_server   people run it as a server: more than half of the traces are drawn near the stock server

    What it costs
    traces_per_second  rough throughput of one core; turns a gate's time budget into a number of traces that is the
                 same on every machine
    traces_per_configuration  consecutive traces that share a configuration: for engines that are expensive to build and
                 are reset between traces
    """

    events: frozenset[str]
    modes: tuple[Mode, ...]
    observes: frozenset[str]
    block_sizes: tuple[tuple[int, int], ...]
    group_counts: tuple[tuple[int, int], ...] = ((1, 1),)
    layers_per_group: tuple[int, ...] = (1,)
    draft_block_sizes: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    attention_chunks: tuple[int, ...] = ()
    max_speculative_tokens: int = 0
    speculative_modes: tuple[Mode, ...] = ("none", "align", "all")
    variable_drafts: bool = False
    max_async_depth: int = 0
    depths: dict[str, dict[str, int]] = {}
    eagle_block_drop: bool = False
    policies: tuple[Literal["fcfs", "priority"], ...] = ("fcfs",)
    conv_widths: tuple[int, ...] = (4,)
    max_model_len: int = 96
    options: dict[str, tuple[str, ...]] = {}
    accepts: dict[str, tuple[str, ...]] = {}
    pressure: dict[str, tuple[str, ...]] = {}
    together: tuple[tuple[str, ...], ...] = ()
    documents: dict[str, dict[str, tuple[str, ...]]] = {}
    features_with: dict[str, dict[str, frozenset[str]]] = {}
    traces_per_second: float = 4.0
    traces_per_configuration: int = 1
    features: frozenset[str] = frozenset()
    lacks: frozenset[Usual] = frozenset()
    notes: tuple[str, ...] = ()
    engine: tuple[str, ...] = ()
    stock: tuple[Setting, ...] | None = None
    has_server: bool = False

    @property
    def has_pool(self) -> bool:
        """True if blocks come from a pool; False for plain caches."""
        return not self.features.isdisjoint({"pool", "block-tables"})

    @property
    def extra_groups(self) -> frozenset[str]:
        """The kinds of groups that some configurations have beside states and full attention, as features."""
        kinds = {
            "sliding-window": self.windows,
            "attention-chunks": self.attention_chunks,
            "draft-group": self.draft_block_sizes,
        }
        return frozenset(kind for kind, values in kinds.items() if values)

    @property
    def usual_options(self) -> dict[str, str]:
        """The options that have a usual value, with that value."""
        most = {name: max(values, key=values.count) for name, values in self.options.items()}
        return {name: value for name, value in most.items() if self.options[name].count(value) > 1}

    def switched_off(self, options: Mapping[str, str]) -> frozenset[str]:
        """Return the features, usual ones too, events and kinds of groups that these options of a configuration switch
        off (`features_with`)."""
        off = frozenset[str]()
        for name, by_value in self.features_with.items():
            if name in options:
                off |= frozenset().union(*by_value.values()) - by_value.get(options[name], frozenset())
        return off

    def depth_with(self, options: Mapping[str, str]) -> int:
        """Return the most steps that may be planned ahead with these options of a configuration."""
        fewer = (depths.get(options.get(name, "")) for name, depths in self.depths.items())
        return min((depth for depth in fewer if depth is not None), default=self.max_async_depth)

    def documents_with(self, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the documents that prompts are drawn from with these options of a configuration."""
        declared = (names.get(options.get(name, "")) for name, names in self.documents.items())
        return next((names for names in declared if names), PLAIN_DOCUMENTS)


class Target(Protocol):
    """One engine, configured for one trace and used for that trace only."""

    layout: Layout

    def apply(self, event: Event) -> Effect:
        """Let the event happen; return the records of what it did. Any exception is a finding (CRASH)."""
        ...

    def view(self) -> View:
        """Return a snapshot of the host's metadata."""
        ...

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of one layer's page of a block (of plain caches: of the cache with this id), read from the
        target's own storage."""
        ...

    def close(self) -> None:
        """Release all resources. Called once, also after a crash. An exception is a finding if there is none yet."""
        ...


class NumericTarget(Target, Protocol):
    """A target that reports `Numeric` records; its capabilities observe "numeric"."""

    def read_bytes(self, group: int, layer: int, block: int) -> Bytes:
        """Return the content of one layer's page of a block as numbers."""
        ...

    def read_stored(self, key: Key, layer: int) -> Bytes | None:
        """Return the content stored outside the pool under a key as numbers; None if this layer is not stored."""
        ...


@runtime_checkable
class Narrator(Protocol):
    """A factory that may take long before a trace runs, and says for what. The worker sets `say` before it opens one.

    It is given a few words, such as "opening an engine", whenever what is waited for changes.
    """

    say: Callable[[str], None]


@runtime_checkable
class Waits(Protocol):
    """A factory whose engines wait for something that is neither theirs nor ours, such as a compiler.

    waited  seconds so far in this process, by what; grows in place
    """

    waited: Mapping[str, float]


class TargetFactory(Protocol):
    """A kind of target: has capabilities and opens one instance per trace."""

    name: str
    capabilities: Capabilities

    def supports(self, config: Config) -> str:
        """Return "" if the target supports a configuration, else one clause with the reason."""
        ...

    def open(self, config: Config) -> Target:
        """Build an engine for a configuration that `supports` takes: who opens has asked (`open_supported`), a trace is
        refused before. TargetError if only the engine that is built shows that it does not take it."""
        ...


def open_supported(factory: TargetFactory, config: Config) -> Target:
    """Ask whether a configuration is supported, and build an engine for it. Raises TargetError with the reason."""
    if reason := factory.supports(config):
        raise TargetError(f"{factory.name}: {reason}; change the configuration")
    return factory.open(config)
