"""hybridfuzz replay: run traces from files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.trace import Trace
    from ...judge.violation import Violation
    from ...workers.worker_client import WorkerClient

EXAMPLES = """\
Every clean trace is run twice: both runs must give the same result. Files
that are not traces are reported and skipped. A trace of another engine needs
--port: sampled tokens stay; blocks, modes and events become those of T.
Exit status: 0 all clean, 1 a trace fails, 2 no trace fails, but a file or
trace is refused.
example: hybridfuzz replay hybridfuzz-out/hybrid-1/findings --target hybrid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import AGAINST_HELP, add_fixes, add_ranks, add_target

    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, or folders of them")
    add_target(parser)
    add_ranks(parser)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", metavar="T", help=AGAINST_HELP)
    other.add_argument(
        "--port", action="store_true", help="change a trace as far as the target needs, and list the changes"
    )
    parser.add_argument(
        "--explain",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="explain failures (default: only if there is one trace)",
    )
    add_fixes(parser)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Replay every readable trace; print one line for each file, and an explanation if wanted."""
    from ...exit_status import CLEAN, USAGE, VIOLATION
    from ...units import plural
    from .common import open_worker, print_json, printer, trace_files
    from .reading import read_all, unread

    line, files = printer(options.json), trace_files(options.paths)
    if options.against:
        from .against import replay_against

        return replay_against(options, files)
    read = read_all(files, line)
    results: list[dict[str, object]] = []
    if not all(isinstance(trace, str) for trace in read.values()):
        with open_worker(options) as worker:
            worker.start()
            for file, trace in read.items():
                if isinstance(trace, str):
                    results.append(unread(file, trace))
                else:
                    results.append(replayed(worker, file, trace, options, alone=len(read) == 1))
    else:
        results = [unread(file, str(reason)) for file, reason in read.items()]
    failed = sum(result["signature"] is not None for result in results)
    refused = sum("refused" in result for result in results)
    counts = f"{failed} failed, {len(results) - failed - refused} clean" + (f", {refused} refused" if refused else "")
    line(f"{plural(len(results), 'trace')} on {options.target}: {counts}")
    if options.json:
        reason = "violation" if failed else "refused" if refused else "clean"
        print_json({"exit_reason": reason, "target": options.target, "traces": len(results), "results": results})
    return VIOLATION if failed else USAGE if refused else CLEAN


def replayed(
    worker: WorkerClient, file: Path, read: Trace, options: argparse.Namespace, *, alone: bool
) -> dict[str, object]:
    """Run one trace, print its result and return it. Raises TraceError or TargetError if the only one is refused."""
    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...judge.engines import RefusedError
    from ...judge.ranks import on_ranks
    from ...units import plural
    from ...workers.messages import Ported
    from .common import printer
    from .reading import unread

    line = printer(options.json)
    try:
        ported = worker.port(read) if options.port else Ported(read, ())
        trace = on_ranks(ported.trace, options.dp)
        if ported.changes:
            line(f"ported  {file}")
            for change in ported.changes:
                line(f"        {change}")
        outcome = worker.run(trace, twice=True)
    except (TraceError, TargetError) as error:  # of the latter, one that does not start again after a crash
        portable = not options.port and not isinstance(error, RefusedError | TargetError)
        cure = "; --port changes what it must and runs the rest" if portable else ""
        if alone:
            raise TraceError(f"{file}: {error}{cure}") from None
        line(f"refused {file}: {error}{cure}")
        return unread(file, str(error))
    result: dict[str, object] = {"trace": str(file), "steps": outcome.steps, "events": len(trace.events)}
    result |= {"signature": None} | ({"changes": ported.changes} if options.port else {})
    violation = outcome.violation
    if violation is None:
        line(f"clean   {file} ({plural(outcome.steps, 'step')})")
        return result
    for text in (f"FAILED  {file}", f"        {violation.signature}", f"        {violation.message}"):
        line(text)
    result |= {name: getattr(violation, name) for name in ("signature", "oracle", "step", "event", "message")}
    if alone if options.explain is None else options.explain:
        result["explanation"] = show_why(worker, trace, violation, options.json)
    return result


def show_why(worker: WorkerClient, trace: Trace, violation: Violation, on_stderr: bool) -> dict[str, object] | None:
    """Run the trace again, record its blocks and print an explanation. Return None if it does not fail again, or cannot
    run again."""
    import msgspec

    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...tell.explain import explain
    from ...tell.terminal import show_history
    from ..outputs.console import Terminal

    console = Terminal(stderr=on_stderr)
    try:
        history = worker.explain(trace)[1]
    except (TargetError, TraceError) as error:  # it does not start again after a crash
        console.print(f"no explanation: {error}", style="yellow", markup=False, highlight=False, soft_wrap=True)
        return None
    explanation = explain(history)
    if explanation is None or history.violation is None or history.violation.signature != violation.signature:
        console.print("no explanation: the failure did not show when the trace ran again", style="yellow")
        return None
    show_history(history, console)
    return dict(msgspec.to_builtins(explanation))
