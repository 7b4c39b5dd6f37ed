"""Facts about where a wrong value came from: the data flow behind a violation, beside the facts of its steps.

Read from the recorded history (`record.history`) and steps alone, so they mean the same for every engine. Three
questions have an answer, as far as the violation names a block or a state:

    stores, resumes  the accesses of the violating request's row in the violating step
    found            the last write of the block that was read or written: which row wrote it, in which step
    wanted           the write of the state that was expected: which row, and whether the state is still there

A row that wrote is described by the phrases of `facts`, and by the number of states that it stored: a kernel for
decodes stores one for each token, a kernel for prefills one for each chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ....targets.base.trace import Trace
from ...judge.violation import Violation
from ...record.activity import Activity
from ...record.history import History, Mark
from .facts import row_facts

_STORED = ("write", "dead write")
_CHANGES = (*_STORED, "copy", "load", "zero")


def origins_of(trace: Trace, steps: Sequence[Activity], history: History, violation: Violation) -> tuple[str, ...]:
    """Return facts about the origin of the value that a violation is about, sorted."""
    return tuple(sorted(set(_Origins(trace, steps, history, violation).facts())))


class _Origins:
    """One failing run. States are those of the violating group; of the first group with states if it names none."""

    def __init__(self, trace: Trace, steps: Sequence[Activity], history: History, violation: Violation) -> None:
        states = [index for index, (kind, _) in enumerate(history.groups) if kind == "mamba"]
        self._trace, self._violation, self._wanted = trace, violation, history.wanted
        self._steps = [step for step in steps if not step.dummy]
        self._group = violation.group if violation.group >= 0 else states[0] if states else 0
        self._marks = [mark for mark in history.marks if mark.group in (self._group, -1) and mark.what != "violation"]
        self._own = violation.request

    def facts(self) -> Iterator[str]:
        name, step = self._own, self._violation.step
        if name:
            yield from (f"own {what}" for what in self._accesses(name, step))
        if self._violation.block >= 0:
            yield from self._found()
        if self._wanted:
            yield from self._written()

    def _accesses(self, name: str, step: int) -> Iterator[str]:
        """Facts about the memory that a row used in a step."""
        marks = [mark for mark in self._marks if mark.step == step and mark.who == name]
        stored = {mark.block for mark in marks if mark.what in _STORED}
        yield "stores nothing" if not stored else "stores once" if len(stored) == 1 else "stores several"
        read = [mark for mark in marks if mark.what == "read"]
        yield "resumes" if read else "resumes from nothing"
        if any(mark.column < 0 for mark in read):
            yield "reads outside its table"

    def _found(self) -> Iterator[str]:
        """Facts about the last change of the violating block before the violating access."""
        block, step = self._violation.block, self._violation.step
        end = next(
            (
                index
                for index in range(len(self._marks) - 1, -1, -1)
                if (mark := self._marks[index]).block == block
                and mark.step == step
                and mark.what == "read"
                and mark.who == self._own
            ),
            len(self._marks),
        )
        changes = [mark for mark in self._marks[:end] if mark.block == block and mark.what in _CHANGES]
        if not changes:
            yield "found never written"
            return
        yield from self._writer(changes[-1], "found")

    def _written(self) -> Iterator[str]:
        """Facts about the write of the expected state, and whether it was lost since."""
        writes = [
            (index, mark)
            for index, mark in enumerate(self._marks)
            if mark.what in _STORED and mark.content == self._wanted
        ]
        if not writes:
            yield "wanted never written"
            return
        index, last = writes[-1]
        later = [mark for mark in self._marks[index + 1 :] if mark.block == last.block and mark.what in _CHANGES]
        if later:
            yield "wanted overwritten"
        elif last.block != self._violation.block:
            yield "wanted in another block"
        yield from self._writer(last, "wanted")

    def _writer(self, mark: Mark, what: str) -> Iterator[str]:
        """Facts about the row that changed a block."""
        if mark.what == "zero":
            yield f"{what} zeroed"
            return
        whose = "own" if mark.who == self._own else "dead row" if mark.what == "dead write" else "other"
        yield f"{what} {mark.what} by {whose}"
        at = next((index for index, step in enumerate(self._steps) if step.step == mark.step), -1)
        now = next((index for index, step in enumerate(self._steps) if step.step == self._violation.step), -1)
        if at < 0:
            return
        ran = [
            index for index in range(at + 1, max(now, 0)) if any(r.name == mark.who for r in self._steps[index].rows)
        ]
        yield f"{what} in this step" if at == now else f"{what} steps ago" if ran else f"{what} in the step before"
        row = next((row for row in self._steps[at].rows if row.name == mark.who), None)
        if row is None:
            return
        yield from (f"{what} by {fact}" for fact in row_facts(self._trace, self._steps, at, row))
        yield from (f"{what} by {fact}" for fact in self._accesses(mark.who, mark.step))
