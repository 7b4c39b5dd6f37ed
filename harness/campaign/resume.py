"""Resumes a campaign that did not end.

A campaign has ended when one of its own limits ended it. Killed, interrupted or stopped by an error (a full disk), it
continues from its last state: its seed, its counts, its findings, the time that it has used. Only one campaign at a
time works in a folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..campaign_summary import Summary
from ..draw.trace_files import sweep
from ..group.findings.finding_store import OWN_FOLDERS, OutputError, refuse_links

LOCK_FILE = ".lock"


def unfinished(
    state: Summary | None,
    target: str,
    version: str,
    overrides: Mapping[str, object],
    seed: int | None,
    shard: str = "",
    source: str = "seeded",
    workload: Mapping[str, str] | None = None,
) -> bool:
    """Return True if a campaign did not end and is the one that is asked for. `seed` is None if any will do."""
    if (
        state is None
        or state.exit_reason not in (None, "interrupted", "error")
        or not (state.traces or state.unopened)
        or state.merged
    ):
        return False
    ours = (state.target, state.version, dict(state.overrides), state.shard, state.source, dict(state.workload))
    same = ours == (target, version, dict(overrides), shard, source, dict(workload or {}))
    return same and seed in (None, state.seed)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep other campaigns out of a folder, as long as this process lives.

    Raises OutputError if one is there, or if the folder would lead what is written to it elsewhere.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        lock = _open_lock(folder / LOCK_FILE)
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another with -o"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(f"another campaign is at work in {folder}; choose another folder with -o") from None
        for place in (folder, *(folder / name for name in OWN_FOLDERS)):
            sweep(place)
        yield
    finally:
        os.close(lock)


def _open_lock(path: Path) -> int:
    """Open a file that may be a stranger's: nothing is truncated, and a FIFO is not waited for."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
    else:
        if stat.S_ISREG(os.fstat(lock).st_mode):
            return lock
        os.close(lock)
    raise OutputError(f"{path} is not a regular file; remove it, or choose another folder with -o")
