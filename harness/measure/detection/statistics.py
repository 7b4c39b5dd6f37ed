"""Statistics of detection: one run, all runs of one mutant, and the comparison of two matrices.

Traces and steps are exact: equal code, seeds and overrides give equal numbers on every machine. CPU seconds are
the cost for a user, and vary with the machine.

A run that found nothing has no detection time. Medians count it as later than every other (None: not found that
often); the ratios of a comparison count what it spent, which is a lower bound.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

CHANGED = 2.0
"""Smallest ratio that counts as a change: five seeds scatter by almost as much."""


class Detection(Struct, frozen=True):
    """One mutant fuzzed with one seed.

    traces, steps, seconds  spent until it was found, or altogether; seconds of CPU time in the worker
    events                  of the reduced trace, 0 if there is none
    error                   why hybridfuzz could not run it to its end
    """

    mutant: str
    seed: int
    traces: int = 0
    steps: int = 0
    seconds: float = 0.0
    signature: str = ""
    oracle: str = ""
    message: str = ""
    events: int = 0
    error: str = ""

    @property
    def found(self) -> bool:
        """Return True if an oracle reported a violation."""
        return bool(self.signature)


class Saved(Struct, frozen=True):
    """The part of a matrix file that a comparison reads."""

    runs: Sequence[Detection]


class Spread(Struct, frozen=True):
    """Median and worst of several runs; None where so many runs found nothing."""

    median: float | None
    worst: float | None


class MutantRow(Struct, frozen=True):
    """All runs of one mutant. `signatures` counts the runs that ended with each, the most frequent first."""

    mutant: str
    title: str
    runs: int
    found: int
    oracles: Sequence[str]
    signatures: Mapping[str, int]
    traces: Spread
    steps: Spread
    seconds: Spread
    events: float | None


class MutantChange(Struct, frozen=True):
    """One mutant in two matrices; ratios are geometric means over the runs, new / old."""

    mutant: str
    verdict: Literal["better", "worse", "same", "new", "gone"]
    found: tuple[int, int]
    runs: tuple[int, int]
    traces: float = 1.0
    seconds: float = 1.0


def spread(values: Iterable[float | None]) -> Spread:
    """Return median and worst, None for runs that found nothing."""
    ordered = sorted(math.inf if value is None else value for value in values)
    median, worst = statistics.median(ordered), ordered[-1]
    return Spread(median if median < math.inf else None, worst if worst < math.inf else None)


def summarise(mutant: str, title: str, runs: Sequence[Detection]) -> MutantRow:
    """Return the statistics of one mutant's runs."""
    found = [run for run in runs if run.found]
    reduced = [run.events for run in found if run.events]
    return MutantRow(
        mutant=mutant,
        title=title,
        runs=len(runs),
        found=len(found),
        oracles=sorted({run.oracle for run in found}),
        signatures=dict(Counter(run.signature for run in found).most_common()),
        traces=spread(run.traces if run.found else None for run in runs),
        steps=spread(run.steps if run.found else None for run in runs),
        seconds=spread(round(run.seconds, 3) if run.found else None for run in runs),
        events=statistics.median(reduced) if reduced else None,
    )


def ratio(new: Sequence[float], old: Sequence[float], least: float) -> float:
    """Return the geometric mean of `new` over that of `old`; values below `least` count as `least`."""

    def logarithm(values: Sequence[float]) -> float:
        return statistics.fmean(math.log(max(value, least)) for value in values)

    return math.exp(logarithm(new) - logarithm(old))


def compare(old: Sequence[Detection], new: Sequence[Detection]) -> list[MutantChange]:
    """Return the changes between two matrices, the worst first."""
    changes = []
    for mutant in dict.fromkeys(run.mutant for run in [*new, *old]):
        after, before = (tuple(run for run in runs if run.mutant == mutant) for runs in (new, old))
        found, counts = (sum(run.found for run in before), sum(run.found for run in after)), (len(before), len(after))
        if not before or not after:
            changes.append(MutantChange(mutant, "new" if after else "gone", found, counts))
            continue
        traces = ratio([run.traces for run in after], [run.traces for run in before], 1)
        seconds = ratio([run.seconds for run in after], [run.seconds for run in before], 0.01)
        gain = found[1] / counts[1] - found[0] / counts[0]
        worse = gain < 0 or (gain == 0 and traces >= CHANGED)
        better = gain > 0 or (gain == 0 and traces <= 1 / CHANGED)
        changes.append(
            MutantChange(mutant, "worse" if worse else "better" if better else "same", found, counts, traces, seconds)
        )
    return sorted(changes, key=lambda change: -change.traces)


def overall(changes: Sequence[MutantChange]) -> tuple[float, float]:
    """Return the ratios of traces and of CPU seconds, geometric means over the mutants of both matrices."""
    both = [change for change in changes if change.verdict not in ("new", "gone")]
    if not both:
        return 1.0, 1.0
    traces, seconds = (
        math.exp(statistics.fmean(math.log(value) for value in values))
        for values in ([change.traces for change in both], [change.seconds for change in both])
    )
    return traces, seconds
