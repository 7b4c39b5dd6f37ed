"""Ends the processes that a worker has started, also those that went to a session of their own.

On Linux a worker adopts its orphans (`adopt_orphans`), so that all of them are below it in the tree of processes
as long as it lives. Of a worker that died by itself they are known by its home folder, which is in their
environment. Elsewhere nothing is found: only the worker's own group of processes ends with it.

Only the standard library is imported: `adopt_orphans` runs first in a worker.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the processes below one, itself not included."""
    children: dict[int, list[int]] = {}
    for process in _processes():
        with suppress(OSError, ValueError, IndexError):  # it has ended
            parent = int((_PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(process)
    found, left = list[int](), [pid]
    while left:
        below = children.pop(left.pop(), [])
        found += below
        left += below
    return found


def end_descendants(pid: int) -> None:
    """Kill the processes below one. Its orphans come to it, so this ends when there are none left."""
    before: list[int] = []
    while (found := [one for one in descendants(pid) if one not in before]) and len(before) < 10_000:
        for one in found:
            kill(one)
        before += found


def end_with_home(home: Path) -> None:
    """Kill the processes whose environment has this home folder."""
    wanted = f"HOME={home}".encode()
    for process in _processes():
        with suppress(OSError):  # another user's, or it has ended
            if wanted in (_PROC / str(process) / "environ").read_bytes().split(b"\0"):
                kill(process)


def kill(pid: int) -> None:
    """Kill a process, if it is still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[int]:
    """Yield the ids of other processes, nothing where there is no /proc."""
    with suppress(OSError):
        yield from (int(one.name) for one in _PROC.iterdir() if one.name.isdecimal() and int(one.name) != os.getpid())
