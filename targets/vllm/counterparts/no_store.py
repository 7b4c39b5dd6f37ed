"""The store of an engine without a KV connector: nothing is stored, loaded or sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....reference.layout import Layout
from ....reference.prefix_cache import Key
from ...base.observe import Content, PlannedRow, Record
from ...base.trace import ExternalLoad


class NullStore:
    """Answers as `kv_connector.Store` does, and imports nothing that only releases with connectors have."""

    is_connected = False
    """True if a connector may hold blocks behind the end of their requests, and has a cache of its own to reset."""

    def __init__(self) -> None:
        self.pages: Mapping[Key, Sequence[Content]] = {}
        self.started: Sequence[PlannedRow] = ()
        self.joined: Mapping[str, int] = {}

    def attach(self, layout: Layout, layers: Sequence[Any]) -> None:
        """Do nothing: no page is copied."""

    def announce(self, event: ExternalLoad, tokens: Sequence[int]) -> None:
        """Do nothing: nothing is stored."""

    def begin_planning(self, step: int) -> None:
        """Do nothing: no load is planned."""

    def early(self) -> Sequence[Record]:
        """Return no record: nothing is loaded."""
        return ()

    def has_jobs(self) -> bool:
        """Return False: no transfer goes on behind the end of its request."""
        return False

    def knows(self, name: str) -> bool:
        """Return False: nothing is kept for a request."""
        return False

    def stored(self, keys: Any) -> Mapping[Key, Sequence[Content]]:
        """Return nothing."""
        return self.pages

    def ends_wait(self, name: str) -> bool:
        """Return False: no request waits for a load."""
        return False
