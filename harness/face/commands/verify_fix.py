"""hybridfuzz verify-fix: does a patch fix a finding, and what does it break?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.launch import Launch
    from ...group.known.verification import Verification, VerifiedPart

EXAMPLES = """\
FINDING is a trace file, or the folder of a campaign with --id NAME. Its traces,
their neighbours (small edits, other continuations, new traces of the same
configuration) and a campaign run without the patch and with it. --fixed tests
another target (a checkout with the fix) instead of a patch. Other bugs of the
engine look like failures of the fix: --fixes builtin --without THIS fixes the
others on both sides. What fails with the patch is saved in -o. Other findings
of the folder are listed if traces of theirs pass or get further with the patch:
they probably have this cause.
Exit status: 0 the patch fixes it; 1 it does not, it breaks something else, or
similar traces still fail in other ways; 2 usage error.
example: hybridfuzz verify-fix finding.json --target vllm@0.33.0 --patch fix.patch
"""

WORDS = {
    "remains": "still fails",
    "broken": "fails only with the patch",
    "later": "fails in another way with the patch",
    "other": "fails with and without the patch",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ...units import count, seed
    from .common import add_fixes, add_target

    parser.add_argument("finding", type=Path, metavar="FINDING", help="a failing trace, or the folder of a campaign")
    add_target(parser)
    parser.add_argument("--id", default="", metavar="NAME", help="the finding in that folder")
    fix = parser.add_mutually_exclusive_group(required=True)
    fix.add_argument("--patch", type=Path, metavar="FILE", help="unified diff against the engine's source")
    fix.add_argument("--fixed", metavar="T", help="a target that has the fix")
    parser.add_argument("--neighbours", type=count, default=300, metavar="N", help="similar traces (default: 300)")
    parser.add_argument("--steps", type=count, default=2000, metavar="N", help="steps of the campaign (default: 2k)")
    parser.add_argument("--seed", type=seed, default=0, metavar="S", help="of neighbours and campaign (default: 0)")
    add_fixes(parser)
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="an entry of --fixes to leave out"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="folder for failing traces")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run the test, print a table and the verdict."""
    import time

    import msgspec

    from ....targets.base.trace import TraceError
    from ...draw.trace_files import load_trace
    from ...exit_status import CLEAN, VIOLATION
    from ...group.known.verification import Verifier, others_of, traces_of
    from ...units import plural, spell
    from ...workers.worker_client import WorkerClient
    from .common import memory_limit, output_folder, print_json, printer, progress_line

    line = printer(options.json)
    traces = [load_trace(path) for path in traces_of(options.finding, options.id)]
    others = {}
    for name, paths in others_of(options.finding, options.id).items():
        try:
            others[name] = [*map(load_trace, paths)]
        except TraceError as error:  # the finding under test can be tested all the same
            progress_line(f"{name} is left out: {error}")
    before, after = sides(options)
    out = options.out or output_folder(f"verify-{options.id or options.finding.stem}")
    memory, fixed = memory_limit(options, 2), options.fixed or options.target
    began = time.monotonic()
    with (
        WorkerClient(options.target, before, options.timeout, memory) as one,
        WorkerClient(fixed, after, options.timeout, memory) as other,
    ):
        one.start()
        capabilities = other.start().capabilities
        version = before.version or "as it is"
        line(f"{plural(len(traces), 'trace')} on {options.target}: {version}, then {name_of(options)}")
        verifier = Verifier(one, other, capabilities, out, progress_line)
        result = verifier.verify(
            traces, count=options.neighbours, steps=options.steps, seed=options.seed, others=others
        )
    seconds = time.monotonic() - began
    for row in table(result).split("\n"):
        line(row)
    for failure in result.failures:
        what = WORDS[failure.kind]
        line(f"{what}: {failure.signature} ({plural(failure.events, 'event')}): {failure.message}")
        line(f"  {failure.trace}")
    for also in result.silenced:
        line(
            f"passes or gets further with it: {also.finding}, {also.silent} of {plural(also.failing, 'failing trace')}"
        )
    line(f"{name_of(options)}: {result.verdict} ({spell(seconds)})")
    if options.json:
        print_json({"exit_reason": result.verdict, "seconds": round(seconds, 1), **msgspec.to_builtins(result)})
    return CLEAN if result.fixes else VIOLATION


def name_of(options: argparse.Namespace) -> str:
    """Return how the fix is called in the output."""
    return str(options.fixed or options.patch.name)


def sides(options: argparse.Namespace) -> tuple[Launch, Launch]:
    """Return how to start the target without the fix and with it, both with the patches of --fixes.

    Raises PatchError, TargetError or TraceError if that is impossible.
    """
    import datetime

    from ....targets.base.patched_copy import patched
    from ....targets.base.trace import TraceError
    from ...group.known.fixes import asked_fixes
    from ...group.known.known_toml import fitting, patch_from
    from ...suggestions import did_you_mean
    from .common import launch_target, progress_line

    launch, today = launch_target(options.target), datetime.date.today()
    known = asked_fixes(options.fixes, options.target, launch.version, today)
    entries = fitting(known, options.target, launch.version, today)
    titles = [entry.title for entry in entries]
    if unknown := [name for name in options.without if name not in titles]:
        hint = did_you_mean(unknown[0], titles)
        there = ", ".join(titles) or "none"
        raise TraceError(f"--without {unknown[0]}: --fixes has no such entry{hint}; it has: {there}")
    others = [entry.read_patch() for entry in entries if entry.patch and entry.title not in options.without]
    if others:
        progress_line(f"fixed on both sides: {', '.join(patch.name for patch in others)}")
    before = patched(launch, others)
    if options.fixed:
        return before, patched(launch_target(options.fixed), others)
    return before, patched(launch, [*others, patch_from(options.patch, options.patch.stem)])


def table(result: Verification) -> str:
    """Return the table: one row for each part and signature, with the failing traces without and with the patch."""
    lines = [f"{'':24} {'signature':36} {'traces':>7} {'without':>8} {'with':>8}"]
    for row in result.rows:
        lines += rows_of(row, result.signatures)
    return "\n".join(lines)


def rows_of(row: VerifiedPart, wanted: tuple[str, ...]) -> list[str]:
    """Return the lines of one part, the finding's signatures first. A campaign has no numbers without the patch."""
    signatures = [*wanted, *(sorted({*row.before, *row.after} - {*wanted}))]
    lines = []
    for signature in signatures:
        first = signature == signatures[0]
        name, traces = (row.name, str(row.traces)) if first else ("", "")
        without = "not run" if row.name == "campaign" else str(row.before.get(signature, 0))
        lines.append(f"{name:24} {signature:36} {traces:>7} {without:>8} {row.after.get(signature, 0):>8}")
    if later := row.kinds.get("later", 0):
        lines.append(f"{'':24} {later} of the failures with the patch come later in the trace than those without it")
    return lines
