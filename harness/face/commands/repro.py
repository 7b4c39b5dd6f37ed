"""hybridfuzz repro: write a script and a bug report for a failing trace."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ....targets.base.launch import Launch
    from ....targets.base.trace import Trace
    from ...campaign_summary import Finding
    from ...group.causes.evidence import Place
    from ...group.known.fixes import Fixes
    from ...tell.bug_report import ReproCase
    from ...tell.related import RelatedEntry
    from ...tell.reproduce import Subject

EXAMPLES = """\
DIR gets repro.py (needs only the target's package), test_repro.py, REPORT.md,
timeline.svg, trace.json, a test of vLLM's scheduler if that alone shows it.
Of a campaign's folder each finding gets a folder; those of one cause share a
report. A known bug is reported with its packaged trace (else: --own-trace).
An unreduced finding is reduced. Options that are not needed get usual values.
The script is run, and with a patch (--patch, or the known bug's) again.
A finding with fixes takes the same --fixes: DIR/fixes gets those it needs.
Exit status: 0 the script fails as promised; 2 usage, the trace is clean, or
no script can show its failure; 4 a script does not fail as promised.
example: hybridfuzz repro failing.json --target vllm@0.33.0 -o repro
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ...units import duration
    from .common import add_fixes, add_target

    parser.add_argument("trace", type=Path, metavar="TRACE", help="a trace that fails, or a campaign's folder")
    add_target(parser)
    parser.add_argument(
        "--kind", choices=("target", "pytest", "engine"), default="target",
        help="pytest: also a test in the style and place of the engine's own, if there is none of its scheduler; "
        "engine: a script of the engine's public API for a GPU, with a tiny real model; it is not run here",
    )  # fmt: skip
    parser.add_argument("--patch", type=Path, metavar="FILE", help="a fix, to be tested and put into REPORT.md")
    parser.add_argument(
        "--reduce", type=duration, default=60.0, metavar="TIME",
        help="time limit for reducing a finding that its campaign did not reduce (default: 60s)",
    )  # fmt: skip
    parser.add_argument("--own-trace", action="store_true", help="report the given trace, not that of the known bug")
    add_fixes(parser)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run each trace, write its script and run it, and write the rest."""
    from msgspec import structs

    from ...draw.trace_files import load_trace
    from ...exit_status import CLEAN, INTERNAL, USAGE
    from ...tell.bug_report import shown_as
    from .common import fixes_of, print_json, printer, runs_clean

    line = printer(options.json)
    if options.kind == "engine":
        return witness(options.target, load_trace(options.trace), options.out, line)
    several = options.trace.is_dir()
    found = findings_in(options.trace) if several else {options.trace: finding_of(options.trace)}
    fixes, made = fixes_of(options), list[Reproduced]()
    for file, finding in found.items():
        place = options.out / file.stem if several else None
        if one := reproduced(options, fixes, file, finding, place, reported(made)):
            made.append(one)
    if not made:
        raise runs_clean(options, "reproduce")
    told, named, names = [], list[Reproduced](), known_bugs(options, fixes, [one.case for one in made])
    for one, name in zip(made, names, strict=True):
        named.append(with_known_bug(options, one, name, reported([*made, *named])))
    for defect in by_cause(named):
        first, *others = defect
        first = first._replace(case=structs.replace(first.case, shown_as=shown_as([one.case for one in defect])))
        for one in (first, *others):
            if several:
                line(f"{one.file.name}:")
            told.append(written(options, one, first if one in others else None, line))
    reasons = [one["exit_reason"] for one in told]
    if options.json:
        print_json({"reports": told} if several else told[0])
    return INTERNAL if "not-promised" in reasons else USAGE if "no-script" in reasons else CLEAN


class Reproduced(NamedTuple):
    """A failing trace, what was found out about it, why it has no script ("" if it has one), and its folder. `known` is
    the known bug that a comparison recognized in it, "" for none; `given`: the trace that was given, if this one is
    that of the known bug instead."""

    file: Path
    trace: Trace
    subject: Subject
    case: ReproCase
    why: str
    folder: Path
    known: str = ""
    given: Trace | None = None


def reported(made: Sequence[Reproduced]) -> set[str]:
    """Return the known bugs whose packaged trace has a report: further findings of one keep their own traces."""
    return {one.subject.known for one in made if one.given}


def findings_in(folder: Path) -> dict[Path, Finding | None]:
    """Return trace -> finding for those of a campaign, those that matter most first."""
    from ....targets.base.trace import TraceError
    from ...group.findings.finding_store import FINDINGS_FOLDER, read_state
    from ...group.findings.severity import ranked

    state = read_state(folder)
    if not state or not state.findings:
        raise TraceError(f"{folder} is no campaign's folder with findings: name one, or a trace")
    return {folder / FINDINGS_FOLDER / Path(one.trace).name: one for one in ranked(state.findings)}


def reproduced(
    options: argparse.Namespace,
    fixes: Fixes,
    file: Path,
    finding: Finding | None,
    place: Path | None,
    but: Collection[str] = (),
) -> Reproduced | None:
    """Return a failing trace with its script, which was run, None if it runs clean. `finding` is that of the trace, if
    it is one; `place`: one folder of several; `but`: known bugs that have a report."""
    from msgspec import structs

    from ...draw.trace_files import load_trace
    from ...tell.repro_folder import write_folder
    from ...tell.reproduce import reproduce, unwritable
    from .common import progress_line

    if place:
        progress_line(f"{file.name}: running it, and its script")
    trace, folder = load_trace(file), place or options.out
    subject = subject_of(options, fixes, trace)
    if subject and finding and finding.cause:
        subject = structs.replace(subject, known=finding.cause.name)
        if one := by_packaged_trace(options, file, trace, subject, finding.signature, folder, but):
            return one
    if subject and finding and finding.reproduced and not finding.reduced:
        trace = reduced(subject, trace, options.reduce)
    case, why = reproduce(subject, trace, folder, places(file)) if subject else (None, "")
    if subject is None or case is None:
        if place:
            progress_line(f"{file.name} runs clean: it gets no report")
        return None
    try:
        write_folder(folder, case)  # and again with what the comparison with known bugs adds, which takes minutes
    except OSError as error:
        raise unwritable(folder, error) from error
    return Reproduced(file, trace, subject, case, why, folder)


def by_packaged_trace(
    options: argparse.Namespace,
    file: Path,
    given: Trace,
    subject: Subject,
    signature: str,
    folder: Path,
    but: Collection[str] = (),
) -> Reproduced | None:
    """Return the packaged trace of the known bug that a failure is, with its script: a text and the trace that it is
    about belong together, and a trace that a campaign met may show something else of the same bug first.

    None where that trace does not fail here as it should, where the given one is packaged itself, where a fix was
    named, and for a known bug in `but`: then the report is about the given trace.
    """
    from ...tell.related import packaged_trace, related
    from ...tell.repro_folder import write_folder
    from ...tell.reproduce import reproduce, unwritable

    version = subject.launch.version
    keeps_given = options.own_trace or options.patch or options.fixes or subject.known in but
    if keeps_given or related(options.target, version, given):
        return None
    trace = packaged_trace(options.target, version, subject.known, signature)
    case, why = reproduce(subject, trace, folder) if trace else (None, "")
    if trace is None or case is None or not (case.verdict and case.verdict.promised):
        return None
    try:
        write_folder(folder, case, given=given)
    except OSError as error:
        raise unwritable(folder, error) from error
    return Reproduced(file, trace, subject, case, why, folder, given=given)


def with_known_bug(
    options: argparse.Namespace, one: Reproduced, name: str | None, but: Collection[str] = ()
) -> Reproduced:
    """Return a failing trace with the known bug `name` that a comparison recognized in it, "" if no single one accounts
    for it; unchanged for None. `but`: known bugs that have a report."""
    from msgspec import structs

    from ...draw.trace_files import write_atomically
    from ...tell.related import related
    from ...tell.reproduce import SCRIPT

    if name is None:
        return one
    if not name:
        return one._replace(case=structs.replace(one.case, is_explained=True))
    subject = structs.replace(one.subject, known=name)
    signature = one.case.violation.signature
    if packaged := by_packaged_trace(options, one.file, one.trace, subject, signature, one.folder, but):
        return packaged._replace(known=name)
    (one.folder / SCRIPT).unlink(missing_ok=True)  # of a packaged trace that does not fail as it should
    if one.case.script:
        write_atomically(one.folder / SCRIPT, one.case.script.text.encode())
    entry = related(options.target, one.case.launch.version, one.trace, name)
    return one._replace(case=structs.replace(one.case, related=entry), known=name)


def by_cause(made: Sequence[Reproduced]) -> list[list[Reproduced]]:
    """Return the failures of each cause, those first that matter most; the first of a cause has a script that fails as
    promised, if one has. A failure of which no cause is known stands alone."""
    found: dict[str, list[Reproduced]] = {}
    for one in made:
        entry = one.case.related
        cause = entry.cause.heading if entry and entry.cause else entry.name if entry else str(one.folder)
        found.setdefault(cause, []).append(one)
    return [sorted(defect, key=lambda one: not (one.case.verdict and one.case.verdict.promised))
            for defect in found.values()]  # fmt: skip


def written(
    options: argparse.Namespace, one: Reproduced, shared: Reproduced | None, line: Callable[[str], None]
) -> Mapping[str, object]:
    """Write the folder of a failure, and return its part of the result. `shared` is the failure that has the report
    of the same cause, None if this one has it."""
    from msgspec import structs

    from ...group.findings.severity import severity_words
    from ...tell.repro_folder import GIVEN, REPORT, write_folder
    from ...tell.reproduce import try_fix, unwritable, write_engine_test, write_unit_test
    from ...tell.usual_options import changes
    from ...units import plural

    trace, subject, case, why, folder = one.trace, one.subject, one.case, one.why, one.folder
    if one.known:
        line(f"known bug {one.known}: the failure disappears with all packaged fixes, and comes back without this one")
    if case.is_explained:
        line("the failure disappears with all packaged fixes, but no single known bug accounts for it")
    violation, script, verdict, test, tested, mended = case.violation, case.script, case.verdict, None, None, None
    if one.given:
        line(f"the report is about the packaged trace of {subject.known}; yours is {GIVEN} (--own-trace reports it)")
    if changed := changes(trace, case.trace):
        line(f"the failure does not need other values than {', '.join(changed)}: the report has these")
    if len(case.trace.events) < len(trace.events):
        line(f"nor does it need more than {plural(len(case.trace.events), 'event')} of {len(trace.events)}")
    line(violation.signature)
    line(violation.message)
    if case.severity:
        line(severity_words(case.severity))
    if why:
        line(f"no stand-alone script: {why}")
    try:
        patch, source = chosen_patch(options.patch, case.related)
        if script and verdict and verdict.promised:
            unit = write_unit_test(subject, folder, case, script, patch)
            test, tested, mended = unit or (None, None, None)
        if options.kind == "pytest" and script and not test:
            test, tested = write_engine_test(folder, case, script)
        case = structs.replace(case, test=test, tested=tested)
        fix = try_fix(subject, folder, case, patch, source, mended) if patch else None
        case = structs.replace(case, fix=fix)
        write_folder(folder, case, has_report=shared is None, given=one.given)
    except OSError as error:
        raise unwritable(folder, error) from error
    good = verdict is not None and verdict.promised
    if good and verdict:
        line(f"repro.py fails as promised ({verdict.seconds:.1f} s); to run it again:")
        line(f"  {again(case.launch, folder / 'repro.py')}")
    elif verdict:
        why = f"it meets another defect, {verdict.elsewhere}" if verdict.elsewhere else f"exit status {verdict.status}"
        line(f"repro.py does NOT fail as promised ({why}): REPORT.md says so, too")
        for row in verdict.tail.splitlines():
            line(row)
    if test and tested:
        part = f" (of the {test.part} alone)" if test.part else ""
        line(f"{test.path}{part} {'fails as promised' if tested.promised else 'does NOT fail as promised'}")
        for row in [] if tested.promised else tested.tail.splitlines():
            line(row)
        good = good and tested.promised
    if case.fix:
        ran = {"repro.py": case.fix.script, "the test": case.fix.test}
        results = [case.fix.result, *(f"{name}: exit status {one.status}" for name, one in ran.items() if one)]
        line(f"with the patch: {', '.join(results)}")
    line(f"wrote {folder}")
    if shared:
        line(f"the same defect as {shared.folder / REPORT}: it has no report of its own")
    seconds, lines = round(verdict.seconds, 1) if verdict else None, script.text.count("\n") if script else None
    reason = "promised" if good else "not-promised" if verdict else "no-script"
    result = {"exit_reason": reason, "signature": violation.signature, "folder": str(folder)}
    result |= {"reported_in": str(shared.folder)} if shared else {}
    return {**result, "lines": lines, "seconds": seconds}


def subject_of(options: argparse.Namespace, fixes: Fixes, trace: Trace) -> Subject | None:
    """Return the target with those of --fixes that a failure needs, None for a trace that does not fail with them."""
    from ...group.known.needed_fixes import needed_fixes
    from ...tell.reproduce import Subject
    from ...units import plural
    from .common import memory_limit, progress_line

    memory = memory_limit(options)
    subject = Subject(options.target, fixes.launch, options.timeout, memory)
    if not options.fixes:
        return subject
    progress_line(f"looking for which of {plural(len(fixes.in_effect), 'fix')} the failure needs")
    found = needed_fixes(fixes, trace, subject.worker)
    if found is None:
        return None
    needed, launch = found
    names = ", ".join(entry.title for entry in needed)
    progress_line(f"it needs {names}" if needed else "it needs none: the report is about the engine without them")
    return Subject(options.target, launch, options.timeout, memory, needed)


def known_bugs(options: argparse.Namespace, fixes: Fixes, cases: Sequence[ReproCase]) -> list[str | None]:
    """Return the packaged known bug that each failure of the engine as it is shows, as a campaign recognizes it.

    "" if no single one accounts for a failure; None if none does, and if a report has it already. The engines that this
    takes are started once for all of them.
    """
    from ...group.known.recognize_many import Naming
    from .common import progress_line, recognizer

    names: list[str | None] = [None] * len(cases)
    asked = [] if options.fixes else [number for number, case in enumerate(cases) if not case.related]
    if not asked:
        return names
    progress_line("comparing with the known bugs")
    naming = Naming(lambda: recognizer(options, fixes))
    causes = naming.names([(cases[number].trace, cases[number].violation) for number in asked])
    for number, cause in zip(asked, causes, strict=False):  # none without known bugs
        names[number] = cause.name if cause else None
    return names


def finding_of(file: Path) -> Finding | None:
    """Return the finding whose trace a file in a campaign's folder is."""
    from ....targets.base.trace import TraceError
    from ...group.findings.finding_store import FINDINGS_FOLDER, read_state

    if file.absolute().parent.name != FINDINGS_FOLDER:
        return None
    try:
        state = read_state(file.absolute().parents[1])
    except TraceError:  # the trace is enough
        return None
    return next((one for one in state.findings if Path(one.trace).name == file.name), None) if state else None


def reduced(subject: Subject, trace: Trace, seconds: float) -> Trace:
    """Return the shortest trace found in a time limit in seconds that fails like this one."""
    from ...group.reduction.reduce import reduce_trace
    from ...units import plural
    from .common import progress_line

    with subject.worker() as worker:
        worker.start()
        violation = worker.run(trace).violation
        if violation is None:
            return trace
        progress_line(f"its campaign did not reduce it: that is done now, for {seconds:g} s at most")
        best = reduce_trace(trace, violation.signature, worker.run, seconds=seconds)
    progress_line(f"reduced from {len(trace.events)} to {plural(len(best.events), 'event')}")
    return best


def again(launch: Launch, script: Path) -> str:
    """Return the command that runs a script with the environment that is here already."""
    path = [f"PYTHONPATH={shlex.quote(launch.tree)}"] if launch.tree else []
    return " ".join([*path, shlex.quote(launch.python), shlex.quote(str(script))])


def witness(spec: str, trace: Trace, folder: Path, line: Callable[[str], None]) -> int:
    """Write witness.py, which serves the trace's requests on a real engine. TargetError if there is none."""
    from ....targets.base.registry import confirmation
    from ...draw.trace_files import write_atomically
    from ...exit_status import CLEAN
    from ...tell.reproduce import unwritable

    text = confirmation(spec).witness(trace)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "witness.py", text.encode())
    except OSError as error:
        raise unwritable(folder, error) from error
    line(f"wrote {folder / 'witness.py'}: not run; it needs the engine and a GPU, and exits with 1 where the defect is")
    return CLEAN


def chosen_patch(given: Path | None, entry: RelatedEntry | None) -> tuple[str, str]:
    """Return a patch and its source in words: the one given, or that of the known bug; else "", ""."""
    from ...group.known.known_toml import patch_text
    from ...tell.reproduce import packaged_patch

    return (patch_text(given), "a patch for this failure") if given else packaged_patch(entry)


def places(trace: Path) -> Sequence[Place]:
    """Return the suspicious functions that a campaign stored beside a finding's trace, () if there are none."""
    from ....targets.base.trace import TraceError
    from ...group.findings.finding_store import load_evidence
    from .common import progress_line

    try:
        found = load_evidence(trace)
    except TraceError as error:  # the trace is enough
        progress_line(f"warning: {error}")
        return ()
    return found.places if found else ()
