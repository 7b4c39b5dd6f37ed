"""hybridfuzz reduce: shrink a failing trace."""

from __future__ import annotations

import argparse

EXAMPLES = """\
The signature stays the same. OUT always holds the shortest trace so far, also
after Ctrl-C.
example: hybridfuzz reduce failing.json --target hybrid:null-as-state-slot -o small.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ...units import duration
    from .common import add_fixes, add_target

    parser.add_argument("trace", metavar="TRACE", help="a trace that fails")
    add_target(parser)
    parser.add_argument("--time", type=duration, default=60.0, metavar="TIME", help="time limit (default: 60s)")
    add_fixes(parser)
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="where the reduced trace goes")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Reduce; print a line for each improvement that drops events."""
    from ....targets.base.trace import Trace
    from ...draw.trace_files import load_trace, save_trace
    from ...exit_status import CLEAN
    from ...group.findings.finding_store import OutputError, replay_command
    from ...group.reduction.reduce import reduce_trace
    from ...judge.outcome import Outcome
    from ...units import plural
    from .common import open_worker, print_json, printer, runs_clean

    trace, line = load_trace(options.trace), printer(options.json)
    shortest = len(trace.events)

    def save(better: Trace) -> None:
        nonlocal shortest
        try:
            save_trace(better, options.out)
        except OSError as error:
            raise OutputError(f"cannot write {options.out}: {error.strerror}") from error
        if len(better.events) < shortest:
            shortest = len(better.events)
            line(plural(shortest, "event"))

    with open_worker(options) as worker:
        worker.start()
        violation = worker.run(trace, twice=True).violation
        if violation is None:
            raise runs_clean(options, "reduce")
        line(f"{violation.signature}: {plural(shortest, 'event')}")
        line(violation.message)
        twice = violation.oracle == "DETERMINISM"
        save(trace)

        def attempt(candidate: Trace) -> Outcome:
            return worker.run(candidate, twice=twice)

        reason = "reduced"
        try:
            best = reduce_trace(trace, violation.signature, attempt, seconds=options.time, on_better=save)
        except KeyboardInterrupt:
            reason, best = "interrupted", load_trace(options.out)
    again = replay_command(options.target, options.out, options.fixes)
    end = ", interrupted" if reason == "interrupted" else ""
    line(f"reduced from {len(trace.events)} to {plural(len(best.events), 'event')}{end}: {options.out}")
    line(again)
    if options.json:
        result = {"exit_reason": reason, "signature": violation.signature, "trace": options.out}
        print_json({**result, "events_before": len(trace.events), "events": len(best.events), "replay": again})
    return CLEAN
