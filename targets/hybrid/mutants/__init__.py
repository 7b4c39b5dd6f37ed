"""The built-in target with exactly one known bug reintroduced.

A mutant is one small class that overrides one method of one part of the correct target. The first line of its docstring
is its title, the rest gives the public issue or pull request and the mechanism. `PARTS` of its module gives the slug;
`MUTANTS` maps slugs to target classes. A module is named after the part that it breaks:

block_pool       reserved ids and the null block
block_tables     allocation, publication and release in one group
cache_manager    admission, lookup, publication and release of a request over all groups
partial_hits     hits inside a block
scheduler        chunk ends, admission, results after a reset, the end of an answer, grammars
sessions         admission of turns, truncation, release on close
session_events   handlers of session events
connector        loads and saves outside the pool
external_store   copies between the pool and the store
tag_kernels      initial states, the null block, writes to shared blocks
input_batch      rows of ended requests, table widths, shared metadata
accepted_counts  numbers of accepted drafts
state_slots      moves between columns, choice of checkpoints
drafter          slots of dummy batches
model_runner     zeroing, padding, graph dispatch, dummy runs
build            makes target classes of them
"""

from __future__ import annotations

from ..target import HybridTarget
from . import (
    accepted_counts,
    block_pool,
    block_tables,
    cache_manager,
    connector,
    drafter,
    external_store,
    input_batch,
    model_runner,
    partial_hits,
    scheduler,
    session_events,
    sessions,
    state_slots,
    tag_kernels,
)
from .build import mutant

_MODULES = (
    block_pool,
    block_tables,
    cache_manager,
    partial_hits,
    scheduler,
    sessions,
    session_events,
    connector,
    external_store,
    tag_kernels,
    input_batch,
    accepted_counts,
    state_slots,
    drafter,
    model_runner,
)
"""Order in which mutants are listed: from the scheduler's side to the worker's."""
PARTS: dict[str, type] = {slug: part for module in _MODULES for slug, part in module.PARTS.items()}

MUTANTS: dict[str, type[HybridTarget]] = {slug: mutant(slug, part) for slug, part in PARTS.items()}


def titles() -> dict[str, str]:
    """Return the title of each mutant by slug: the first line of its docstring."""
    return {slug: (part.__doc__ or "").partition("\n")[0].rstrip(".") for slug, part in PARTS.items()}
