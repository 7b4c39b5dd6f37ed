"""Clients that talk in turns: SGLang's streaming sessions, on `SessionController`, `Session` and `StreamingSession`.

A session owns the KV record of its turns (request row, pages, state slots, tree lock) from its first admission until
it is closed; a turn borrows the record. The server can reclaim it only by a timeout, so idle clients time out, the
longest idle first, as soon as their records would not leave room for one request of full length. A client that returns
after that opens a new session and sends its whole history again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...reference.layout import cdiv
from ...reference.tokens import Truth
from .compat import scheduler_api, session_api
from .compat.engine import SglangEngine
from .inputs import keys_of

TIMED_OUT = -1.0
"""A timeout that is always over."""


class Sessions:
    """The sessions of one engine; a session has the name of its request."""

    def __init__(self, engine: SglangEngine) -> None:
        from sglang.srt.session.session_controller import SessionController

        self.engine = engine
        self.controller = SessionController(engine.cache)
        self.requests: dict[str, Any] = {}
        """The latest turn of each session."""
        self._time = 0.0

    def known(self, name: str) -> int:
        """Return the number of tokens that a parked session's client has."""
        return len(self.requests[name].origin_input_ids) + len(scheduler_api.client_tokens(self.requests[name]))

    def turn(self, name: str, truth: Truth, sampling: Any) -> tuple[Any, list[int]]:
        """Return a turn of a new or parked session, and the tokens that its client sends; the prompt has those of
        earlier turns, too."""
        tokens = truth.tokens[: truth.prompt_length]
        keys = keys_of(truth, self.engine.sizes.tenant)
        if name in self.controller:
            tokens = tokens[self.known(name) :]
        else:
            self.controller.open(session_api.open_session(name))
        session = self.controller.get(name)
        request = session_api.make_turn(session, name, tokens, sampling, keys)
        # Removed and inserted again, so that sessions are in the order of their last turn, oldest first.
        self.requests.pop(name, None)
        self.requests[name] = request
        return request, tokens

    def close(self, name: str) -> None:
        """Close a session; a turn that still runs is ended first."""
        self.requests.pop(name, None)
        if name in self.controller:
            self.controller.close(session_api.close_session(name))

    def open(self) -> int:
        """Return the number of sessions that the server has, those with a close that waits included."""
        return len(self.controller.sessions)

    def parked(self) -> list[str]:
        """Return the sessions between two turns."""
        return [name for name, request in self.requests.items() if request.finished()]

    def owner(self, request: Any) -> Any:
        """Return the owner of a request's KV record: its session, or itself."""
        slot = self._slots.get(request.client_name)
        apart = slot is not None and slot.kv is not request.kv and (request.kv.holds_kv or request.kv.holds_mamba)
        return request if slot is None or apart else slot

    def apart(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        """Return records that the running turn does not use: SGLang may take a request out of its session."""
        turns = {name: requests.get(name) for name in self._slots}
        return {
            f"{name}'s session": slot
            for name, slot in self._slots.items()
            if turns[name] is None or self.owner(turns[name]) is not slot
        }

    def records(self) -> dict[str, Any]:
        """Return the records of sessions that have one."""
        return {name: slot.kv for name, slot in self._slots.items() if slot.kv.holds_kv}

    @property
    def _slots(self) -> dict[str, Any]:
        slots: dict[str, Any] = self.engine.cache.session.slots
        return slots

    def tick(self, running: set[str]) -> None:
        """Carry out closes that had to wait, and time out clients for lack of room."""
        self._reap()
        for name in self.parked():
            if self._roomy(running):
                break
            if name in self.controller:
                self.controller.get(name).timeout = TIMED_OUT
                self._reap()

    def _reap(self) -> None:
        self._time += 2.0
        self.controller.maybe_reap(self._time)

    def _roomy(self, running: set[str]) -> bool:
        sizes = self.engine.sizes
        held = [slot.kv.kv_allocated_len for name, slot in self._slots.items() if name not in running]
        pages = sum(cdiv(length, sizes.page) for length in held)
        return len(held) < sizes.rows and pages + sizes.longest <= min(sizes.pages, sizes.window_pages or sizes.pages)
