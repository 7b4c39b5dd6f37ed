"""Batches of plain caches: which request is in which row, and whose tokens it has.

A plain cache is one set of tensors whose first dimension is the batch: row i belongs to request i, and there is no
pool. Two operations give a row the caches of another one:

    repeat   every row is repeated; the copies of r0 are r0.1, r0.2, ... and stand behind it
    reorder  beams: rows take over the caches and the tokens of their sources, all at the same time

Rows with the same source would have the same tokens for ever, and a wrong copy could not be seen. As in beam search,
the k-th of them (k = 0 for the first row in the batch) therefore continues with another token: if the source has
sampled a token, the newest one, which is not computed yet, is replaced by `choice(token, k)` (`truth_of_copy`).

Source: transformers `Cache.batch_select_indices`, `reorder_cache`, `batch_repeat_interleave` (5.23).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .tokens import Truth, other_token

NAME_MAX = 64
"""Characters of a request's name."""


def choice(token: int, rank: int) -> int:
    """Return the token with which the copy of rank `rank` continues where the model samples `token`."""
    for _ in range(rank):
        token = other_token(token)
    return token


def truth_of_copy(source: Truth, known: int, rank: int) -> Truth:
    """Return the tokens of a copy of rank `rank`, whose source has `known` tokens, its prompt included."""
    if not rank or known == source.prompt_length:
        return source
    newest = known - 1
    return source.branched(newest, choice(source.tokens[newest], rank))


def stops_of_copy(truth: Truth, known: int, stops: Sequence[int]) -> tuple[int, ...]:
    """Return the stop tokens of a copy with the tokens `truth`, `known` of which its client has: those that are not
    among these. Beam search would have put such a beam aside; here it goes on."""
    return tuple([token for token in stops if token not in truth.tokens[truth.prompt_length : known]])


def copy_name(name: str, index: int) -> str:
    """Return the name of the `index`-th copy of a request, from 1."""
    return f"{name}.{index}"


def original_name(name: str) -> str:
    """Return the name of the request that a name of `copy_name` is a copy of; other names as they are."""
    original, dot, index = name.rpartition(".")
    return original if dot and original and index.isdecimal() else name


def selected(rows: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the batch after `select`: the rows in `names`, in that order; all rows if none of them is in it."""
    return [name for name in dict.fromkeys(names) if name in rows] or list(rows)


def repeated(rows: Sequence[str], times: int, most: int, known: set[str]) -> dict[str, tuple[str, int]]:
    """Return the batch after `repeat`: row -> (source, rank), in row order; empty if nothing happens, since the batch
    would have more than `most` rows, or because a copy's name is too long or in `known` (names that arrived)."""
    copies = {copy_name(name, rank): (name, rank) for name in rows for rank in range(1, times)}
    if len(rows) * times > most or any(len(name) > NAME_MAX or name in known for name in copies):
        return {}
    named = {(name, rank): copy for copy, (name, rank) in copies.items()}
    return {named.get((name, rank), name): (name, rank) for name in rows for rank in range(times)}


def reordered(rows: Sequence[str], sources: Mapping[str, str]) -> dict[str, tuple[str, int]]:
    """Return the batch after `reorder`: row -> (source, rank), in row order. A row without a source in the batch is its
    own source."""
    taken: Counter[str] = Counter()
    batch = {}
    for name in rows:
        source = sources.get(name, name)
        source = source if source in rows else name
        batch[name] = (source, taken[source])
        taken[source] += 1
    return batch
