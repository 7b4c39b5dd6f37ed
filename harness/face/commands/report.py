"""hybridfuzz report: one page of HTML for a campaign, a matrix of mutants or one finding."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

EXAMPLES = """\
The page is one file without scripts or external resources. `hybridfuzz fuzz`
writes one beside its findings. A trace is run on --target: once to record what
happens to its blocks, and some 20 times to find out how much it matters.
example: hybridfuzz report hybridfuzz-out/hybrid-1 -o report.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    parser.add_argument("path", type=Path, metavar="PATH", help="output folder of `fuzz` or `mutants`, or a trace")
    add_target(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the page (default: report.html in the folder)")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Load, render, write."""
    from ...exit_status import CLEAN
    from ...group.findings.finding_store import OutputError
    from .common import ours, print_json, printer

    folder: Path = options.path if options.path.is_dir() else options.path.parent
    data = ours("reports.data").load_folder(folder) if options.path.is_dir() else run_trace(options)
    page = options.out or folder / "report.html"
    try:
        ours("reports.page").write_report(data, page)
    except OSError as error:
        raise OutputError(f"cannot write {page}: {error.strerror}; choose another with -o") from error
    printer(options.json)(f"report: {page} ({page.stat().st_size / 1000:,.0f} kB)")
    if options.json:
        print_json({"exit_reason": "written", "report": str(page), "findings": len(data.findings)})
    return CLEAN


def run_trace(options: argparse.Namespace) -> Any:
    """Run one trace, record its history, and find out how much its failure matters."""
    from ...draw.trace_files import load_trace
    from ...group.findings.measured_reach import severity_on
    from ...group.findings.severity import severity_words
    from .common import open_worker, ours, printer

    trace, severity = load_trace(options.path), None
    with open_worker(options) as worker:
        capabilities = worker.start().capabilities
        history = worker.explain(trace)[1]
        if history.violation:
            version = worker.launch.version
            severity = severity_on(options.target, version, trace, history.violation, worker, capabilities)
            printer(options.json)(severity_words(severity))
    return ours("reports.data").one_finding(options.path, trace, options.target, history, severity)
