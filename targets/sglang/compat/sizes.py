"""The sizes of one engine, in SGLang's terms."""

from __future__ import annotations

from dataclasses import dataclass

from . import old_releases


@dataclass(frozen=True)
class Sizes:
    """A configuration in SGLang's terms; lengths in tokens.

    caching  False with `disable_radix_cache`: then there are neither snapshots nor strategies
    chunk   grid of prefill snapshots (`mamba_cache_chunk_size`)
    track   grid of decode snapshots (`mamba_track_interval`)
    drafts  tokens of one verification, 0 without speculation
    """

    caching: bool
    strategy: str
    overlap: bool
    tree_core: str
    page: int
    chunk: int
    track: int
    rows: int
    slots: int
    pages: int
    context: int
    state_layers: int
    attention_layers: int
    window: int
    drafts: int

    @property
    def request_slots(self) -> int:
        """Most state slots of one request: the working one and those for snapshots."""
        if self.strategy == "no_buffer":
            return 1
        return 3 if self.overlap or old_releases.always_two_tracks() else 2

    @property
    def first_page(self) -> int:
        """Number of KV page 0."""
        return self.slots + 1
