"""Whether a folder holds a campaign that did not end, to be continued by the same command.

A campaign has ended when a limit of its own ended it. Killed, interrupted or stopped by an error (a full disk), it goes
on where its last state stands: its seed, its counts, its findings, the time that it has used. One campaign at a time
works in a folder.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ..events import Summary
from ..findings.store import STATE_FILE, OutputError

LOCK_FILE = ".lock"


def load_state(folder: Path) -> Summary | None:
    """The state of the campaign in a folder, None where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / STATE_FILE).read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError):
        return None


def unfinished(
    folder: Path, target: str, version: str, overrides: Mapping[str, object], seed: int | None
) -> Summary | None:
    """The campaign to continue: it did not end, and it is the same one. `seed` is None if any will do."""
    state = load_state(folder)
    if state is None or state.exit_reason not in (None, "interrupted", "error") or not state.traces:
        return None
    same = (state.target, state.version, dict(state.overrides)) == (target, version, dict(overrides))
    return state if same and seed in (None, state.seed) else None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keeps other campaigns out of a folder, as long as this process lives. OutputError if one is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK_FILE).open("w") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(f"another campaign is at work in {folder}; choose another folder with -o") from None
            yield
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another with -o"
        ) from error
