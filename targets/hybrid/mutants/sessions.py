"""Broken sessions: admission of turns, truncation, release on close."""

from __future__ import annotations

from collections.abc import Mapping

from ..host.sessions import Sessions
from ..plan import Plan, Request


class RevertFreesSessionOwnedSlot(Sessions):
    """A turn that is not admitted frees its states, although its session owned them before.

    SGLang #23327: the fix of the leak on rejection freed the slot without checking its owner; a streaming session had
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
    """Closing a session frees its attention blocks but not its states.

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
    the caller continues with the shorter prompt, and the state still contains the dropped tokens.
    """

    def truncate(self, request: Request, length: int) -> bool:
        if not super().truncate(request, length):
            request.truncate(length, length)
        return True


class StateBehindStopToken(Sessions):
    """A turn that ends with a step in flight keeps its caches.

    The counters go back to the tokens before that step, the states, which it advances in place, do not. vLLM 0.33.0
    (no public issue known; corpus/vllm/fixes/0.33.0/session-behind-stop.md).
    """

    def park(self, request: Request) -> None:
        if request.in_flight:
            request.epoch += 1
            request.in_flight = request.optimistic = 0
            request.low = request.high = request.settled
        super().park(request)


class AbortedTurnStaysInHistory(Sessions):
    """The next turn of a session follows a turn that its client aborted.

    Its prompt and the part of its answer that was known are given back with its caches, but not taken out of the
    session's tokens (no public issue known; SGLang trims them in `Session._share_token_arrays`).
    """

    def abort_turn(self, request: Request) -> None:
        turn = request.tokens[request.before_turn :]
        super().abort_turn(request)
        request.append_tokens(turn)


class AbortedTurnsResultCounts(Sessions):
    """What a step in flight samples for an aborted turn is appended to its session.

    The results of an aborted request are dropped because nobody knows it any more. Its session goes on under the same
    name (no public issue known).
    """

    def abort_turn(self, request: Request) -> None:
        epoch = request.epoch
        super().abort_turn(request)
        request.epoch = epoch


PARTS: dict[str, type] = {
    "state-behind-stop-token": StateBehindStopToken,
    "aborted-turn-stays-in-history": AbortedTurnStaysInHistory,
    "aborted-turns-result-counts": AbortedTurnsResultCounts,
    "revert-frees-session-owned-slot": RevertFreesSessionOwnedSlot,
    "session-close-leak": SessionCloseLeak,
    "ignored-seq-rm-false": IgnoredRefusal,
}
