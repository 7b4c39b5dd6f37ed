"""The whole state of a target, shown to an exploration that continues equal states once.

A target that can be inspected is also one that `pickle` can save and load: each branch starts from a saved state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

Mark = Literal["", "ids", "ids second", "ids last", "indexed", "left out"]


class Marks:
    """What attributes mean. Names are "Class.attribute", for the class and those derived from it.

    ids         they hold block ids, as values, items or keys of a dict
    ids second  a tuple whose second item holds block ids, or None
    ids last    a sequence of tuples whose last item is a block id
    indexed     a list with one item for each block
    left out    no decision depends on them: constants, and the numbers of steps
    """

    def __init__(self, marked: Mapping[Mark, Iterable[str]]) -> None:
        self._marks: dict[str, Mark] = {name: mark for mark, names in marked.items() for name in names}
        self._found: dict[tuple[type, str], Mark] = {}

    def of(self, kind: type, attribute: str) -> Mark:
        """Return the mark of an attribute, "" for one that is taken as it is."""
        found = self._found.get((kind, attribute))
        if found is None:
            marks = (self._marks.get(f"{base.__name__}.{attribute}") for base in kind.__mro__)
            found = self._found[kind, attribute] = next((mark for mark in marks if mark), "")
        return found


class Inspection(NamedTuple):
    """Everything on which the future of a target depends.

    parts  objects whose attributes are state; a part that is met inside another is a reference
    marks  what attributes mean
    pages  all that can be read from each page of the memory, by layer and block
    """

    parts: Mapping[str, object]
    marks: Marks
    pages: Sequence[Sequence[object]] = ()


@runtime_checkable
class Inspected(Protocol):
    """A target that shows all of its state."""

    def inspect(self) -> Inspection:
        """Return the state at the end of an event."""
        ...
