"""Requests of several turns: what a session owns, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping

from ...base.observe import Record
from ...base.trace import Truncate
from ..plan import Plan, Request
from ..sessions import Sessions
from ..turns import Turns


class RevertFreesSessionOwnedSlot(Sessions):
    """A turn that is not admitted gives its states back, although its session had them before.

    SGLang #23327: the fix of the leak on rejection freed without asking who owned the slot; a streaming session had
    restored it from its record, so it was freed twice.
    """

    def admit(self, plan: Plan, request: Request, limits: Mapping[str, int]) -> bool:
        admitted = super().admit(plan, request, limits)
        if not admitted:
            for group in self.cache.groups:
                if group.kind == "mamba":
                    self.cache.pool.release(group.tables[request.name])
        return admitted


class SessionCloseLeak(Sessions):
    """A session that is closed gives its attention blocks back, not its states.

    SGLang #23496: the session's keys, values and row were released; its working slot and two more were lost with
    every session.
    """

    def close(self, request: Request) -> None:
        for group in self.cache.groups:
            if group.kind == "mamba":
                group.tables.pop(request.name, None)
        super().close(request)


class IgnoredRefusal(Sessions):
    """Tokens are dropped although the states could not follow.

    llama.cpp #28007, #18391, #19045: `seq_rm` returns false for a recurrent state that would have to be rolled back;
    the caller goes on with the shorter prompt, and the state keeps what it has folded in.
    """

    def truncate(self, request: Request, length: int) -> bool:
        if not super().truncate(request, length):
            request.truncate(length, length)
        return True


class TrimReset(Turns):
    """A state that cannot be rolled back is zeroed, and the attention content in front of it kept.

    mlx-lm #1253, #1254: a cache of arrays was declared trimmable by resetting it.
    """

    def truncate(self, event: Truncate) -> list[Record]:
        records = super().truncate(event)
        request = self.target.scheduler.requests.get(event.name)
        if request is None or not self.target.refused:
            return records
        self.target.refused = ""
        request.truncate(event.length, event.length)
        for group in self.target.cache.groups:
            for block in group.tables[event.name] if group.kind == "mamba" else ():
                self.target.memory.zero(block)
        return records


PARTS: dict[str, type] = {
    "revert-frees-session-owned-slot": RevertFreesSessionOwnedSlot,
    "session-close-leak": SessionCloseLeak,
    "ignored-seq-rm-false": IgnoredRefusal,
    "trim-reset": TrimReset,
}
