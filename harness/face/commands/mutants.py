"""hybridfuzz mutants: measure how fast each known bug is found."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from ...measure.detection.matrix import Matrix
    from ...measure.detection.statistics import Detection, MutantRow

EXAMPLES = """\
A mutant is the target with one known bug planted. To judge a change of
workload or oracles, keep matrix.json of one run and pass it to the next one
with --compare. Numbers of traces are exact; CPU seconds depend on the machine.
DIR/traces gets the shortest trace of each mutant and signature.
Exit status: 0 all found with every seed, 1 some not, 2 usage or environment,
4 internal error, 5 interrupted.
example: hybridfuzz mutants --seeds 5 --time 60s --compare before.json
"""
DOCUMENT = Path("docs/reference/detection.md")
WIDTH = 170
"""Columns of output that is no terminal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ...units import count, duration, seed
    from .common import add_config, jobs

    parser.add_argument("--target", "-t", default="hybrid", metavar="T", help="target with mutants (default: hybrid)")
    parser.add_argument(
        "--timeout", type=duration, default=20.0, metavar="TIME", help="limit for one run of a trace (default: 20s)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="SLUG,...", help="mutants to run (default: all)")
    parser.add_argument(
        "--time", type=duration, default=60.0, metavar="TIME", help="CPU time for each run (default: 60s)"
    )
    parser.add_argument("--seeds", type=count, default=5, metavar="N", help="runs of each mutant (default: 5)")
    parser.add_argument("--seed", type=seed, default=0, metavar="S", help="first seed (default: 0)")
    parser.add_argument(
        "--jobs", "-j", type=jobs, metavar="N", help="runs at a time (default: auto, one for each core)"
    )
    parser.add_argument(
        "--reduce",
        type=duration,
        default=10.0,
        metavar="TIME",
        help="time limit for reducing each trace (default: 10s)",
    )
    parser.add_argument("--no-reduce", action="store_true", help="detect only")
    add_config(parser)
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="list what got better and worse")
    parser.add_argument("--write-docs", action="store_true", help=f"write the maintained table, {DOCUMENT}")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for matrix.json and traces (default: hybridfuzz-out/mutants)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run the trials, print the table, save it, compare."""
    from rich.console import Console

    from ...measure.detection.result import load_runs, result_of, save, summarise_all
    from ...measure.detection.statistics import compare, summarise
    from ...measure.detection.tables import change_lines, plain_line, terminal_table
    from .common import output_folder, print_json
    from .signals import ending_on_signals

    check(options)
    earlier = load_runs(options.compare) if options.compare else None
    out = options.out or output_folder("mutants")
    matrix, titles = prepare_matrix(options, out)
    console = Console(stderr=options.json)
    if not console.is_terminal:
        console = Console(stderr=options.json, width=WIDTH)

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    runs: list[Detection] = []
    with ending_on_signals(matrix), closing(matrix.run()) as detections, progress(console, matrix) as advance:
        for detection in detections:
            runs.append(detection)
            advance(detection)
            same = [run for run in runs if run.mutant == detection.mutant]
            if len(same) == options.seeds:
                line(plain_line(summarise(detection.mutant, "", same)))
    rows = summarise_all(runs, titles)
    console.print(terminal_table(rows))
    changes = compare(earlier, runs) if earlier is not None else []
    for text in change_lines(changes) if earlier is not None else []:
        line(text)
    result = result_of(matrix, rows, runs, changes if earlier is not None else None)
    save(out / "matrix.json", result)
    for text in verdict(result, out):
        line(text)
    if options.write_docs:
        line(write_document(options, rows) if matrix.reason != "interrupted" else f"{DOCUMENT} stays as it is")
    if options.json:
        print_json(result)
    return status(result)


def check(options: argparse.Namespace) -> None:
    """Raise TraceError for options that exclude each other, before any time is spent."""
    from ....targets.base.trace import TraceError

    if options.write_docs and options.only:
        raise TraceError(f"{DOCUMENT} is about all mutants: --write-docs and --only exclude each other")
    if options.write_docs and not DOCUMENT.parent.is_dir():
        raise TraceError(f"there is no folder {DOCUMENT.parent} here: --write-docs is for a checkout of hybridfuzz")


def prepare_matrix(options: argparse.Namespace, out: Path) -> tuple[Matrix, dict[str, str]]:
    """Return the matrix and the titles of its mutants."""
    from ...measure.detection.matrix import Matrix, MatrixSettings, chosen_mutants
    from ...workers.machine import cores
    from .common import launch_target

    only = [slug.strip() for slugs in options.only for slug in slugs.split(",") if slug.strip()]
    titles = chosen_mutants(options.target, only)
    settings = MatrixSettings(
        target=options.target,
        launch=launch_target(options.target),
        mutants=list(titles),
        seeds=range(options.seed, options.seed + options.seeds),
        out=out,
        seconds=options.time,
        jobs=min(options.jobs or cores(), len(titles) * options.seeds),
        overrides={key: value for pairs in options.config for key, value in pairs.items()},
        trace_seconds=options.timeout,
        reduce_seconds=0.0 if options.no_reduce else options.reduce,
    )
    return Matrix(settings), titles


@contextmanager
def progress(console: Console, matrix: Matrix) -> Iterator[Callable[[Detection], None]]:
    """Show a progress bar on a terminal; yield the function that counts one run."""
    from rich import progress as bars

    settings = matrix.settings
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("runs", total=len(settings.mutants) * len(settings.seeds))
        missed = 0

        def advance(detection: Detection) -> None:
            nonlocal missed
            missed += not detection.found
            bar.update(task, advance=1, description=f"runs ({missed} found nothing)")

        yield advance


def write_document(options: argparse.Namespace, rows: Sequence[MutantRow]) -> str:
    """Write the table of the documentation; return a line that names it."""
    from ...draw.trace_files import write_atomically
    from ...measure.detection.tables import markdown

    command = f"hybridfuzz mutants --time {options.time:g}s --seeds {options.seeds} --seed {options.seed} --write-docs"
    write_atomically(DOCUMENT, markdown(rows, options.target, options.time, command).encode())
    return f"{DOCUMENT} written"


def verdict(result: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Yield the last lines of output."""
    yield from result["errors"]
    rows, missed = result["mutants"], result["not_found"]
    ended = "interrupted: " if result["exit_reason"] == "interrupted" else ""
    whole = sum(row["found"] == len(result["seeds"]) for row in rows)
    yield f"{ended}{whole} of {whole + len(missed)} mutants found with every seed"
    yield f"kept: {out / 'matrix.json'}, {out / 'traces'}"
    if missed:
        yield f"not found with every seed: {', '.join(missed)}"


def status(result: Mapping[str, Any]) -> int:
    """Return the exit status; errors of hybridfuzz count most, and a mutant that was missed more than an interruption:
    runs that were interrupted miss nothing."""
    from ...exit_status import CLEAN, INTERNAL, INTERRUPTED, VIOLATION

    if result["errors"]:
        return INTERNAL
    if any(row["found"] < row["runs"] for row in result["mutants"]):
        return VIOLATION
    return INTERRUPTED if result["exit_reason"] == "interrupted" else CLEAN
