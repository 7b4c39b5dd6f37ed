"""Clients that talk in turns: SGLang's streaming sessions, on `SessionController`, `Session` and `StreamingSession`.

A session owns the KV record of its turns (request row, pages, state slots, tree lock) from its first admission until
it is closed; a turn borrows the record. The server can reclaim it only by a timeout, so idle clients time out, the
longest idle first, as soon as their records would not leave room for one request of full length. A client that returns
after that opens a new session and sends its whole history again.

A client may abort a turn and go on with its session, which is then as it was behind the last turn that ended by itself
("session rolls back to last successful turn": `StreamingSessionKitMixin.test_nth_mid_abort_recovery` in its tests).
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
        self._truths: dict[str, Truth] = {}
        """Its truth."""
        self._before: dict[str, Truth] = {}
        """What its client had before it."""
        self._aborted: set[str] = set()
        """Sessions whose latest turn was aborted."""
        self._dropped: set[str] = set()
        """Those of them whose turn is gone from the scheduler, without `finished` ever becoming true."""
        self._begun: set[str] = set()
        """Sessions of the server that have seen the end of a turn: the next turn appends to it."""
        self._time = 0.0

    def had(self, name: str) -> Truth:
        """Return what a parked session's client has."""
        if name not in self._truths or name in self._aborted:
            return self._before.get(name, Truth(()))
        truth = self._truths[name]
        return truth.continued(truth.prompt_length + len(scheduler_api.client_tokens(self.requests[name])), ())

    def known(self, name: str) -> int:
        """Return the number of tokens that a parked session's client has."""
        return self.had(name).prompt_length

    def turn(self, name: str, truth: Truth, sampling: Any, processor: str | None = None) -> tuple[Any, list[int]]:
        """Return a turn of a new or parked session, and the tokens that its client sends; the prompt has those of
        earlier turns, too."""
        tokens = truth.tokens[: truth.prompt_length]
        keys = keys_of(truth, self.engine.sizes.tenant)
        before = self.had(name)
        if name not in self.controller:
            self.controller.open(session_api.open_session(name))
            self._begun.discard(name)
        elif name not in self._aborted:
            self._begun.add(name)
        if name in self._begun:
            tokens = tokens[before.prompt_length :]
        self._truths[name], self._before[name] = truth, before
        self._aborted.discard(name)
        self._dropped.discard(name)
        session = self.controller.get(name)
        request = session_api.make_turn(session, name, tokens, sampling, keys, self.engine.sizes.strips, processor)
        # Removed and inserted again, so that sessions are in the order of their last turn, oldest first.
        self.requests.pop(name, None)
        self.requests[name] = request
        return request, tokens

    def abort_turn(self, name: str, is_over: bool) -> None:
        """Abort the turn of a session that goes on. `is_over`: nothing is left of it to finish."""
        if name in self.requests and not self.requests[name].finished():
            self._aborted.add(name)
            self._dropped |= {name} if is_over else set()

    def has_aborted_turn(self, name: str) -> bool:
        """Return True if a session's client has aborted its latest turn, and not the session."""
        return name in self._aborted

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
        return [name for name, request in self.requests.items() if request.finished() or name in self._dropped]

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
