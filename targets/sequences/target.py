"""A client on the built-in memory of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...reference.layout import Group, Layout
from ..base.observe import Content, Forward, ForwardRow, Record, SlotContent, StateContent
from ..base.shadow import sample
from ..base.trace import Config
from . import operations as do
from .client import Fed, sequences_of
from .client_target import ClientTarget
from .memory import Memory


def window_of(config: Config) -> int:
    """Return how many tokens attention reaches back, 0 for all: also for a trace from before there was a choice."""
    return int(config.options.get("window", "0"))


def make_layout(config: Config) -> Layout:
    """Return the groups of a configuration: single positions for attention, and no pool."""
    window = window_of(config)
    groups = [
        Group("mamba", group.block_size) if group.kind == "mamba" else Group("attention", 1, window=window)
        for group in config.groups
    ]
    return Layout(
        tuple(groups), 0, config.conv_width, "none", False, config.num_speculative_tokens,
        null_block=None, zeroing=False,
    )  # fmt: skip


class SequencesTarget(ClientTarget):
    """One client and its memory for one trace. A mutant replaces the class of the memory."""

    memory_class: ClassVar[type[Memory]] = Memory

    def __init__(self, config: Config) -> None:
        planes, ubatch = int(config.options["planes"]), int(config.options["ubatch"])
        self.memory = self.memory_class(sequences_of(config), planes, config.conv_width, ubatch, window_of(config))
        super().__init__(config, make_layout(config), [self.memory], planes)

    def decode(self, step: int, fed: Sequence[Fed], batch: do.Decode) -> Sequence[Record]:
        """Compute a batch; what it samples follows from the content of the memory."""
        tags = self.memory.decode(batch.rows)
        rows = [
            ForwardRow(one.request.name, one.row.start, one.row.tokens, one.drafts, _sampled(one, after))
            for one, after in zip(fed, tags, strict=True)
        ]
        return [Forward(step, rows, ())]

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a sequence: its state, or its positions."""
        if self.layout.groups[group].kind == "mamba":
            return StateContent(*self.memory.newest(block))
        return SlotContent([tag for tag in self.memory.slots(block) if tag is not None])

    def close(self) -> None:
        """Do nothing: a memory is a plain object."""


def _sampled(one: Fed, tags: Sequence[int]) -> Sequence[int]:
    """Return the tokens that the verification of a row accepts, and the next one, given the tags after its tokens."""
    if not one.samples:
        return ()
    first = len(tags) - one.drafts
    sampled = [sample(tags[first - 1])]
    for place, draft in enumerate(one.row.tokens[first:], first):
        if sampled[-1] != draft:
            break
        sampled.append(sample(tags[place]))
    return tuple(sampled)
