"""Totals of each node of a cluster, for the dashboard and the report. The campaign's lock guards them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from msgspec import structs

from ..campaign_summary import Node, Summary


class NodeTotals:
    """Nodes by name. Workers of this machine have the node "", which is not listed."""

    def __init__(self, earlier: Summary | None = None) -> None:
        nodes = earlier.nodes if earlier else ()
        self._nodes = {node.name: structs.replace(node, workers=0) for node in nodes}
        self._since: dict[str, float] = {}

    def joined(self, name: str) -> None:
        """Count a worker that is ready on a node."""
        if name:
            node = self._nodes.get(name, Node(name))
            self._since.setdefault(name, time.monotonic() - node.seconds)
            self._nodes[name] = structs.replace(node, workers=node.workers + 1, state="up")

    def left(self, name: str, state: Literal["up", "lost", "refused"] = "up") -> bool:
        """Remove a worker that has ended, or whose node was lost or refused. Return True if that is new."""
        node = self._nodes.get(name, Node(name))
        is_new = node.state != state
        if name:
            workers = max(node.workers - 1, 0)
            if not workers and name in self._since:
                node = structs.replace(node, seconds=time.monotonic() - self._since.pop(name))
            self._nodes[name] = structs.replace(node, workers=workers, state=state)
        return is_new or not name

    def count(self, name: str, traces: int, steps: int, lost: int) -> None:
        """Add traces that ran on a node."""
        if name:
            node = self._nodes.get(name, Node(name))
            self._nodes[name] = structs.replace(
                node, traces=node.traces + traces, steps=node.steps + steps, lost=node.lost + lost
            )

    def totals(self) -> Sequence[Node]:
        """Return all nodes, by name."""
        now = time.monotonic()
        return [
            structs.replace(node, seconds=round(now - self._since[name] if name in self._since else node.seconds, 3))
            for name, node in sorted(self._nodes.items())
        ]
