"""Blocks that a forward changed though its metadata names none of them: seen by their bytes.

A kernel may write where no argument of it points. In a step with requests the real model's numbers show that; after a
dummy run nothing reads the blocks soon, so only their bytes do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from ...base.observe import Access, SlotWrite, StateWrite


def written(access: Access) -> Sequence[int]:
    """Return the blocks into which a kernel was told to write."""
    if isinstance(access, StateWrite):
        return (access.block,)
    return access.blocks if isinstance(access, SlotWrite) else ()


def unsaid_writes(
    accesses: Sequence[Access],
    sinks: Collection[int],
    places: Sequence[tuple[int, int]],
    before: Sequence[torch.Tensor],
    pages: Sequence[torch.Tensor],
) -> list[StateWrite]:
    """Return a write of row 0 for each block that changed and that no access, and no sink, accounts for.

    `before` and `pages` are [blocks, bytes] of each slot of layers, `places` the group and layer that a slot is named
    after.
    """
    told = {*sinks, *(block for access in accesses for block in written(access))}
    found = []
    for place, then, now in zip(places, before, pages, strict=True):
        changed: list[int] = (now != then).any(1).nonzero().flatten().tolist()
        found += [StateWrite(0, *place, -1, block, 0, None, None) for block in changed if block not in told]
    return found
