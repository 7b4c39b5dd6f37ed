"""The commits of a checkout as versions to bisect: each in a worktree of its own, which is removed afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...targets.base.git import MESSAGE_MAX, commit_of, git
from ...targets.base.protocol import TargetError
from ..quoting import one_line

SHOWN = 12
"""Digits of a commit's name."""


def commits_between(repository: Path, good: str, bad: str) -> list[str]:
    """Return the commits from `good` to `bad`, both included, along first parents. Raises TargetError."""
    ends = [commit_of(repository, ref) for ref in (good, bad)]
    listed = git(repository, "rev-list", "--first-parent", "--reverse", f"{ends[0]}..{ends[1]}").split()
    if not listed:
        raise TargetError(f"{repository}: no commits lead from {good} to {bad}: name the older one first")
    return [commit[:SHOWN] for commit in (ends[0], *listed)]


def subject(repository: Path, commit: str) -> str:
    """Return the first line of a commit's message."""
    return one_line(git(repository, "show", "-s", "--format=%s", commit).strip(), MESSAGE_MAX)


@contextmanager
def worktree(repository: Path, commit: str) -> Iterator[Path]:
    """Yield a folder with a commit's files."""
    with tempfile.TemporaryDirectory(prefix="hybridfuzz-") as folder:
        tree = Path(folder, commit)
        git(repository, "worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git(repository, "worktree", "remove", "--force", str(tree))
