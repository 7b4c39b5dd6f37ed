"""Trees of drafts: each draft follows the last known token, or a draft before it.

A tree is given by the *parents* of its drafts: the index, among them, of the draft that each one follows, ROOT for the
last known token. Without any, each draft follows the one before it: a chain. Drafts are numbered by breadth: the parent
of none comes before the parent of the draft before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import mix

ROOT = -1
"""The parent of a draft that follows the last known token."""


def shape(count: int, breadth: int, seed: int) -> list[int]:
    """Return the parents of `count` drafts, at most `breadth` of which follow the same token."""
    parents: list[int] = []
    followers = [0] * (count + 1)
    for index in range(count):
        first = parents[-1] if parents else ROOT
        free = [node for node in range(first, index) if followers[node] < breadth]
        parents.append(free[mix(seed, index) % len(free)])
        followers[parents[-1]] += 1
    return parents


def path_to(draft: int, parents: Sequence[int]) -> list[int]:
    """Return the drafts from the last known token to a draft, itself included."""
    path = [draft]
    while parents[path[-1]] != ROOT:
        path.append(parents[path[-1]])
    return path[::-1]


def longest_path(drafts: Sequence[int], parents: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the drafts on the longest path whose tokens are the first ones of `wanted`."""
    if not parents:
        parents = range(ROOT, len(drafts) - 1)
    path: list[int] = []
    right = {ROOT: 0}
    for index, (token, parent) in enumerate(zip(drafts, parents, strict=True)):
        depth = right.get(parent, -1)
        if 0 <= depth < len(wanted) and token == wanted[depth]:
            right[index] = depth + 1
            if depth + 1 > len(path):
                path = path_to(index, parents)
    return path
