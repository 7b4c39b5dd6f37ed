"""Bytes of pages outside the pool: those of a connector and of a second memory tier.

A page leaves the pool whole, in all fills. The symbolic store determines which parts of it are loaded, and where: see
`shadows.NumericStore`. Content computed by another engine comes from the float64 model, rounded to the page's dtype.

The pages outlive the pool, whose bytes may be freed meanwhile, and never change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ....reference.layout import Layout
from ....reference.numeric.tiny_model import TinyModel, embedding_row
from ....reference.numeric.truth import make_track
from ....reference.prefix_cache import Key
from .backend import Device
from .kernels.staging import Slot, Staging
from .kernels.streams import Fence
from .paging import PageLayout
from .pool import FILL_BYTES, FILLS, parts_of


class OffloadedPages:
    """Pages by key and layer: uint8 [fills, page size] on the host, pinned where a GPU reads and writes them."""

    def __init__(self, layout: Layout, model: TinyModel, pages: PageLayout, device: Device) -> None:
        self.layout = layout
        self.model = model
        self.device = device
        self.layout_of_pages = pages
        self.pages: dict[Key, dict[int, Tensor]] = {}
        self.written: dict[tuple[Key, int], Fence] = {}
        """Fence after the copy of each page out of the pool."""

    def new_page(self, key: Key, layer: int) -> Tensor:
        """Return a new page with the dead bytes of each fill."""
        page = torch.empty(len(FILLS), self.layout_of_pages.size, dtype=torch.uint8, pin_memory=self.device.is_cuda)
        for fill, byte in enumerate(FILL_BYTES):
            page[fill] = byte
        self.pages.setdefault(key, {})[layer] = page
        return page

    def parts(self, key: Key, layer: int) -> tuple[Tensor, Tensor]:
        """Return typed views of a page, [fills, ...]: recurrent state and window, or keys and values."""
        return parts_of(self.pages[key][layer], self.layout.groups[key.group], self.layout_of_pages, self.model)

    def send(self, key: Key, layer: int, staging: Staging) -> Slot:
        """Start the upload of a page."""
        return staging.put_page(self.pages[key][layer], self.written.get((key, layer)))

    def seed(self, keys: Collection[Key], tokens: Sequence[int]) -> None:
        """Add pages under `keys` for these tokens, as computed by another engine."""
        for index, group in enumerate(self.layout.groups):
            own = [key for key in keys if key.group == index]
            for layer in range(group.layers) if own else ():
                track = make_track(self.model, group, index, layer)
                for position, token in enumerate(tokens):
                    track.extend(embedding_row(token, position))
                for key in own:
                    self.new_page(key, layer)
                    content = track.page(key.depth - group.block_size, key.depth)
                    for part, values in zip(self.parts(key, layer), content, strict=True):
                        part[:] = torch.from_numpy(values).float().view(part.shape[1:])
