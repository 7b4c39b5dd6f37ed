"""Pages of tags: a symbolic stand-in for the bytes of the pool.

Block b has one page in each layer slot; layer i of every group uses the same page (engines overlay the groups on
one tensor), so a block that changes from a mamba group to an attention group keeps foreign bytes until they are
zeroed or overwritten. Foreign bytes read as `POISON`, the symbolic NaN: it sticks to everything computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from ...reference.tokens import NO_INPUT

_GARBAGE, _STATE, _SLOTS, _ZERO = range(4)


@mypyc_attr(allow_interpreted_subclasses=True)
class TagMemory:
    """`layers` pages for each of `num_blocks` blocks.

    Unwritten bytes read as `garbage`: POISON where states and keys share the pool, a finite value where all pages have
    one dtype.
    """

    def __init__(self, num_blocks: int, layers: int, conv_width: int, garbage: int) -> None:
        self._num_blocks = num_blocks
        self._garbage = garbage
        self._no_window = (NO_INPUT,) * (conv_width - 1)
        self._layers = range(layers)
        self.scramble()

    def scramble(self) -> None:
        """Lose all content."""
        blocks = self._num_blocks
        self._kind = [[_GARBAGE] * blocks for _ in self._layers]
        self._temporal = [[self._garbage] * blocks for _ in self._layers]
        self._conv: list[list[tuple[int, ...]]] = [[()] * blocks for _ in self._layers]
        self._slots: list[list[list[int]]] = [[[] for _ in range(blocks)] for _ in self._layers]

    def zero(self, block: int) -> None:
        """Zero the page of every layer."""
        for layer in self._layers:
            self._kind[layer][block] = _ZERO

    def pages(self) -> list[list[tuple[object, ...]]]:
        """Return all that can be read from each page, by layer and block: its kind, then its content."""
        return [[self._page(layer, block) for block in range(self._num_blocks)] for layer in self._layers]

    def _page(self, layer: int, block: int) -> tuple[object, ...]:
        kind = self._kind[layer][block]
        if kind == _STATE:
            return kind, self._temporal[layer][block], self._conv[layer][block]
        return (kind, *self._slots[layer][block]) if kind == _SLOTS else (kind,)

    def temporal(self, layer: int, block: int) -> int:
        """Return the tag of the recurrent state."""
        kind = self._kind[layer][block]
        return self._temporal[layer][block] if kind == _STATE else (NO_INPUT if kind == _ZERO else self._garbage)

    def conv(self, layer: int, block: int) -> tuple[int, ...]:
        """Return the convolution buffer: a window, then one input for each token verified but not yet accepted."""
        kind, buffer = self._kind[layer][block], self._conv[layer][block]
        if kind == _STATE and buffer:
            return buffer
        return self._no_window if kind == _ZERO else (self._garbage,) * len(self._no_window)

    def _become_state(self, layer: int, block: int) -> None:
        zero = self._kind[layer][block] == _ZERO
        self._temporal[layer][block] = NO_INPUT if zero else self._garbage
        self._conv[layer][block] = self._no_window if zero else ()
        self._kind[layer][block] = _STATE

    def store_temporal(self, layer: int, block: int, tag: int) -> None:
        """Overwrite the recurrent state."""
        if self._kind[layer][block] != _STATE:
            self._become_state(layer, block)
        self._temporal[layer][block] = tag

    def store_conv(self, layer: int, block: int, window: tuple[int, ...]) -> None:
        """Overwrite the convolution buffer."""
        if self._kind[layer][block] != _STATE:
            self._become_state(layer, block)
        self._conv[layer][block] = window

    def slots(self, layer: int, block: int, size: int) -> Sequence[int]:
        """Return the tags of all `size` attention slots of a page."""
        kind, page = self._kind[layer][block], self._slots[layer][block]
        if kind == _SLOTS and len(page) == size:
            return page
        return [NO_INPUT if kind == _ZERO else self._garbage] * size

    def store_slots(self, layer: int, block: int, size: int, first: int, tags: Sequence[int]) -> None:
        """Overwrite slots of an attention page of `size` slots, from slot `first` on."""
        page = self._slots[layer][block]
        if self._kind[layer][block] != _SLOTS or len(page) != size:
            page = self._slots[layer][block] = list(self.slots(layer, block, size))
            self._kind[layer][block] = _SLOTS
        page[first : first + len(tags)] = tags
