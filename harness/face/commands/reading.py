"""Reads many trace files: one line for each that is no trace, the others are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.trace import Trace


def read_all(files: Sequence[Path], line: Callable[[str], None]) -> dict[Path, Trace | str]:
    """Read each file once; a file that is no trace gets one line, and its reason instead of a trace.

    Raises TraceError if there is only one file and it is no trace.
    """
    from ....targets.base.trace import TraceError
    from ...draw.trace_files import load_trace

    read: dict[Path, Trace | str] = {}
    for file in dict.fromkeys(files):
        try:
            read[file] = load_trace(file)
        except TraceError as error:
            if len(files) == 1:
                raise
            line(f"refused {error}")
            read[file] = str(error)
    return read


def unread(file: Path, reason: str) -> dict[str, object]:
    """Return the result of a file that is no trace."""
    return {"trace": str(file), "signature": None, "refused": reason}
