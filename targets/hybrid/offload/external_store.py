"""Content outside the pool, by key, as in a KV connector or a second memory tier.

Pages are copied part by part (temporal state, convolution window, attention slots) and layer by layer, as in real
engines. Entries never change: the key is a digest of the content.

The store has no capacity limit and takes no decisions; see `connector`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from ....reference.layout import Layout
from ....reference.prefix_cache import Key
from ...base.external import computed_elsewhere
from ...base.observe import Content, Loaded, Record, SlotContent, StateContent
from ..plan import Load
from ..tag_memory import TagMemory


@mypyc_attr(allow_interpreted_subclasses=True)
class ExternalStore:
    """Pages outside the pool, by key."""

    def __init__(self, layout: Layout, memory: TagMemory) -> None:
        self.layout = layout
        self.memory = memory
        self.pages: dict[Key, tuple[Content, ...]] = {}

    def seed(self, tokens: Sequence[int], states: bool) -> None:
        """Add entries for these tokens, as computed by another engine."""
        for key, content in computed_elsewhere(self.layout, tokens, states, self.layout.hit_unit):
            self.pages.setdefault(key, (content,) * self.layout.groups[key.group].layers)

    def layers(self, group: int) -> Sequence[int]:
        """Return the layers of a group that are copied."""
        return range(self.layout.groups[group].layers)

    def save(self, key: Key, block: int) -> None:
        """Copy a block's pages out of the pool."""
        if key not in self.pages:
            self.pages[key] = tuple(self.page(key.group, layer, block) for layer in self.layers(key.group))

    def page(self, group: int, layer: int, block: int) -> Content:
        """Return the present content of one layer's page."""
        if self.layout.groups[group].kind == "attention":
            return SlotContent(list(self.memory.slots(layer, block, self.layout.groups[group].block_size)))
        return StateContent(self.memory.temporal(layer, block), self.window(layer, block))

    def window(self, layer: int, block: int) -> tuple[int, ...]:
        """Return the convolution window of a state page."""
        return self.memory.conv(layer, block)[: self.layout.conv_width - 1]

    def load(self, step: int, request: str, load: Load, records: list[Record]) -> None:
        """Copy an entry into a block; missing layers are skipped."""
        pages = self.pages.get(load.key, ())
        for layer, page in zip(self.layers(load.group), pages, strict=False):
            where = (step, request, load.group, layer, load.column, load.block)
            if isinstance(page, StateContent):
                assert page.temporal is not None
                self.load_temporal(layer, load.block, page.temporal)
                records.append(Loaded(*where, temporal=True))
                self.load_window(layer, load.block, page.window)
                records.append(Loaded(*where, conv=True))
            elif isinstance(page, SlotContent):
                self.load_slots(layer, load.block, page.tags)
                records.append(Loaded(*where, slots=len(page.tags)))

    def load_temporal(self, layer: int, block: int, tag: int) -> None:
        """Copy a recurrent state into a state page."""
        self.memory.store_temporal(layer, block, tag)

    def load_slots(self, layer: int, block: int, tags: Sequence[int]) -> None:
        """Copy KV into an attention page."""
        self.memory.store_slots(layer, block, len(tags), 0, tags)

    def load_window(self, layer: int, block: int, window: tuple[int, ...]) -> None:
        """Copy a convolution window into a state page."""
        self.memory.store_conv(layer, block, window)
