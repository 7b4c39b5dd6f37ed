"""Are the estimates of what is left right? The first half of a campaign predicts the second; mutants give the truth.

    python benchmarks/calibration.py [--target hybrid] [--seeds 20] [--traces 600] [--fixes builtin]
    python benchmarks/calibration.py --mutants SLUG,SLUG,... --traces 3000

For each seed 2 x --traces are drawn and run. From the first half comes the interval for the number of new species in
the second, and the one for the chance that the next trace shows something new; the truth of the latter is the share of
the second half that shows something which the first half did not, each trace by itself. At 95 %, 18 of 20 intervals
should hold.

With --mutants: the failing traces of one long stream cut it into campaigns that end with their first failure. Just
before it each says "at most X of the traces fail, at 95 %". The rate of the whole stream is the truth.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
from collections.abc import Iterator, Sequence

from msgspec import structs

from hybridfuzz.harness.group.known.fixes import apply_fixes, asked_fixes
from hybridfuzz.harness.judge.situations import SpeciesReporter
from hybridfuzz.harness.risk.binomial import upper_bound
from hybridfuzz.harness.risk.estimates import chance_of_new, new_species
from hybridfuzz.harness.risk.species_counts import Draws, SpeciesCounts
from hybridfuzz.harness.tell.silence import percent
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import TraceError

UNITS = (1, 10, 100)
Species = Sequence[int]


def run(worker: WorkerClient, seed: int, traces: int) -> Iterator[tuple[Species, bool]]:
    """Yield the species of each trace, and whether it failed. What the target refuses is no trace."""
    numbers = itertools.count()
    while traces:
        trace = worker.draw(seed, next(numbers), {})
        try:
            outcome = worker.run(trace)
        except TraceError:
            continue
        traces -= 1
        yield SpeciesReporter().report(outcome.together), outcome.violation is not None


def counted(traces: Sequence[Species], unit: int = 1) -> SpeciesCounts:
    """Return the species of traces; `unit` of them count as one."""
    counts = SpeciesCounts()
    for number, species in enumerate(traces):
        counts.add(species, number // unit)
    return counts


def halves(worker: WorkerClient, seeds: range, traces: int) -> None:
    """Print a row for each seed, and how many intervals hold."""
    held, all_traces = [0, 0, 0], list[Species]()
    print("| seed | failing | species | new: predicted | came | chance: estimated | was |\n| ---: |" + " ---: |" * 6)
    for seed in seeds:
        ran = list(run(worker, seed, 2 * traces))
        species = [shown for shown, _ in ran]
        all_traces += species
        first, second = species[:traces], species[traces:]
        known, failing = set().union(*first), sum(failed for _, failed in ran)
        seen = counted(first).seen([Draws(seed, "", traces, 0)])
        new, chance = new_species(seen, traces), chance_of_new(seen)
        came = len(set().union(*second) - known)
        was = sum(not known.issuperset(shown) for shown in second) / traces
        naive = new_species(structs.replace(seen, once_squares=seen.once, twice_squares=seen.twice), traces)
        held[0] += new.low <= came <= new.high
        held[1] += chance.low <= was <= chance.high
        held[2] += naive.low <= came <= naive.high
        print(
            f"| {seed} | {failing} | {seen.species:,} | {new.value:.0f} ({new.low:.0f} to {new.high:.0f}) | {came} | "
            f"{percent(chance.value)} ({percent(chance.low)} to {percent(chance.high)}) | {percent(was)} |",
            flush=True,
        )
    print(f"\n{held[0]} of {len(seeds)} intervals hold the new species, {held[1]} the chance")
    print(f"{held[2]} would hold the new species if those of a trace were taken as independent of each other\n")
    units(all_traces)


def units(traces: Sequence[Species]) -> None:
    """Print the chance per trace where several count as one: a valid estimate does not move."""
    for unit in UNITS:
        number = len(traces) // unit
        chance = chance_of_new(counted(traces[: number * unit], unit).seen([Draws(0, "", number, 0)]))
        each = [1 - (1 - share) ** (1 / unit) for share in (chance.value, chance.low, chance.high)]
        value, low, high = map(percent, each)
        print(f"a trace shows something new, by units of {unit}: {value} ({low} to {high})")


def mutants(slugs: Sequence[str], traces: int) -> None:
    """Print a row for each mutant."""
    print("| mutant | failing traces | bounds before a failure, lowest | at least the rate |\n| --- |" + " ---: |" * 3)
    for slug in slugs:
        target = f"hybrid:{slug}"
        with WorkerClient(target, prepare(target, print)) as worker:
            worker.start()
            failed = [failing for _, failing in run(worker, 1, traces)]
        rate, places = sum(failed) / traces, [-1, *(place for place, failing in enumerate(failed) if failing)]
        clean = [later - earlier - 1 for earlier, later in itertools.pairwise(places)]
        bounds = [upper_bound(0, number) if number else 1.0 for number in clean]
        holding = sum(bound >= rate for bound in bounds)
        print(
            f"| {slug} | {sum(failed)} of {traces:,} ({percent(rate)}) | {percent(min(bounds, default=1.0))} | "
            f"{holding} of {len(bounds)} |",
            flush=True,
        )


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="hybrid")
    parser.add_argument("--fixes", action="append", default=[], help="known bugs that are fixed: builtin")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--traces", type=int, default=600, help="traces of each half, or of each mutant")
    parser.add_argument("--mutants", help="slugs of mutants of the built-in target")
    options = parser.parse_args()
    if options.mutants:
        mutants(options.mutants.split(","), options.traces)
        return
    launch, today = prepare(options.target, print), datetime.date.today()
    fixes = asked_fixes(options.fixes, options.target, launch.version, today)
    launch = apply_fixes(launch, fixes, options.target, today).launch
    with WorkerClient(options.target, launch) as worker:
        worker.start()
        halves(worker, range(options.first, options.first + options.seeds), options.traces)


if __name__ == "__main__":
    main()
