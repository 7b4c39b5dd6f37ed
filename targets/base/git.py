"""Runs git on a checkout of the user's, without refreshing its index.

Who calls `diff` adds --no-ext-diff and --no-textconv. Clean filters that the checkout configures still run.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from .protocol import TargetError

MESSAGE_MAX = 200
QUIETLY = ("--no-optional-locks", "-c", "core.quotePath=false")
"""Before the command: no refresh of the index on disk, and paths as they are."""


def git(repository: Path, *arguments: str) -> str:
    """Return what git prints. Raises TargetError, in one line, if it fails."""
    try:
        ran = subprocess.run(
            ["git", "-C", str(repository), *QUIETLY, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise TargetError(f"git cannot be run: {error.strerror}") from error
    if ran.returncode:
        raise TargetError(f"{repository}: git {arguments[0]}: {' '.join(ran.stderr.split())[:MESSAGE_MAX]}")
    return ran.stdout


def commit_of(repository: Path, ref: str) -> str:
    """Return the full name of the commit that a user names. Raises TargetError, also for an option in its place."""
    git(repository, "rev-parse", "--git-dir")  # raises if this is no repository
    try:
        if not ref.startswith("-"):
            return git(repository, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").strip()
    except TargetError as error:
        raise TargetError(f"{repository}: git knows no commit {ref!r}") from error
    raise TargetError(f"{ref!r} is no commit: it begins with '-'")
