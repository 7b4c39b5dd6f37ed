"""The built-in target with three mutants at once: several causes in one campaign, each known exactly.

    cd benchmarks
    python identity.py collect  --target python:mixtures:T7 --traces 40 -o out/7
    python identity.py truth    --target python:mixtures:T7 -o out/7
    python identity.py evidence --target python:mixtures:T7 -o out/7
    python identity.py score    -o out/7

`T7` is the factory of the seventh triple, `T7_0` the same without its first mutant. A trace that `T7_0` passes has the
first mutant as its cause. The triples are random, of mutants in different parts of the target: T1 to T32 of those that
there were when the figures of identity.md began, so that a new mutant does not change what is in T7, later ones of all.
"""

from __future__ import annotations

import random
from itertools import combinations

from hybridfuzz.targets.hybrid.factory import HybridFactory
from hybridfuzz.targets.hybrid.mutants import MUTANTS
from hybridfuzz.targets.hybrid.target import HybridTarget

SIZE = 3
SEED = 1
FIRST = 32
"""The number of triples without the mutants in LATER."""
LATER = frozenset({
    "accepted-only-with-drafts", "all-spec-boundary-state", "all-spec-window-column", "dummy-run-as-prompt",
    "mixed-decodes", "rejection-after-reset", "replayed-as-drafts", "reset-with-results-in-flight",
    "states-behind-a-gap", "unscheduled-row", "vacated-row-not-cleared", "verification-as-prefill",
})  # fmt: skip


def triple(number: int) -> tuple[str, ...]:
    """Return the slugs of a triple. Mutants that replace the same part cannot be combined and are drawn again."""
    draw = random.Random(f"{SEED} {number}")
    known = sorted(MUTANTS.keys() - LATER if number <= FIRST else MUTANTS)
    while True:
        slugs = tuple(draw.sample(known, SIZE))
        if not any(_replaced(one) & _replaced(other) for one, other in combinations(slugs, 2)):
            return slugs


def _replaced(slug: str) -> set[str]:
    """Return the names that a mutant overrides in the correct target."""
    classes = MUTANTS[slug].__mro__
    own = classes[: classes.index(HybridTarget)]
    return {name for each in own for name in vars(each) if name not in ("__doc__", "__module__", "__firstlineno__")}


def causes_of(target: str) -> dict[str, str]:
    """Return slug -> the target string without that mutant, for a target string of this module."""
    slugs = triple(int(target.rpartition(":T")[2]))
    return {slug: f"{target}_{index}" for index, slug in enumerate(slugs)}


def __getattr__(name: str) -> HybridFactory:
    """Return the factory of a triple by its name. Raises AttributeError for any other name."""
    number, _, without = name.removeprefix("T").partition("_")
    if not name.startswith("T") or not number.isdecimal():
        raise AttributeError(name)
    slugs = [slug for index, slug in enumerate(triple(int(number))) if str(index) != without]
    mixed: type[HybridTarget] = type("Mixture", tuple(MUTANTS[slug] for slug in slugs), {})
    return HybridFactory(name, mixed)
