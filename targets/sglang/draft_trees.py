"""Trees of drafts: what the drafter proposes, and what kernels read of a tree.

With a breadth above 1 (`--speculative-eagle-topk`, `--speculative-ngram-max-bfs-breadth`) several drafts may follow the
same token. A verification has one row of tokens all the same: its last known token, then the drafts. Attention reads
from a mask to which of them each may attend; layers with states read from links behind which of them each comes.

The links are those of the engine's metadata, and are followed here as its kernels follow them: that of the convolution
(`causal_conv1d_update`) finds the parent of each token and stores it, the recurrent one reads what was stored
(`retrieve_parent_token`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...reference.draft_trees import ROOT, path_to, shape
from ...reference.tokens import Truth, mix, next_token, other_token
from .batch_rows import Links, Tree
from .kernels import OutOfBounds

PADDING = 0
"""The token with which a corpus of n-grams fills up a tree, behind the last known token (`fillResult`)."""


class Proposal(NamedTuple):
    """Drafts, and the parents of each; the last `fillers` are padding."""

    tokens: list[int]
    parents: tuple[int, ...]
    fillers: int = 0


def grow(truth: Truth, known: int, count: int, breadth: int, right: int, padding: str = "") -> Proposal:
    """Return a tree of `count` drafts behind the first `known` tokens, of which a path of `right` is right if one is as
    long. If `padding` is not empty, a corpus may have found less and pads: with wrong tokens ("wrong"), or any ("any").

    What the tree looks like and where the right path leads follows from the tokens, so that a trace repeats it.
    """
    seed = truth.tag(known)
    fillers = mix(seed, 1) % count if padding else 0
    parents = shape(count - fillers, breadth, seed)
    paths = [path_to(draft, parents) for draft in range(len(parents))]
    length = min(right, max((len(path) for path in paths), default=0))
    ends = [path for path in paths if len(path) == length] or [[]]
    path = ends[mix(seed, 3) % len(ends)]
    said = truth.drafts(known, length + 1, length + 1)
    tokens: list[int] = []
    tags = {ROOT: seed}
    for draft, parent in enumerate(parents):
        depth = len(paths[draft]) - 1
        is_behind = parent == ROOT or parent in path
        taken = {tokens[other] for other in range(draft) if parents[other] == parent}
        taken |= {said[depth], next_token(tags[parent])} if is_behind else set()
        token = said[depth] if draft in path else next_token(tags[parent])
        while draft not in path and token in taken:
            token = other_token(token)
        tokens.append(token)
        tags[draft] = mix(tags[parent], token + truth.key)
    # A model may say the token that is padding. Here it never says 0: another one stands for it.
    filler = said[0] if padding == "any" and not path and mix(seed, 2) % 2 else PADDING
    return Proposal(tokens + [filler] * fillers, (*parents, *[ROOT] * fillers), fillers)


def mask(parents: Sequence[int]) -> Any:
    """Return which tokens of a row each one sees: itself, and those on the path to it."""
    count = len(parents) + 1
    seen = np.eye(count, dtype=bool)
    for draft, parent in enumerate(parents):
        seen[draft + 1] |= seen[parent + 1]
    return seen


def linked_parents(children: Sequence[int], siblings: Sequence[int]) -> tuple[int, ...]:
    """Return the parent of each token of a row by the links to its first child and its next sibling.

    As the kernel of the convolution does: one pass in the order of the row, 0 for what no link names.
    """
    parents = [0] * len(children)
    for token, (child, sibling) in enumerate(zip(children, siblings, strict=True)):
        if child != ROOT:
            parents[child] = token
        if sibling != ROOT:
            parents[sibling] = parents[token]
    return tuple(parents)


def drafted(spec_info: Any, rows: int) -> list[Proposal]:
    """Return the trees of a draft model, as they were built."""
    trees = []
    for row in range(rows):
        children, siblings = spec_info.retrieve_next_token[row].tolist(), spec_info.retrieve_next_sibling[row].tolist()
        parents = tuple([parent - 1 for parent in linked_parents(children, siblings)[1:]])
        trees.append(Proposal(spec_info.draft_token.reshape(rows, -1)[row, 1:].tolist(), parents))
    return trees


def seen_by_attention(spec_info: Any, prefixes: Sequence[int], proposals: Sequence[Proposal]) -> list[Tree]:
    """Return, by row, what attention reads of the trees of a verification: the mask of each token, and its position.

    The mask has a line for each token, and in it a column for each token before the row, then for each one of the row.
    """
    flat, positions = spec_info.custom_mask, spec_info.positions
    trees, first, token = [], 0, 0
    for prefix, proposal in zip(prefixes, proposals, strict=True):
        count = len(proposal.parents) + 1
        size = count * (prefix + count)
        if first + size > flat.numel() or token + count > positions.numel():
            raise OutOfBounds(f"kernel of attention: {flat.numel()} entries of a mask, {first + size} are read")
        lines = flat[first : first + size].reshape(count, prefix + count).tolist()
        visible = tuple(
            [tuple([one for one in range(count) if line[prefix + one]]) if all(line[:prefix]) else None
             for line in lines]
        )  # fmt: skip
        places = tuple(positions[token : token + count].tolist())
        trees.append(Tree(proposal.parents, visible, places, proposal.fillers))
        first, token = first + size, token + count
    return trees


def linked(metadata: Any, rows: int) -> list[Links | None]:
    """Return, by row, the parents of its tokens for layers with states; None where each comes behind the one before it.

    What the kernel of the convolution finds is stored where the recurrent one reads it.
    """
    children: Any = metadata.retrieve_next_token
    siblings: Any = metadata.retrieve_next_sibling
    stored: Any = metadata.retrieve_parent_token
    links: list[Links | None] = [None] * rows
    for row in range(rows):
        if children is not None:
            found = linked_parents(children[row].tolist(), siblings[row].tolist())
            before = tuple(range(ROOT, len(found) - 1))
            if stored is not None:
                stored[row] = stored.new_tensor(found)
            links[row] = Links(found, before if stored is None else tuple(stored[row].tolist()))
        elif stored is not None:
            links[row] = Links(tuple(range(ROOT, stored.shape[1] - 1)), tuple(stored[row].tolist()))
    return links
