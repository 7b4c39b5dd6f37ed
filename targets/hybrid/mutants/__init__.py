"""The embedded target with exactly one known bug put back in.

A mutant is one small class that overrides one method of one part of the correct target; its docstring gives the
public number and the mechanism, and `PARTS` of its module the slug. `MUTANTS` maps slugs to target classes.
"""

from __future__ import annotations

from ..target import HybridTarget
from . import (
    allocation,
    connector,
    extra_groups,
    hits,
    initial_states,
    movers,
    moves,
    null_and_rows,
    partial,
    publication,
    rows,
    scheduling,
    sessions,
    states,
    zeroing,
)
from .parts import mutant

_MODULES = (
    allocation,
    connector,
    extra_groups,
    hits,
    initial_states,
    movers,
    moves,
    null_and_rows,
    partial,
    publication,
    rows,
    scheduling,
    sessions,
    states,
    zeroing,
)
PARTS: dict[str, type] = {slug: part for module in _MODULES for slug, part in module.PARTS.items()}

MUTANTS: dict[str, type[HybridTarget]] = {slug: mutant(slug, part) for slug, part in PARTS.items()}


def titles() -> dict[str, str]:
    """Slug -> the first line of its docstring."""
    return {slug: (part.__doc__ or "").partition("\n")[0].rstrip(".") for slug, part in PARTS.items()}
