"""Lines of an engine's source that an adapter runs in a translation of its own, which Python's tracer does not see.

An interpreter of kernels that turns their source into other functions lets these functions call `TRANSLATED.add` with
the file and line of each statement that they execute, if `wanted` was True when they were made.
"""

from __future__ import annotations


class TranslatedLines:
    """What was executed in this process. `wanted` is set when coverage is first recorded."""

    def __init__(self) -> None:
        self.wanted = False
        self.reached: set[tuple[str, int]] = set()
        self.add = self.reached.add


TRANSLATED = TranslatedLines()
