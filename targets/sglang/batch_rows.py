"""The rows of a launched batch, as read from SGLang's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..base.observe import OutOfRange


class Row(NamedTuple):
    """One row of a batch.

    `tokens` is None if the token is the one that the row's last forward sampled. A row with an index out of range
    (`outside`) is not computed.
    """

    name: str | None
    pool_row: int
    prefix: int
    num_tokens: int
    tokens: tuple[int, ...] | None
    samples: bool
    slot: int
    slots: tuple[int, ...]
    locations: Sequence[int]
    written: Sequence[int]
    drafts: int = 0
    outside: OutOfRange | None = None
