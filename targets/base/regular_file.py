"""Reads a file that somebody else may have put there, without waiting for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def start_of_regular(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """Return at most the first `limit` bytes of a regular file; of a symbolic link only if `follow`.

    Raises OSError for anything else: a FIFO would be waited for, a device may have no end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(limit)
