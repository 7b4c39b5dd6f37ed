"""Translates operations of a memory into the requests that clients send to a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..base.trace import Event, Preempt, Reset
from ..sequences import operations as do


class Sent(NamedTuple):
    """A request to a server: a method of `server.Server`, and its arguments."""

    method: str
    arguments: tuple[int | str, ...]


def sent(event: Event, operations: Sequence[do.Operation]) -> Iterator[Sent]:
    """Yield what clients send when an event means these operations.

    A request that ends, or whose sequence is saved, sends none: the server keeps what it likes. One that loses what
    it has computed has its slot erased.
    """
    for operation in operations:
        match operation:
            case do.Remove(sequence=sequence) if isinstance(event, Preempt | Reset):
                yield Sent("erase", (sequence,))
            case do.Clear() if isinstance(event, Reset):
                yield Sent("erase_all", ())
            case do.Copy(source=source, target=target):
                yield Sent("copy", (source, target))
            case do.Save(name=name, sequence=sequence):
                yield Sent("save", (name, sequence))
            case do.Restore(name=name, sequence=sequence):
                yield Sent("restore", (name, sequence))
            case do.CopySaved(name=name, parent=parent):
                yield Sent("copy_saved", (name, parent))
            case do.Forget(name=name):
                yield Sent("forget", (name,))
