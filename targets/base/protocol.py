"""The `Target` protocol, the description of what a target can do, and the registry."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from ...reference.layout import Layout, Mode
from ...reference.prefix_cache import Key
from .numbers import Bytes
from .observe import Content, Effect, View
from .trace import Config, Event


class TargetError(Exception):
    """A target cannot be had or cannot take a configuration; the message is one line with the cure."""


Usual = Literal["chunked-prefill", "preemption", "zeroing"]


class Capabilities(Struct, frozen=True):
    """What the workload may draw and which observations the oracles may use.

    events       event tags that the target understands ("step" and "arrive" always)
    modes        mamba cache modes; "none" means prefix caching off
    observes     of "pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers",
                 "numeric": each enables the oracles that need it
    block_sizes  (mamba, attention) pairs to draw from; more than one group of a kind shares its size
    group_counts (mamba groups, attention groups) pairs to draw from
    draft_block_sizes  for an attention group of the drafter's own, () where a target has none
    windows      tokens that a sliding-window attention group reaches back, () where a target has none
    options      the target's own switches and their values, drawn per trace
    accepts      further values of switches, which a trace may have and no draw does
    traces_per_second  what one core runs, roughly; turns a gate's time budget into a number of traces that is the
                 same on every machine
    """

    events: frozenset[str]
    modes: tuple[Mode, ...]
    observes: frozenset[str]
    block_sizes: tuple[tuple[int, int], ...]
    group_counts: tuple[tuple[int, int], ...] = ((1, 1),)
    layers_per_group: tuple[int, ...] = (1,)
    draft_block_sizes: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    max_speculative_tokens: int = 0
    speculative_modes: tuple[Mode, ...] = ("none", "align", "all")
    variable_drafts: bool = False
    max_async_depth: int = 0
    eagle_block_drop: bool = False
    policies: tuple[Literal["fcfs", "priority"], ...] = ("fcfs",)
    conv_widths: tuple[int, ...] = (4,)
    max_model_len: int = 96
    options: dict[str, tuple[str, ...]] = {}
    accepts: dict[str, tuple[str, ...]] = {}
    traces_per_second: float = 4.0
    reaches: frozenset[str] = frozenset()
    """Further features that make reached states required of the target, e.g. "padding"."""
    lacks: frozenset[Usual] = frozenset()
    """What nearly every engine does and this one does not: states that need it are not required of it."""


class Target(Protocol):
    """One engine, configured for one trace. Not reusable: one trace, one target."""

    layout: Layout

    def apply(self, event: Event) -> Effect:
        """Let the event happen. An exception is a finding (the target crashed)."""
        ...

    def view(self) -> View:
        """The host's metadata now."""
        ...

    def read(self, group: int, layer: int, block: int) -> Content:
        """What a block's page holds now, from the target's own storage."""
        ...

    def close(self) -> None:
        """Give everything back; called once, also after a crash."""
        ...


class NumericTarget(Target, Protocol):
    """A target that reports `Numeric` records and says so: it observes "numeric"."""

    def read_bytes(self, group: int, layer: int, block: int) -> Bytes:
        """What a block's page holds now, as numbers."""
        ...

    def read_stored(self, key: Key, layer: int) -> Bytes | None:
        """What is kept outside of the pool under a key, as numbers; None if this layer is not."""
        ...


class TargetFactory(Protocol):
    """A kind of target: knows its capabilities and opens one instance per trace."""

    name: str
    capabilities: Capabilities

    def supports(self, config: Config) -> str:
        """Empty, or one clause that says why the target cannot take a configuration that it may be offered."""
        ...

    def open(self, config: Config) -> Target:
        """Build an engine. TargetError if it cannot take the configuration."""
        ...
