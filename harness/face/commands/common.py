"""What several commands share: options that they have in common and what these become (`add_target`, `add_config`,
`fixes_of`, `memory_limit`, ...), a worker for one trace (`open_worker`), JSON and lines that they print."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ...defaults import TRACE_SECONDS
from ...quoting import terminal_line
from ...units import duration, size

if TYPE_CHECKING:  # --help has to come at once
    from ....targets.base.launch import Launch
    from ....targets.base.trace import TraceError
    from ...group.known.fixes import Fixes
    from ...group.known.known_toml import Known
    from ...group.known.recognition import Recognizer
    from ...workers.worker_client import WorkerClient

DEFAULT_TARGET = "hybrid"
JOBS_MAX = 1024
AGAINST_HELP = "run the same traces on a second target, which must behave the same"


def ours(module: str) -> ModuleType:
    """Load a module of this package by its name: outputs when they are asked for, pages since they stand above us."""
    root = (__package__ or "").removesuffix(".harness.face.commands")
    return importlib.import_module(f"{root}.{module}")


def add_target(parser: argparse.ArgumentParser, *, of_finding: bool = True) -> None:
    """--target, --device, --timeout and --memory. `of_finding`: the command takes a finding, which names its target."""
    about = f"what to test (default: {'that of the finding, or ' * of_finding}{DEFAULT_TARGET})"
    parser.add_argument("--target", "-t", default="", metavar="T", help=about)
    parser.add_argument(
        "--device",
        default="symbolic",
        metavar="D",
        help="real kernels too, on cpu or cuda; vllm: cuda or interpreter (default: none)",
    )
    parser.add_argument(
        "--timeout",
        type=duration,
        default=TRACE_SECONDS,
        metavar="TIME",
        help=f"time limit for one run of a trace, else it is a HANG (default: {TRACE_SECONDS:g}s)",
    )
    parser.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="memory limit per worker (default: equal share of 80%% of RAM; 0: none)",
    )


def target_of(options: argparse.Namespace) -> str:
    """Return the target of a command: that of the command line, else of the finding that it works on, else of the
    options file. Raises TraceError for a finding whose target runs code that only its author has named."""
    if options.target:
        return str(options.target)
    named = [getattr(options, name, None) for name in ("trace", "finding", "path", "what")]
    paths = [Path(one) for one in [*named, *getattr(options, "paths", ())] if one]
    if options.command == "report":  # of a campaign: nothing runs
        paths = [path for path in paths if not path.is_dir()]
    found = {remembered: path for path in paths if (remembered := _remembered(path))}
    if len(found) != 1:
        return str(getattr(options, "configured_target", DEFAULT_TARGET))
    [(target, path)] = found.items()
    from ....targets.base.registry import is_of_index
    from ....targets.base.trace import TraceError

    if not is_of_index(target):
        raise TraceError(f"{path} is of {target}, which is code of this machine: name it with --target, if it is yours")
    if options.command == "bisect":  # which names the releases
        target = target.partition("@")[0]
    progress_line(f"target: {target}, as {path} says")
    return target


def _remembered(path: Path) -> str:
    """Return the target of a campaign's folder, of a trace's file, or of the campaign that a trace is a finding of."""
    from ....targets.base.trace import TraceError
    from ...draw.trace_files import load_trace
    from ...group.findings.finding_store import FINDINGS_FOLDER, read_state

    with suppress(TraceError):  # the command says what is wrong with it
        if path.is_dir():
            state = read_state(path.parent if path.name == FINDINGS_FOLDER else path)
            return state.target if state else ""
        return load_trace(path).target if path.suffix == ".json" else ""
    return ""


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """--dp."""
    from ...units import count

    help_text = "data-parallel ranks; idle ones join through dummy runs (default: 1)"
    parser.add_argument("--dp", type=count, default=1, metavar="N", help=help_text)


def add_config(parser: argparse.ArgumentParser) -> None:
    """--config."""
    from ...units import settings

    help_text = "fix a setting instead of drawing it"
    parser.add_argument("--config", type=settings, action="append", default=[], metavar="K=V,...", help=help_text)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """--workload."""
    from ...units import settings

    help_text = "draw by other ratios (see: targets --workload)"
    parser.add_argument("--workload", type=settings, action="append", default=[], metavar="K=V,...", help=help_text)


def add_fixes(parser: argparse.ArgumentParser) -> None:
    """--fixes."""
    help_text = "more known bugs: a folder with known.toml, or builtin"
    parser.add_argument("--fixes", action="append", default=[], metavar="DIR", help=help_text)


def fixes_of(options: argparse.Namespace) -> Fixes:
    """Return the fixes that --fixes names, and how to start the target with them. Makes its environment if need be.

    Raises TraceError if there are none for this version.
    """
    import datetime

    from ...group.known.fixes import apply_fixes, asked_fixes

    launch, today = launch_target(options.target), datetime.date.today()
    known = asked_fixes(options.fixes, options.target, launch.version, today)
    return apply_fixes(launch, known, options.target, today)


def packaged_fixes(target: str, engine: Launch, known: Sequence[Known]) -> Fixes | None:
    """Return the known bugs by which failures are recognized, with their patches applied: those that come with
    hybridfuzz and `known` ones. None where there are none, or where no patch can be applied."""
    import datetime

    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...group.known.fixes import BUILTIN, apply_fixes, read_fixes

    try:
        builtin = read_fixes(BUILTIN, target)
        return apply_fixes(engine, (*known, *builtin), target, datetime.date.today())
    except (TraceError, TargetError):  # no packaged bugs of this target, or no tree to patch
        return None


def recognizer(options: argparse.Namespace, fixes: Fixes) -> Recognizer | None:
    """Return what recognizes failures as known bugs that come with hybridfuzz, None if there are none."""
    from functools import partial

    from ...group.known.recognition import Recognizer
    from ...workers.worker_client import WorkerClient

    packaged = packaged_fixes(options.target, fixes.unpatched, fixes.entries)
    ours = {entry.title for entry in fixes.in_effect}
    entries = [entry for entry in packaged.in_effect if entry.title not in ours] if packaged else []
    if not packaged or not entries:
        return None
    worker = partial(WorkerClient, options.target, trace_seconds=options.timeout, memory_limit=memory_limit(options))
    return Recognizer(packaged, entries, options.target, worker)


def open_worker(options: argparse.Namespace) -> WorkerClient:
    """A worker for --target, with --fixes where the command has them, not yet started."""
    from ...workers.worker_client import WorkerClient

    launch = fixes_of(options).launch if getattr(options, "fixes", ()) else launch_target(options.target)
    return WorkerClient(options.target, launch, options.timeout, memory_limit(options))


def runs_clean(options: argparse.Namespace, verb: str) -> TraceError:
    """Return the error for a trace that does not fail."""
    from ....targets.base.trace import TraceError

    fixed = " with the fixes" if getattr(options, "fixes", ()) else ""
    cure = "it may need --fixes none" if fixed else "name the target on which it fails with --target"
    return TraceError(f"{options.trace} runs clean on {options.target}{fixed}: there is nothing to {verb}; {cure}")


def memory_limit(options: argparse.Namespace, workers: int = 1) -> int:
    """Bytes for each worker: as asked for, or its share of the machine."""
    from ...workers.machine import memory_share

    return memory_share(workers) if options.memory is None else int(options.memory)


def launch_target(target: str) -> Launch:
    """Make the target's environment if need be; progress goes to standard error."""
    from ....targets.base.registry import prepare

    return prepare(target, progress_line)


