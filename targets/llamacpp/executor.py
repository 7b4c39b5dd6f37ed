"""Executes operations on a context: each is one call of the C API, or the few that a client makes."""

from __future__ import annotations

from . import operations as do
from .context import Context, Row
from .library import PARTIAL_ONLY


class Executor:
    """A context, and what its client has saved."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.saved: dict[str, bytes] = {}
        self.checkpoints: dict[int, bytes] = {}

    def execute(self, operation: do.Operation) -> bool:
        """Execute an operation other than `Decode`; return False if llama.cpp refused it."""
        context = self.context
        match operation:
            case do.Checkpoint(sequence=sequence):
                self.checkpoints[sequence] = context.state(sequence, PARTIAL_ONLY)
            case do.GoBack(sequence=sequence, start=start, tokens=tokens):
                context.set_state(sequence, self.checkpoints.pop(sequence), PARTIAL_ONLY)
                context.remove(sequence, start)
                context.decode([Row(sequence, start, tokens, 0)])
            case do.RollBack(sequence=sequence, length=length, tokens=tokens):
                if not context.remove(sequence, length):
                    context.remove(sequence)
                    context.decode([Row(sequence, 0, tokens, 0)])
            case do.Cut(sequence=sequence, length=length):
                return context.remove(sequence, length)
            case do.Remove(sequence=sequence):
                context.remove(sequence)
            case do.Copy(source=source, target=target):
                context.copy(source, target)
            case do.Keep(sequence=sequence):
                context.keep(sequence)
            case do.Clear():
                context.clear()
            case do.Save(name=name, sequence=sequence):
                self.saved[name] = context.state(sequence, 0)
            case do.Restore(name=name, sequence=sequence):
                context.set_state(sequence, self.saved.pop(name), 0)
            case do.CopySaved(name=name, parent=parent):
                self.saved[name] = self.saved[parent]
            case do.Forget(name=name):
                self.saved.pop(name)
        return True
