"""`--coverage`: the modules of a target whose lines are recorded, and the report at the end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help has to come at once
    from ....targets.base.coverage_scope import Scope
    from ....targets.base.launch import Launch


def scope_and_launch(options: argparse.Namespace, launch: Launch) -> tuple[Scope, Launch]:
    """Return what counts for --target, and a launch whose worker has coverage.py.

    Raises TraceError for options that do not go with --coverage, TargetError for a target that declares no modules.
    """
    from ....targets.base.coverage_tool import with_coverage
    from ....targets.base.registry import coverage_scope
    from ....targets.base.trace import TraceError
    from .common import progress_line

    if options.cluster is not None:
        raise TraceError("--coverage: lines are not recorded on a cluster; run without --cluster")
    return coverage_scope(options.target), with_coverage(launch, progress_line)


def end_with_report(options: argparse.Namespace, out: Path, launch: Launch, status: int) -> int:
    """Write and print the report of the lines that the campaign in `out` reached.

    Returns the exit status: that of the campaign, or VACUOUS if it is clean and a module is below --fail-under.
    """
    from ....targets.base.registry import coverage_scope
    from ...exit_status import CLEAN, VACUOUS
    from ...measure.coverage.report import HTML_FOLDER, ReportError, write_report
    from ...measure.coverage.terminal import report_text
    from ...record.reached_lines import COVERAGE_FOLDER, load_lines
    from ...workers.worker_client import InternalError
    from ...workers.worker_environment import Home
    from ...workers.worker_process import variables_for
    from ..outputs.console import Terminal

    saved = load_lines(out)
    if saved is None:  # no worker was ready
        return status
    try:
        with Home() as home:
            env = variables_for(launch, home)
            report = write_report(out, saved, coverage_scope(options.target), launch.python, env)
    except ReportError as error:
        raise InternalError("the coverage report could not be written", str(error)) from None
    terminal = Terminal(stderr=options.json)
    for part in report_text(report):
        terminal.print(part, soft_wrap=True)
    terminal.print(f"coverage: {out / COVERAGE_FOLDER / HTML_FOLDER / 'index.html'}", markup=False, highlight=False)
    if options.fail_under is None or not (low := report.below(options.fail_under)):
        return status
    names = ", ".join(f"{module.module} {module.percent:.1f} %" for module in low)
    terminal.print(f"below {options.fail_under:g} %: {names}", style="yellow", markup=False, highlight=False)
    return VACUOUS if status == CLEAN else status
