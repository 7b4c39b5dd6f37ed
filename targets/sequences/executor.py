"""Executes operations on a memory: each is one call of it, or the few that a client makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from . import operations as do

WHOLE, PARTIAL = 0, 1
"""What is saved of a sequence: all, or only what cannot be rolled back, its recurrent state. As flags of llama.h."""


class Memory(Protocol):
    """Sequences that share one memory."""

    def decode(self, rows: Sequence[Any]) -> Any:
        """Compute a batch: rows have the fields of `Tokens`."""
        ...

    def remove(self, sequence: int, start: int = -1) -> bool:
        """Remove a sequence, or its positions from `start` on; return False if that is refused."""
        ...

    def copy(self, source: int, target: int) -> None:
        """Let an empty sequence become a copy of another one."""
        ...

    def keep(self, sequence: int) -> None:
        """Remove all sequences but one."""
        ...

    def clear(self) -> None:
        """Remove all sequences."""
        ...

    def shift(self, sequence: int, by: int) -> bool:
        """Move all positions of a sequence up; return False if that is refused."""
        ...

    def state(self, sequence: int, flags: int) -> Any:
        """Return the saved state of a sequence."""
        ...

    def set_state(self, sequence: int, data: Any, flags: int) -> None:
        """Restore a saved state into a sequence."""
        ...

    def positions(self, sequence: int) -> tuple[int, int]:
        """Return the first and the last position from which a sequence can go on, -1 for none."""
        ...


class Saved(NamedTuple):
    """What a client has saved of a sequence. `first`: the position of its first token."""

    state: Any
    first: int


class Executor:
    """A memory, and what its client has saved."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.saved: dict[str, Saved] = {}
        self.checkpoints: dict[int, Any] = {}
        self.first: dict[int, int] = {}
        """Sequence -> the position of its first token, of those that were shifted."""

    def position(self, sequence: int, token: int) -> int:
        """Return the position of a token of a sequence."""
        return self.first.get(sequence, 0) + token

    def execute(self, operation: do.Operation) -> bool:
        """Execute an operation other than `Decode`; return False if the memory refused it."""
        memory = self.memory
        match operation:
            case do.Checkpoint(sequence=sequence):
                self.checkpoints[sequence] = memory.state(sequence, PARTIAL)
            case do.GoBack(sequence=sequence, start=start, tokens=tokens):
                memory.set_state(sequence, self.checkpoints.pop(sequence), PARTIAL)
                place = self.position(sequence, start)
                memory.remove(sequence, place)
                memory.decode([do.Tokens(sequence, place, tokens, 0)])
            case do.RollBack(sequence=sequence, length=length, tokens=tokens):
                if not memory.remove(sequence, self.position(sequence, length)):
                    self.execute(do.Remove(sequence))
                    memory.decode([do.Tokens(sequence, 0, tokens, 0)])
            case do.Cut(sequence=sequence, length=length):
                return memory.remove(sequence, self.position(sequence, length))
            case do.Remove(sequence=sequence):
                memory.remove(sequence)
                self.first.pop(sequence, None)
            case do.Copy(source=source, target=target):
                memory.copy(source, target)
                self.first[target] = self.position(source, 0)
            case do.Keep(sequence=sequence):
                memory.keep(sequence)
                self.first = {sequence: self.position(sequence, 0)}
            case do.Clear():
                memory.clear()
                self.first.clear()
            case do.Shift(sequence=sequence, by=by):
                if not memory.shift(sequence, by):
                    return False
                self.first[sequence] = self.position(sequence, by)
            case do.Save(name=name, sequence=sequence):
                self.saved[name] = Saved(memory.state(sequence, WHOLE), self.position(sequence, 0))
            case do.Restore(name=name, sequence=sequence):
                state, self.first[sequence] = self.saved.pop(name)
                memory.set_state(sequence, state, WHOLE)
            case do.CopySaved(name=name, parent=parent):
                self.saved[name] = self.saved[parent]
            case do.Forget(name=name):
                self.saved.pop(name)
        return True
