"""The built-in memory of sequences with exactly one known bug.

A mutant is one small class that overrides one method of the correct memory. The first line of its docstring is its
title, the rest gives the public issue or pull request and the mechanism. `MUTANTS` gives the slug. Numbers are
ggml-org/llama.cpp; "cause" is a number of docs/explanation/llamacpp.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...reference.tokens import mix
from ..base.shadow import POISON
from .executor import PARTIAL
from .memory import Memory, Saved
from .operations import Tokens
from .target import SequencesTarget


class RollBackBeyondNewestBatch(Memory):
    """A roll-back further than the newest batch's snapshots is accepted.

    #29117, #26695 (cause 2): only the number of planes is checked. Those that the newest batch did not write are of an
    earlier batch, or of an earlier owner of the cell.
    """

    def reach(self, sequence: int) -> int:
        return len(self.cells[0].planes) - 1


class CopyForgetsRollBack(Memory):
    """A copy of a sequence that was just rolled back is not rolled back.

    no public issue known (cause 3): the copy shares the cell, but does not take over the plane that the next batch of
    its source starts from.
    """

    def copy(self, source: int, target: int) -> None:
        super().copy(source, target)
        self.rolled_back[target] = 0


class KeepLeavesRollBack(Memory):
    """Keeping one sequence leaves the roll-back of a removed one to the next owner of its number.

    no public issue known (cause 5): removing a sequence forgets its plane, removing all others does not.
    """

    def keep(self, sequence: int) -> None:
        before = self.rolled_back.copy()
        super().keep(sequence)
        self.rolled_back = before


class SwapLeavesSnapshots(Memory):
    """A cell that is swapped out of the way leaves its snapshots behind.

    related to #28019 (cause 1): a later part of a batch gathers its cells, and moves plane 0 of a bystander alone.
    """

    def swap(self, one: int, other: int) -> None:
        super().swap(one, other)
        first, second = self.cells[one].planes, self.cells[other].planes
        first[1:], second[1:] = second[1:], first[1:]


class SaveIgnoresRollBack(Memory):
    """The recurrent state is saved as of the newest token, though the sequence was rolled back.

    no public issue known: plane 0 is saved, and not the plane that the next batch would start from.
    """

    def state(self, sequence: int, flags: int) -> Saved:
        saved = super().state(sequence, flags)
        index = self.cell_of[sequence]
        return saved if index is None else saved._replace(state=self.cells[index].planes[0])


class SharedCellIsWritten(Memory):
    """A sequence that shares its recurrent cell writes to it.

    no public issue known: the copy's source, or another copy, goes on from its state.
    """

    def own_cell(self, sequence: int) -> int:
        index = self.cell_of[sequence]
        return super().own_cell(sequence) if index is None else index


class ShiftMovesCopies(Memory):
    """A shift of a sequence also moves the copies that share its recurrent cell.

    no public issue known (cause 10): the position is the cell's, and not the sequence's.
    """

    def shift(self, sequence: int, by: int) -> bool:
        index = self.cell_of[sequence]
        for other in {sequence} if index is None else self.cells[index].owners:
            super().shift(other, by)
        return True


class RestoreForgetsShift(Memory):
    """A restored sequence begins at position 0, though it was shifted when it was saved.

    no public issue known: the positions are counted again, and not those that were saved.
    """

    def set_state(self, sequence: int, data: Saved, flags: int) -> None:
        super().set_state(sequence, data, flags)
        if flags != PARTIAL:
            self.first[sequence] = 0


class SaveOfACopyHasOtherCells(Memory):
    """A copy that has not been decoded since is saved from cells that it does not have yet.

    no public issue known (cause 7): the copy is noted, and the save does not wait until it is made. (There any batch
    makes it; here the copy's own, or its source's.)
    """

    def state(self, sequence: int, flags: int) -> Saved:
        saved, index = super().state(sequence, flags), self.cell_of[sequence]
        if saved.attention is None or index is None or sequence == min(self.cells[index].owners):
            return saved
        return saved._replace(attention=tuple(mix(POISON, place) for place, _ in enumerate(saved.attention)))


class WindowPurgedWhileTrying(Memory):
    """Cells that an earlier part of a batch attends to are given back for a later part.

    no public issue known (cause 8): all parts find their cells before the first is computed, and what that gave back is
    behind the window of the last part alone. (There such cells are given back where another sequence left none
    free; here always.)
    """

    def decode(self, rows: Sequence[Tokens]) -> list[Sequence[int]]:
        for row in rows:
            last = (len(row.tokens) - 1) // self.ubatch * self.ubatch
            self.give_back(row.sequence, self.lengths[row.sequence] + last)
        return super().decode(rows)


PARTS: dict[str, type[Memory]] = {
    "roll-back-beyond-newest-batch": RollBackBeyondNewestBatch,
    "copy-forgets-roll-back": CopyForgetsRollBack,
    "keep-leaves-roll-back": KeepLeavesRollBack,
    "swap-leaves-snapshots": SwapLeavesSnapshots,
    "save-ignores-roll-back": SaveIgnoresRollBack,
    "shared-cell-is-written": SharedCellIsWritten,
    "save-of-a-copy-has-other-cells": SaveOfACopyHasOtherCells,
    "window-purged-while-trying": WindowPurgedWhileTrying,
    "shift-moves-copies": ShiftMovesCopies,
    "restore-forgets-shift": RestoreForgetsShift,
}
MUTANTS: dict[str, type[SequencesTarget]] = {
    slug: type(slug, (SequencesTarget,), {"__doc__": part.__doc__, "memory_class": part})
    for slug, part in PARTS.items()
}


def titles() -> dict[str, str]:
    """Return the title of each mutant by slug: the first line of its docstring."""
    return {slug: (part.__doc__ or "").partition("\n")[0].rstrip(".") for slug, part in PARTS.items()}
