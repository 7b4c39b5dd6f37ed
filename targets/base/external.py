"""Content outside of an engine's pool, as a KV connector's store has it: keys, and what a load must bring.

A hit of L tokens in the pool is extended by a load to L + E tokens if the store has every attention block after L and
every state at exactly L + E; with `Layout.loads_complete_hits` also every block of local attention, or of a drafter's,
that the request still attends to, since these groups may lack blocks of the hit. A state cannot be assembled from
parts: in a model with states, attention content alone is no hit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import lcm

from ...reference.layout import Layout, first_attended
from ...reference.prefix_cache import Key, key_at
from ...reference.tokens import EMPTY, chain, window_of
from .observe import Content, SlotContent, StateContent


def whole_blocks(layout: Layout) -> int:
    """Return the tokens after which every group is at the end of a block."""
    return lcm(*(group.block_size for group in layout.groups))


def computed_elsewhere(layout: Layout, tokens: Sequence[int], states: bool, unit: int) -> Iterator[tuple[Key, Content]]:
    """Yield what another engine stores for these tokens: all attention blocks and, if `states`, the state of each group
    at the last multiple of `unit` tokens. The content is the same for all layers of a group. A block whose last slot
    depends on the token after it (`Group.shift`) needs that token."""
    length, tags = len(tokens), (EMPTY, *chain(EMPTY, tuple(tokens)))
    boundary = max(length - layout.lookahead, 0) // unit * unit
    for index, group in enumerate(layout.groups):
        size = group.block_size
        if group.kind == "attention":
            for depth in range(size, length - max(group.shift, layout.lookahead) + 1, size):
                end = depth + group.shift + 1
                yield key_at(layout, index, tags, depth), SlotContent(list(tags[end - size : end]))
        elif states and boundary:
            window = window_of(tags[1 : boundary + 1], layout.conv_width)
            state = StateContent(tags[boundary] if group.recurrent else None, window if group.conv else ())
            yield key_at(layout, index, tags, boundary), state


def keys_to_load(layout: Layout, index: int, tags: Sequence[int], local: int, total: int) -> list[Key]:
    """Return the keys that a group must load to continue from `total` tokens if the pool has `local`."""
    group = layout.groups[index]
    if group.kind == "mamba":
        return [key_at(layout, index, tags, total)]
    size = group.block_size
    computed = 0 if layout.loads_complete_hits and (group.is_local or group.shift) else local
    first = max(computed // size, first_attended(group, total) // size)
    return [key_at(layout, index, tags, depth) for depth in range((first + 1) * size, total + 1, size)]


def longest_load(layout: Layout, stored: Collection[Key], tags: Sequence[int], local: int, num_tokens: int) -> int:
    """Return how many tokens after a local hit of `local` tokens can be loaded, up to the end of a block in all groups;
    at least one is left to compute."""
    unit = whole_blocks(layout)
    for total in range((num_tokens - layout.left_to_compute) // unit * unit, local, -unit):
        groups = range(len(layout.groups))
        if all(key in stored for index in groups for key in keys_to_load(layout, index, tags, local, total)):
            return total - local
    return 0
