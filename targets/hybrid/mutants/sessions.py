"""Requests of several turns: what a session owns, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping

from ..plan import Plan, Request
from ..sessions import Sessions


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


PARTS: dict[str, type] = {
    "revert-frees-session-owned-slot": RevertFreesSessionOwnedSlot,
    "session-close-leak": SessionCloseLeak,
}
