"""Resumes a campaign that did not end.

A campaign has ended when one of its own limits ended it. Killed, interrupted or stopped by an error (a full disk), it
continues from its last state: its seed, its counts, its findings, the time that it has used. Only one campaign at a
time works in a folder.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..events import Summary
from ..findings.store import OutputError

LOCK_FILE = ".lock"


def unfinished(
    state: Summary | None,
    target: str,
    version: str,
    overrides: Mapping[str, object],
    seed: int | None,
    shard: str = "",
    source: str = "seeded",
) -> bool:
    """Return True if a campaign did not end and is the one that is asked for. `seed` is None if any will do."""
    if state is None or state.exit_reason not in (None, "interrupted", "error") or not state.traces or state.merged:
        return False
    ours = (state.target, state.version, dict(state.overrides), state.shard, state.source)
    same = ours == (target, version, dict(overrides), shard, source)
    return same and seed in (None, state.seed)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep other campaigns out of a folder, as long as this process lives. Raises OutputError if one is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another with -o"
        ) from error
    with file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise OutputError(f"another campaign is at work in {folder}; choose another folder with -o") from None
        yield
