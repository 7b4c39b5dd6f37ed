"""hybridfuzz replay: run traces from files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...targets.base.trace import Trace
    from ..lockstep import Outcome
    from ..supervisor import Worker
    from ..violation import Violation

EXAMPLES = """\
Every clean trace is run twice: both runs must look the same. Exit status 1 if any trace fails.
A trace of another engine needs --port: what a request samples stays, blocks, modes and events are what T has.
example: hybridfuzz replay reports/out/hybrid-1/findings --target hybrid:null-as-state-slot
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_ranks, add_target

    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, or folders of them")
    add_target(parser)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", metavar="T", help="a second target that must show the same")
    other.add_argument("--port", action="store_true", help="change a trace as far as the target needs, and say how")
    add_ranks(parser)
    parser.add_argument(
        "--explain",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="say why a trace fails (default: if there is one trace)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Replay; one line for each trace, and why it fails if that is wanted."""
    from ..cli import CLEAN, VIOLATION
    from ..codec import load_trace
    from ..messages import Ported
    from ..ranks import on_ranks
    from .common import open_worker, print_json, say, trace_files

    if options.against:
        from .against import replay_against

        return replay_against(options, trace_files(options.paths))
    traces = [(file, load_trace(file)) for file in trace_files(options.paths)]
    explained = len(traces) == 1 and options.dp == 1 if options.explain is None else options.explain
    line = say(options.json)
    results = []
    with open_worker(options) as worker:
        worker.start()
        for file, read in traces:
            ported = worker.port(read) if options.port else Ported(read, ())
            trace = on_ranks(ported.trace, options.dp)
            if ported.changes:
                line("\n        ".join([f"ported  {file}", *ported.changes]))
            outcome = run_twice(worker, trace, options.port)
            result = {"trace": str(file), "steps": outcome.steps, "events": len(trace.events), "signature": None}
            result |= {"changes": ported.changes} if options.port else {}
            if violation := outcome.violation:
                line(f"FAILED  {file}\n        {violation.signature}\n        {violation.message}")
                names = ("signature", "oracle", "step", "event", "message")
                result |= {name: getattr(violation, name) for name in names}
                if explained:
                    result["explanation"] = show_why(worker, trace, violation, options.json)
            else:
                line(f"clean   {file} ({outcome.steps} steps)")
            results.append(result)
    failed = sum(result["signature"] is not None for result in results)
    line(f"{len(results)} traces on {options.target}: {failed} failed, {len(results) - failed} clean")
    if options.json:
        reason = "violation" if failed else "clean"
        print_json({"exit_reason": reason, "target": options.target, "traces": len(results), "results": results})
    return VIOLATION if failed else CLEAN


def run_twice(worker: Worker, trace: Trace, ported: bool) -> Outcome:
    """Run a trace. TraceError if the target does not take it, with the cure."""
    from ...targets.base.trace import TraceError

    try:
        return worker.run(trace, twice=True)
    except TraceError as error:
        raise error if ported else TraceError(f"{error}; --port changes what it must and runs the rest") from None


def show_why(worker: Worker, trace: Trace, violation: Violation, on_stderr: bool) -> dict[str, object] | None:
    """Run the trace once more, keep the lives of its blocks, and explain; None if it does not fail again."""
    import msgspec
    from rich.console import Console

    from ..explain import explain
    from ..show import show_history

    history = worker.explain(trace)[1]
    explanation = explain(history)
    console = Console(stderr=on_stderr)
    if explanation is None or history.violation is None or history.violation.signature != violation.signature:
        console.print("it failed otherwise, or not at all, when it ran again: no explanation", style="yellow")
        return None
    show_history(history, console)
    return dict(msgspec.to_builtins(explanation))
