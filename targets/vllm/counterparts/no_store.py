"""The store of an engine without a KV connector, and what all stores share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ....reference.layout import Layout
from ....reference.prefix_cache import Key
from ...base.observe import Content, PlannedRow, Record
from ...base.trace import ExternalLoad


class NullStore:
    """Nothing is stored, loaded or sent. Imports nothing that only releases with connectors have."""

    is_connected = False
    """True if a connector may hold blocks behind the end of their requests, and has a cache of its own to reset."""

    def __init__(self) -> None:
        self.layout: Layout
        self.layers: dict[tuple[int, int], Any] = {}
        self.pages: dict[Key, tuple[Content, ...]] = {}
        self.step = 0
        """The step that is being planned."""
        self.delays: dict[str, int] = {}
        self.started: list[PlannedRow] = []
        """Rows of the requests for whose loads the current planning allocated blocks."""
        self.joined: dict[str, int] = {}
        """Requests of the current planning that are loaded before its forward -> tokens of the load."""

    def attach(self, layout: Layout, layers: Sequence[Any]) -> None:
        """Set the layout and the layers whose pages are copied."""
        self.layout = layout
        self.layers = {(layer.group, layer.index): layer for layer in layers}

    def announce(self, event: ExternalLoad, tokens: Sequence[int]) -> None:
        """Let the transfers of a request take as long as the event says, if there are any."""
        self.delays[event.name] = event.delay

    def delay(self, name: str) -> int:
        """Return the steps that transfers for a request take."""
        return self.delays.get(name, 0) + 1

    def begin_planning(self, step: int) -> None:
        """Note that `step` is planned next."""
        self.step, self.started, self.joined = step, [], {}

    def early(self) -> Sequence[Record]:
        """Return no record: nothing is loaded before the forwards in flight."""
        return ()

    def has_jobs(self) -> bool:
        """Return False: no transfer goes on behind the end of its request, but for what the scheduler knows."""
        return False

    def to_save(self) -> Collection[int]:
        """Return the blocks, perhaps free already, whose content is still to be saved: none."""
        return ()

    def loading(self) -> Collection[int]:
        """Return the blocks that the connector has references to since it loads them: none."""
        return ()

    def saving(self) -> Collection[int]:
        """Return the blocks that the connector has references to since it stores them: none."""
        return ()

    def close(self) -> None:
        """Do nothing: no file is open."""

    def knows(self, name: str) -> bool:
        """Return False: nothing is kept for a request that has ended."""
        return False

    def stored(self, keys: Any) -> Mapping[Key, Sequence[Content]]:
        """Return what later loads may find. `keys` names hashes."""
        return self.pages

    def ends_wait(self, name: str) -> bool:
        """Note that a request is computed. Return True if it waited for a load until now."""
        return False
