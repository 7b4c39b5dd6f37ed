"""hybridfuzz repro: write a script and a bug report for a failing trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.deployment import Deployment
    from ....targets.base.launch import Launch
    from ....targets.base.repro import Script
    from ....targets.base.trace import Trace
    from ...group.evidence import Place
    from ...judge.violation import Violation
    from ...record.history import History
    from ...tell.bug_report import OtherRun, ReproCase, TriedFix
    from ...tell.related import RelatedEntry
    from ...tell.script import ScriptVerdict
    from ...workers.client import WorkerClient

EXAMPLES = """\
DIR gets repro.py (needs only the target's own package), test_repro.py,
REPORT.md, timeline.svg and trace.json. Options that the failure does not
need are reset to their usual values, and the default implementation is used if
it fails as well. The script is run once as a check. With a patch (--patch, or
that of the known bug which lists the trace) it is run again with the patch,
and DIR gets fix.patch.
Exit status: 0 the script fails as promised; 2 usage, the trace is clean, or
no script can show its failure (DIR then has the rest); 4 a script was written
and does not fail as promised.
example: hybridfuzz repro failing.json --target vllm@0.33.0 -o repro
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    parser.add_argument("trace", type=Path, metavar="TRACE", help="a trace that fails; reduce it first")
    add_target(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--kind", choices=("target", "engine"), default="target",
        help="engine: a script of the engine's public API for a GPU, with a tiny real model; it is not run here",
    )  # fmt: skip
    parser.add_argument("--patch", type=Path, metavar="FILE", help="a fix, to be tested and put into REPORT.md")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run the trace, write the script, run it, write the rest."""
    from msgspec import structs

    from ...draw.files import load_trace
    from ...exit_status import CLEAN, INTERNAL, USAGE
    from ...group.store import OutputError
    from ...tell.repro_folder import write_folder
    from ...tell.usual_options import changes
    from .common import launch_target, print_json, printer

    trace, line, folder = load_trace(options.trace), printer(options.json), options.out
    if options.kind == "engine":
        return witness(options.target, trace, folder, line)
    launch = launch_target(options.target)
    case = observed(options, trace, launch)
    violation = case.violation
    if changed := changes(trace, case.trace):
        line(f"the failure does not need other values than {', '.join(changed)}: the report has these")
    line(violation.signature)
    line(violation.message)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        script, verdict = tried(folder, options.target, launch, (case.trace, case.history, violation), line)
        case = structs.replace(case, script=script, verdict=verdict)
        case = structs.replace(case, fix=tested_fix(options, folder, launch, case))
        write_folder(folder, case)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; choose another with -o") from error
    good = verdict is not None and verdict.promised
    if good and verdict:
        line(f"repro.py fails as promised ({verdict.seconds:.1f} s)")
    elif verdict:
        line(
            f"repro.py does NOT fail as promised (exit status {verdict.status}): REPORT.md says so, too\n{verdict.tail}"
        )
    if case.fix:
        results = [case.fix.result] + ([f"repro.py: exit status {case.fix.script.status}"] if case.fix.script else [])
        line(f"with the patch: {', '.join(results)}")
    line(f"wrote {folder}")
    if options.json:
        seconds = round(verdict.seconds, 1) if verdict else None
        lines = script.text.count("\n") if script else None
        reason = "promised" if good else "not-promised" if verdict else "no-script"
        result = {"exit_reason": reason, "signature": violation.signature, "folder": str(folder)}
        print_json({**result, "lines": lines, "seconds": seconds})
    return CLEAN if good else INTERNAL if verdict else USAGE


def witness(spec: str, trace: Trace, folder: Path, line: Callable[[str], None]) -> int:
    """Write witness.py, which serves the trace's requests on a real engine. TargetError if there is none."""
    from ....targets.base.registry import confirmation
    from ...draw.files import write_atomically
    from ...exit_status import CLEAN
    from ...group.store import OutputError

    text = confirmation(spec).witness(trace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "witness.py", text.encode())
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; choose another with -o") from error
    line(f"wrote {folder / 'witness.py'}: not run; it needs the engine and a GPU, and exits with 1 where the defect is")
    return CLEAN


def observed(options: argparse.Namespace, trace: Trace, launch: Launch) -> ReproCase:
    """Return the content of the report without a script. Raises TraceError for a trace that does not fail."""
    from ....targets.base.registry import describe
    from ...group.same_failure import UNEXPLAINED
    from ...judge.oracles.real_model import FIELDS
    from ...record.answers import Answers
    from ...tell.bug_report import ReproCase
    from ...tell.related import related
    from ...tell.usual_options import plainest
    from ...tell.versions import system, versions_of
    from .common import open_worker, runs_clean

    def unusual(one: Trace) -> int:
        """Count what chooses other code than a server runs by default: flags, and another implementation."""
        server, chosen = describe(options.target, one, launch.version), one.config.options
        other = [name for each in server.implementations if each.default
                 for name, value in each.options.items() if chosen.get(name, value) != value]  # fmt: skip
        return len(server.unusual) + len(other)

    given = trace
    with open_worker(options) as worker:
        capabilities = worker.start().capabilities
        history = worker.explain(trace)[1]
        violation = history.violation
        if violation is None:
            raise runs_clean(options, "reproduce")
        if violation.oracle not in UNEXPLAINED:
            plain = plainest(trace, violation.signature, worker.run, capabilities, unusual)
            again = worker.explain(plain)[1] if plain != trace else history
            if again.violation:
                trace, history, violation = plain, again, again.violation
        deployment = describe(options.target, trace, launch.version)
        # Tokens of the stand-in layers prove nothing where only the real model's numbers are wrong.
        answers = Answers() if violation.field in FIELDS else worker.serve(trace, violation.request)
        runs = list(implementations(worker, trace, deployment))
    versions = versions_of(launch, deployment.packages)
    return ReproCase(
        options.target, launch, deployment, trace, history, violation, answers, runs, versions, system(),
        places=places(options.trace),
        related=related(options.target, launch.version, given, violation.signature),
    )  # fmt: skip


def implementations(worker: WorkerClient, trace: Trace, deployment: Deployment) -> Iterator[OtherRun]:
    """Yield the result of the trace on each implementation that the engine has."""
    from msgspec import structs

    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...tell.bug_report import OtherRun

    for one in deployment.implementations:
        options = {**trace.config.options, **one.options}
        chosen = structs.replace(trace.config, options=options)
        current = all(trace.config.options.get(name) == value for name, value in one.options.items())
        try:
            violation = worker.run(structs.replace(trace, config=chosen)).violation
            result = f"fails ({violation.signature})" if violation else "passes"
        except (TargetError, TraceError) as error:
            result = f"not applicable: {error}"
        yield OtherRun(one.title, one.default, current, result)


def tested_fix(options: argparse.Namespace, folder: Path, launch: Launch, case: ReproCase) -> TriedFix | None:
    """Run the script and the trace with a patch; None without one. Raises PatchError for one that does not fit."""
    from ....targets.base.overlay import patched
    from ....targets.base.patches import parse_patch
    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...tell.bug_report import TriedFix
    from ...tell.script import run_script
    from ...workers.client import WorkerClient
    from .common import memory_limit

    text, source = chosen_patch(options.patch, case.related)
    if not text:
        return None
    fixed = patched(launch, [parse_patch(text, "fix")])
    with WorkerClient(options.target, fixed, options.timeout, memory_limit(options, 1)) as worker:
        worker.start()
        try:
            violation = worker.run(case.trace).violation
            result = f"fails ({violation.signature})" if violation else "passes"
        except (TargetError, TraceError) as error:
            result = f"not applicable: {error}"
    verdict = run_script(folder / "repro.py", case.script, fixed) if case.script else None
    return TriedFix(text, source, result, verdict)


def chosen_patch(given: Path | None, entries: Sequence[RelatedEntry]) -> tuple[str, str]:
    """Return a patch and its source in words: the one given, or that of the entry that lists the trace; else "", ""."""
    from ....targets.base.patches import PATCH_BYTES_MAX
    from ...draw.files import read_regular

    if given:
        return read_regular(given, PATCH_BYTES_MAX, "a patch").decode("utf-8", "replace"), "a patch for this failure"
    packaged = next((entry for entry in entries if entry.patch), None)
    return (packaged.patch, f"the patch packaged with hybridfuzz for {packaged.name}") if packaged else ("", "")


def places(trace: Path) -> Sequence[Place]:
    """Return the suspicious functions that a campaign stored beside a finding's trace, () if there are none."""
    from ....targets.base.trace import TraceError
    from ...group.store import load_evidence
    from .common import progress_line

    try:
        found = load_evidence(trace)
    except TraceError as error:  # the trace is enough
        progress_line(f"warning: {error}")
        return ()
    return found.places if found else ()


def tried(
    folder: Path,
    spec: str,
    launch: Launch,
    case: tuple[Trace, History, Violation],
    line: Callable[[str], None],
) -> tuple[Script | None, ScriptVerdict | None]:
    """Run scripts. Return the first that fails as it promises, else the last; (None, None) if there is none."""
    from ....targets.base.protocol import TargetError
    from ....targets.base.registry import write_scripts
    from ...draw.files import write_atomically
    from ...judge.ranks import ranks_of
    from ...tell.script import failure_of, run_script

    trace, _, _ = case
    try:
        if ranks_of(trace.config) > 1:
            raise TargetError("the failure needs several ranks, and a script runs one engine")
        scripts = write_scripts(spec, trace, failure_of(*case))
    except TargetError as error:
        line(f"no stand-alone script: {error}")
        return None, None
    script, verdict = None, None
    for script in scripts:
        write_atomically(folder / "repro.py", script.text.encode())
        verdict = run_script(folder / "repro.py", script, launch)
        if verdict.promised:
            break
    return script, verdict
