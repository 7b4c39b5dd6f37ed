"""What the program around the interpreter gives it: the exception for a wrong access, and who hears of executed lines.

The interpreter imports nothing of the program that uses it.
"""

from __future__ import annotations

from typing import Protocol


class OutOfBounds(RuntimeError):
    """A kernel touches memory that it was not given."""


class Lines(Protocol):
    """Hears of the lines of kernels that are executed."""

    @property
    def wanted(self) -> bool:
        """Return True if kernels report their lines; a kernel that was compiled before is compiled again."""

    def add(self, line: tuple[str, int], /) -> None:
        """Note one line: the file and the number of a statement's first line."""


class Unheard:
    """No lines are wanted."""

    wanted = False

    def add(self, line: tuple[str, int], /) -> None:
        """Forget it."""


class Host:
    """The program around the interpreter, as `install` was told."""

    error: type[Exception] = OutOfBounds
    lines: Lines = Unheard()