def progress_line(text: str) -> None:
    """One line that is not a result."""
    print(terminal_line(text), file=sys.stderr, flush=True)


def jobs(text: str) -> int:
    """A number of processes; "auto" for one on each core."""
    from ...units import count
    from ...workers.machine import cores

    if (number := cores() if text == "auto" else count(text)) > JOBS_MAX:
        raise ArgumentTypeError(f"{number} processes are more than {JOBS_MAX}")
    return number


def print_json(value: object) -> None:
    """One line, the last on standard output."""
    print(json.dumps(value), flush=True)


def printer(json_wanted: bool) -> Callable[[str], None]:
    """Where lines for people go, one at a time: standard error if standard output belongs to JSON."""
    stream = sys.stderr if json_wanted else sys.stdout
    return lambda text: print(terminal_line(text), file=stream, flush=True)


def trace_files(paths: list[str]) -> list[Path]:
    """Files as they are, folders as all *.json below them but what campaigns keep beside them."""
    from ....targets.base.trace import TraceError
    from ...draw.trace_files import json_below

    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += [file for file in json_below(path) if not _is_kept_beside(file, path)]
        else:
            files.append(path)
    if not files:
        raise TraceError(f"no trace (*.json) in {', '.join(paths)}")
    return files


def _is_kept_beside(file: Path, root: Path) -> bool:
    """Return True if a file below `root` is what a campaign keeps beside its traces: measured lines, or the campaigns
    that it was merged from, whose traces it has."""
    from ...group.findings.finding_store import STATE_FILE
    from ...group.merge import PARTS_FOLDER
    from ...record.reached_lines import COVERAGE_FOLDER

    inside = (root / part for part in file.relative_to(root).parents if part.name in (COVERAGE_FOLDER, PARTS_FOLDER))
    return any((folder.parent / STATE_FILE).exists() for folder in inside)


def output_folder(name: str) -> Path:
    """Beside the renderer in a checkout of hybridfuzz, else in a folder of ours."""
    here = Path("harness/face/commands/fuzz.py").exists() and Path("reports").is_dir()
    return (Path("reports/out") if here else Path("hybridfuzz-out")) / re.sub(r"[^\w.@+-]+", "_", name).strip("_")
