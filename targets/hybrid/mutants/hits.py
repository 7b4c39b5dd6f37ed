"""How long a prefix hit is, and what it takes along."""

from __future__ import annotations

from collections.abc import Sequence

from ..cache import CacheManager, Hit
from ..pool import NULL_BLOCK


class EagleMarginExpandsMambaHit(CacheManager):
    """Groups of states are looked up one block further than the candidate, and never give that block up.

    vLLM #43559, #53912: attention is looked up to the candidate plus one block and then drops its last block for the
    drafter; states were looked up with the same margin but drop nothing, so the hit grew past what attention holds.
    """

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit = super().find_hit(tags, num_tokens)
        if not self.layout.eagle_drop:
            return hit
        unit, length = self.layout.hit_unit, hit.length
        for group in self.groups:
            if group.kind == "mamba" and hit.length + unit < num_tokens:
                length = max(length, group.find_hit(tags, hit.length + unit) // unit * unit)
        pairs = zip(self.groups, hit.blocks, strict=True)
        return Hit(
            length,
            tuple(
                group.hit_blocks(tags, length)
                if group.kind == "mamba" and group.find_hit(tags, length) == length
                else own
                for group, own in pairs
            ),
            hit.defer,
        )


class AllGroupsEagleFallback(CacheManager):
    """Where no group belongs to the drafter, every group gives up its last block, states included.

    vLLM #54360, #57616: plain MTP has no draft group; "none flagged" fell back to flagging all, and a group of states
    that gives up its only state has nothing left.
    """

    def drop_for_eagle(self, tags: Sequence[int], length: int) -> int:
        length = super().drop_for_eagle(tags, length)
        if self.layout.eagle_drop and not any(group.draft for group in self.layout.groups):
            for group in self.groups:
                length = min(length, max(group.find_hit(tags, length) - group.block_size, 0))
        return length // self.layout.hit_unit * self.layout.hit_unit


class KeepAttentionHitOnMambaMiss(CacheManager):
    """Where no state is cached, the hit of the attention groups is kept.

    vLLM #47491, #43090: the hit length is one number for all groups, so the state kernels believe in an initial state
    and read the null column.
    """

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit = super().find_hit(tags, num_tokens)
        unit = self.layout.hit_unit
        length = self.drop_for_eagle(tags, (num_tokens - 1) // unit * unit)
        states = [group for group in self.groups if group.kind == "mamba"]
        if (
            hit.length
            or not states
            or not self.layout.prefix_caching
            or any(one.find_hit(tags, length) for one in states)
        ):
            return hit
        length = min([group.find_hit(tags, length) for group in self.groups if group.kind != "mamba"], default=0)
        length = length // unit * unit
        return Hit(
            length,
            tuple(
                [NULL_BLOCK] * (length // group.block_size) if group.kind == "mamba" else group.hit_blocks(tags, length)
                for group in self.groups
            ),
        )


PARTS: dict[str, type] = {
    "eagle-margin-expands-mamba-hit": EagleMarginExpandsMambaHit,
    "all-groups-eagle-fallback": AllGroupsEagleFallback,
    "keep-attention-hit-on-mamba-miss": KeepAttentionHitOnMambaMiss,
}
