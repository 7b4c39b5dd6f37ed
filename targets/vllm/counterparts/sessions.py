"""Clients that send input in turns: vLLM's streaming input sessions (`Request.resumable`, `StreamingUpdate`).

When a turn ends vLLM keeps the session's blocks and waits. The next turn drops the token that was sampled last and
appends its prompt. vLLM never preempts an idle session, not even for the only request that runs: its blocks and its
row stay taken until the client closes it. The clients here therefore time out, the one that is idle longest first, as
soon as sessions that do not run leave less room than one request of full length needs, or no row. A client that returns
after that opens a new session: it sends all that vLLM would have kept, then its new prompt.
"""

from __future__ import annotations

from itertools import chain as chained
from typing import Any

from vllm.v1.request import RequestStatus

from ...base.trace import Config
from ..host_view import Host
from ..options import DROPPED_TOKENS

SPARE = 2
"""Further blocks for each group: copies on write, states inside a chunk, windows that begin inside a block."""


class Sessions:
    """The sessions between two turns of one engine; a session has the name of its request."""

    def __init__(self, config: Config, scheduler: Any, host: Host) -> None:
        self.scheduler = scheduler
        self.host = host
        self.idle: dict[str, int] = {}
        """Session -> tokens that its client has; idle longest first. Those that timed out stay, without a request."""
        self._rows = config.max_num_seqs
        self._blocks = config.num_blocks - config.smallest_pool() - SPARE * len(config.groups)

    def holding(self) -> list[str]:
        """Return the idle sessions that did not time out."""
        return [name for name in self.idle if self.is_open(name)]

    def is_open(self, name: str) -> bool:
        """Return True if an idle session did not time out."""
        request = self.scheduler.requests.get(name)
        return request is not None and not request.is_finished()

    def note_ends(self, names: list[str]) -> None:
        """Add the sessions among requests whose turns ended; then close idle ones, if there is no room for them."""
        for name in names:
            request = self.scheduler.requests.get(name)
            if request is not None and request.status == RequestStatus.WAITING_FOR_STREAMING_REQ:
                self.idle[name] = request.num_tokens
        self._time_out()

    def begin_turn(self, name: str) -> tuple[int, int]:
        """Start the next turn of an idle session. Return how many of its tokens are kept, and how many of these its
        client must send again."""
        kept = self.idle.pop(name) - DROPPED_TOKENS
        return kept, 0 if self.is_open(name) else kept

    def _time_out(self) -> None:
        for name in self.holding():
            if self._roomy():
                break
            self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def _roomy(self) -> bool:
        tables = self.host.pool.tables()
        held = {
            block
            for request in self.scheduler.kv_holding_waiting
            for block in chained.from_iterable(tables.get(request.request_id, ()))
        }
        return len(held) <= self._blocks and len(self.holding()) < self._rows
