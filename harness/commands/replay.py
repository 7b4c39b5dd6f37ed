"""hybridfuzz replay: run traces from files."""

from __future__ import annotations

import argparse

EXAMPLES = """\
Every clean trace is run twice: both runs must look the same. Exit status 1 if any trace fails.
example: hybridfuzz replay reports/out/hybrid-1/findings --target hybrid:null-as-state-slot
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    parser.add_argument("paths", nargs="+", metavar="PATH", help="trace files, or folders of them")
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Replay; one line for each trace."""
    from ..cli import CLEAN, VIOLATION
    from ..codec import load_trace
    from .common import open_worker, print_json, say, trace_files

    traces = [(file, load_trace(file)) for file in trace_files(options.paths)]
    line = say(options.json)
    results = []
    with open_worker(options) as worker:
        worker.start()
        for file, trace in traces:
            outcome = worker.run(trace, twice=True)
            violation = outcome.violation
            result = {
                "trace": str(file),
                "steps": outcome.steps,
                "events": len(trace.events),
                "signature": None,
            }
            if violation:
                line(f"FAILED  {file}\n        {violation.signature}\n        {violation.message}")
                result |= {
                    "signature": violation.signature,
                    "oracle": violation.oracle,
                    "step": violation.step,
                    "event": violation.event,
                    "message": violation.message,
                }
            else:
                line(f"clean   {file} ({outcome.steps} steps)")
            results.append(result)
    failed = sum(result["signature"] is not None for result in results)
    line(f"{len(results)} traces on {options.target}: {failed} failed, {len(results) - failed} clean")
    if options.json:
        reason = "violation" if failed else "clean"
        print_json(
            {
                "exit_reason": reason,
                "target": options.target,
                "traces": len(results),
                "results": results,
            }
        )
    return VIOLATION if failed else CLEAN
