"""The built-in memory of sequences: attention cells, and recurrent cells with snapshots. It stores tags.

A sequence has an **attention cell** for each position, and one **recurrent cell**. A copy shares all of them with its
source. An attention cell is not written again while a sequence has it, so it stays shared; a recurrent cell is, so a
sequence that shares one takes another cell when it is decoded. Where attention has a **window**, each part of a batch
first gives back the cells to which none of its tokens attends. Those that its later tokens no longer need stay until
the next part, since a roll-back may lead there.

A state cannot be computed backwards. A recurrent cell therefore has **planes**: plane 0 is the state after the newest
token, plane i the state i tokens before. A part of a batch writes at most as many planes as it has tokens of the
sequence, and leaves the others as they are: those are of an earlier part, and no roll-back may reach them. To roll back
is to note the plane that the sequence's next batch starts from. Nothing is moved, and copies that share the cell do not
notice. Nor do they notice a shift: what moves is where the first token of one sequence stands.

A batch is computed in parts, and a long row in several of them. The cells of a part's sequences are gathered next to
each other first, for one kernel: cells of bystanders are swapped out of the way, all planes of them.

Source: llama.cpp `llama_memory_recurrent`, `llama_kv_cache`, `llama_memory_hybrid` (build 11549).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...reference.tokens import EMPTY, NO_INPUT, mix
from ..base.shadow import POISON, run_chain
from .executor import PARTIAL
from .operations import Tokens

GONE = -1
"""In the place of an attention cell that was given back."""


class State(NamedTuple):
    """Recurrent state and convolution window of one sequence, as tags."""

    temporal: int
    window: tuple[int, ...]

    def after(self, tags: Sequence[int]) -> State:
        """Return the state after further tokens, given the tags after each of them."""
        return State(tags[-1], (*self.window, *tags)[-len(self.window) :]) if tags else self


class Saved(NamedTuple):
    """A sequence outside of the memory.

    attention  the tag of each position, None for a cell that was given back; None for the recurrent state alone
    """

    length: int
    state: State
    attention: tuple[int | None, ...] | None
    first: int = 0


class RecurrentCell:
    """States of the sequences that share it, the newest first; the newest part wrote the first `written` of them."""

    def __init__(self, planes: Sequence[State]) -> None:
        self.planes = list(planes)
        self.written = 0
        self.owners: set[int] = set()


class Memory:
    """The memory of one trace."""

    def __init__(self, sequences: int, planes: int, conv_width: int, ubatch: int, window: int = 0) -> None:
        """`planes`: snapshots beside the newest state; `ubatch`: most tokens of a part; `window`: tokens that attention
        reaches back, the token itself included, 0 for all."""
        self.ubatch, self.window = ubatch, window
        self.empty = State(EMPTY, (NO_INPUT,) * (conv_width - 1))
        unused = State(POISON, (POISON,) * (conv_width - 1))
        self.cells = [RecurrentCell([unused] * (planes + 1)) for _ in range(sequences)]
        self.cell_of: list[int | None] = [None] * sequences
        """Sequence -> its recurrent cell."""
        self.rolled_back = [0] * sequences
        """Sequence -> the plane that its next batch starts from."""
        self.tags: list[int] = []
        """Attention cells; one that was freed keeps its content."""
        self.users: list[int] = []
        """Attention cell -> how many sequences have it."""
        self.free: list[int] = []
        self.attention: list[list[int]] = [[] for _ in range(sequences)]
        """Sequence -> its attention cell of each position."""
        self.lengths = [0] * sequences
        self.first = [0] * sequences
        """Sequence -> the position of its first token."""

    # operations of a client

    def decode(self, rows: Sequence[Tokens]) -> list[Sequence[int]]:
        """Compute a batch; return the tags after each token, by row."""
        results: dict[int, tuple[int, ...]] = {row.sequence: () for row in rows}
        for part in self.parts(rows):
            starts = [self.start(row.sequence) for row in part]
            self.gather([row.sequence for row in part])
            for row, state in zip(part, starts, strict=True):
                results[row.sequence] += self.compute(row, state)
        return [*results.values()]

    def remove(self, sequence: int, start: int = -1) -> bool:
        """Remove a sequence, or its positions from `start` on; return False if its snapshots do not reach that far."""
        start -= self.first[sequence]
        if start <= 0:
            self.drop(sequence)
            return True
        back = self.lengths[sequence] - start
        if back > 0:
            if self.rolled_back[sequence] + back > self.reach(sequence):
                return False
            self.rolled_back[sequence] += back
            self.lengths[sequence] = start
        self.cut_attention(sequence, start)
        return True

    def copy(self, source: int, target: int) -> None:
        """Let an empty sequence share the cells of another one."""
        index = self.cell_of[source]
        if index is not None:
            self.cells[index].owners.add(target)
        self.cell_of[target] = index
        self.rolled_back[target] = self.rolled_back[source]
        self.lengths[target], self.first[target] = self.lengths[source], self.first[source]
        self.attention[target] = self.attention[source].copy()
        for cell in self.attention[target]:
            if cell != GONE:
                self.users[cell] += 1

    def keep(self, sequence: int) -> None:
        """Remove all sequences but one."""
        for other in range(len(self.cell_of)):
            if other != sequence:
                self.drop(other)

    def clear(self) -> None:
        """Remove all sequences."""
        for sequence in range(len(self.cell_of)):
            self.drop(sequence)

    def shift(self, sequence: int, by: int) -> bool:
        """Move all positions of a sequence up; its copies keep theirs."""
        self.first[sequence] += by
        return True

    def state(self, sequence: int, flags: int) -> Saved:
        """Return a sequence, or its recurrent state alone."""
        attention = None if flags == PARTIAL else self.slots(sequence)
        return Saved(self.lengths[sequence], self.newest(sequence), attention, self.first[sequence])

    def set_state(self, sequence: int, data: Saved, flags: int) -> None:
        """Restore a sequence, or its recurrent state alone: none of the cell's older snapshots belongs to it."""
        if data.attention is not None:
            self.drop(sequence)
            self.append_attention(sequence, data.attention)
            self.first[sequence] = data.first
        self.own_cell(sequence)
        self.write(sequence, [data.state])
        self.lengths[sequence] = data.length

    def positions(self, sequence: int) -> tuple[int, int]:
        """Return the first and the last position from which a sequence can go on: a state stands for one alone."""
        last = self.first[sequence] + self.lengths[sequence] - 1
        return last, last

    def newest(self, sequence: int) -> State:
        """Return the state that the next batch of a sequence starts from."""
        index = self.cell_of[sequence]
        return self.empty if index is None else self.cells[index].planes[self.rolled_back[sequence]]

    # recurrent cells

    def reach(self, sequence: int) -> int:
        """Return by how many tokens, counted from the end of its newest part, a sequence can be rolled back."""
        index = self.cell_of[sequence]
        return 0 if index is None else self.cells[index].written - 1

    def parts(self, rows: Sequence[Tokens]) -> Iterator[Sequence[Tokens]]:
        """Split a batch into parts of at most `ubatch` tokens."""
        part: list[Tokens] = []
        for row in rows:
            for start in range(0, len(row.tokens), self.ubatch):
                piece = Tokens(row.sequence, row.start + start, row.tokens[start : start + self.ubatch], row.wanted)
                if part and sum(len(one.tokens) for one in (*part, piece)) > self.ubatch:
                    yield part
                    part = []
                part.append(piece)
        if part:
            yield part

    def start(self, sequence: int) -> State:
        """Return the state that a sequence starts from, and give it a cell that no other sequence has."""
        if self.cell_of[sequence] is None:
            self.cells[self.own_cell(sequence)].planes[0] = self.empty
        state = self.newest(sequence)
        self.own_cell(sequence)
        return state

    def own_cell(self, sequence: int) -> int:
        """Return the cell of a sequence that has it alone, a free one if it shares one or has none."""
        index = self.cell_of[sequence]
        if index is not None and self.cells[index].owners == {sequence}:
            return index
        if index is not None:
            self.cells[index].owners.remove(sequence)
        found = next(place for place, cell in enumerate(self.cells) if not cell.owners)
        self.cells[found].owners.add(sequence)
        self.cell_of[sequence] = found
        return found

    def gather(self, sequences: Sequence[int]) -> None:
        """Let sequences, each of which has a cell of its own, have neighbouring cells in this order."""
        first = min(index for one in sequences if (index := self.cell_of[one]) is not None)
        first = min(first, len(self.cells) - len(sequences))
        for wanted, sequence in enumerate(sequences, first):
            index = self.cell_of[sequence]
            if index is not None and index != wanted:
                self.swap(index, wanted)

    def swap(self, one: int, other: int) -> None:
        """Swap two cells, with all their planes."""
        self.cells[one], self.cells[other] = self.cells[other], self.cells[one]
        for index in (one, other):
            for owner in self.cells[index].owners:
                self.cell_of[owner] = index

    def compute(self, row: Tokens, state: State) -> tuple[int, ...]:
        """Compute the tokens of a row from a state; return the tags after each. From the first token on that misses an
        attention cell they are those of no prefix."""
        first = self.lengths[row.sequence]
        self.give_back(row.sequence, first)
        tags = run_chain(state.temporal, tuple(row.tokens))
        count = len(tags)
        right = next((place for place in range(count) if self.misses(row.sequence, first + place)), count)
        tags = tags[:right] + (POISON,) * (count - right)
        planes = len(self.cells[0].planes)
        self.write(row.sequence, [state.after(tags[: count - back]) for back in range(min(count, planes))])
        self.append_attention(row.sequence, tags)
        self.lengths[row.sequence] += count
        return tags

    def write(self, sequence: int, states: Sequence[State]) -> None:
        """Write planes, the newest state first, to the cell that a sequence has alone."""
        cell = self.cells[self.own_cell(sequence)]
        cell.planes[: len(states)] = states
        cell.written = len(states)
        self.rolled_back[sequence] = 0

    def drop(self, sequence: int) -> None:
        """Remove a sequence; what its cells hold stays."""
        index = self.cell_of[sequence]
        if index is not None:
            self.cells[index].owners.remove(sequence)
        self.cell_of[sequence] = None
        self.rolled_back[sequence] = self.lengths[sequence] = self.first[sequence] = 0
        self.cut_attention(sequence, 0)

    # attention cells

    def slots(self, sequence: int) -> tuple[int | None, ...]:
        """Return the tag of each position of a sequence, None where its cell was given back."""
        return tuple(None if cell == GONE else self.tags[cell] for cell in self.attention[sequence])

    def first_attended(self, position: int) -> int:
        """Return the first position that the token at a position attends to."""
        return max(position - self.window + 1, 0) if self.window else 0

    def misses(self, sequence: int, position: int) -> bool:
        """Return True if a cell that the token at a position attends to was given back."""
        return GONE in self.attention[sequence][self.first_attended(position) :]

    def give_back(self, sequence: int, position: int) -> None:
        """Give back the cells of a sequence that no token from a position on attends to."""
        cells = self.attention[sequence]
        passed = min(self.first_attended(position), len(cells))
        self.release(cells[:passed])
        cells[:passed] = [GONE] * passed

    def append_attention(self, sequence: int, tags: Sequence[int | None]) -> None:
        """Store the next positions of a sequence."""
        for tag in tags:
            if tag is None:
                self.attention[sequence].append(GONE)
                continue
            if not self.free:
                self.free.append(len(self.tags))
                self.tags.append(mix(POISON, len(self.tags)))
                self.users.append(0)
            cell = self.free.pop()
            self.tags[cell] = tag
            self.users[cell] = 1
            self.attention[sequence].append(cell)

    def cut_attention(self, sequence: int, start: int) -> None:
        """Take the positions from `start` on away from a sequence; cells that nobody has then are free."""
        self.release(self.attention[sequence][start:])
        del self.attention[sequence][start:]

    def release(self, cells: Sequence[int]) -> None:
        """Take cells away from one of the sequences that have them."""
        for cell in cells:
            if cell != GONE:
                self.users[cell] -= 1
                if not self.users[cell]:
                    self.free.append(cell)
