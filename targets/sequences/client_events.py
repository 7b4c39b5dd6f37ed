"""What each event is to a client: the method of `Client`, and when the event is one that the client has to ignore."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.trace import (
    Abort,
    Arrive,
    Crop,
    Event,
    Fork,
    Park,
    Preempt,
    Reorder,
    Repeat,
    Reset,
    Resume,
    Select,
    Shift,
    Step,
    Truncate,
    fits,
    tag_of,
)
from . import operations as do
from .client import Client, Request


def _arrive(client: Client, event: Arrive) -> Sequence[do.Operation]:
    if event.name not in client.names and fits(client.config, event):
        client.arrive(event)
    return ()


def _resume(client: Client, event: Resume) -> Sequence[do.Operation]:
    request = client.parked.get(event.name)
    if request is not None and fits(client.config, event, request.known):
        client.resume(event)
    return ()


def _fork(client: Client, event: Fork) -> Sequence[do.Operation]:
    if event.parent in client.parked and event.name not in client.names:
        return client.fork(event.name, event.parent)
    return ()


_METHODS: Mapping[type[Event], Callable[[Client, Any], Sequence[do.Operation]]] = {
    Arrive: _arrive,
    Resume: _resume,
    Fork: _fork,
    Abort: lambda client, event: client.abort(event.name),
    Preempt: lambda client, event: client.preempt(event.name),
    Park: lambda client, event: client.park(event.name),
    Crop: lambda client, event: client.crop(event.tokens),
    Select: lambda client, event: client.select(event.names),
    Reorder: lambda client, event: client.reorder(event.sources),
    Repeat: lambda client, event: client.repeat(event.times),
    Reset: lambda client, event: client.reset(),
}
_OTHERS: tuple[type[Event], ...] = (Step, Truncate, Shift)
EVENTS = frozenset(tag_of(kind) for kinds in (_METHODS, _OTHERS) for kind in kinds)
"""Tags of the events that the client understands."""


def told(client: Client, event: Event) -> Sequence[do.Operation]:
    """Tell a client an event; return the operations that follow. Not for a step, nor for what the memory may refuse: a
    truncation (`cuttable`) or a shift (`shift_of`)."""
    return _METHODS[type(event)](client, event)


def cuttable(client: Client, event: Truncate) -> Request | None:
    """Return the parked session that an event truncates, None if it truncates nothing."""
    request = client.parked.get(event.name)
    return request if request is not None and 0 < event.length < request.known else None


def shift_of(client: Client, event: Shift) -> do.Shift | None:
    """Return what moves the positions of a request or session, None if it has no tokens in a sequence."""
    for request in client.holders():
        if request.name == event.name and request.sequence is not None and request.computed:
            return do.Shift(request.sequence, event.by)
    return None
