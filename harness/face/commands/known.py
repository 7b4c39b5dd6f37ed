"""hybridfuzz known: add, list and check known bugs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.launch import Launch
    from ....targets.base.protocol import Capabilities
    from ....targets.base.trace import Trace
    from ...campaign_summary import KnownBug, Severity
    from ...group.known.known_toml import Known
    from ...workers.worker_client import WorkerClient

COLUMNS = ("name", "by", "target", "releases", "traces", "expires")
"""Of the list, before the reason."""
EXAMPLES = """\
add    writes an entry for a finding, with its traces and, if there is one, the patch;
       first it checks that the traces fail without the patch, and do not fail with it
list   prints the entries of a file, or what is packaged for a target
export writes what is packaged for a target, with patches and traces, to a file
       of your own: for a checkout, or for the list that your CI keeps
severity  measures how much each bug matters, and writes it to a file, in which
       what it says of other bugs stays
check  runs the traces of each entry: still there, fixed upstream, patch no
       longer applies, not fixed by its patch, or not tested
Exit status of check: 0 all are still there or not tested, 1 one is not.
example: hybridfuzz known add night/ --id M2-step-mamba-key --reason "vLLM #57580"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    actions = ("add", "list", "check", "export", "severity")
    parser.add_argument("action", choices=actions, metavar=f"{{{','.join(actions)}}}", help="see below")
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="add: FINDING; list, check, severity: file, folder or builtin (default: known.toml)",
    )
    add_target(parser)
    parser.add_argument(
        "--id",
        default="",
        metavar="NAME",
        help="add: the finding, if FINDING is a campaign's folder; severity: only entries of this name (or *, ?)",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="add: the issue that tracks the bug (required)")
    parser.add_argument("--patch", type=Path, metavar="FILE", help="add: unified diff that fixes it")
    parser.add_argument("--expires", default="", metavar="DATE", help="add: the day from which it counts as new again")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("known.toml"),
        metavar="FILE",
        help="file to write (default: known.toml; severity: none, it has to be given)",
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    actions = {"add": add, "list": list_entries, "check": check, "export": export, "severity": severity}
    return actions[options.action](options)


def entries_of(options: argparse.Namespace) -> tuple[Known, ...]:
    """Return the entries of the file that was named; without a name and a file here those that are packaged for the
    target, if it is an engine that has some. Raises TraceError."""
    from ....targets.base.registry import parse
    from ....targets.base.trace import TraceError
    from ...group.known.fixes import BUILTIN, CORPUS, KNOWN_FILE, packaged_for, read_fixes

    engine = parse(options.target)
    has_some = (CORPUS / engine.name / KNOWN_FILE).exists()
    if options.what == BUILTIN and not has_some and options.action == "list":
        files = sorted(CORPUS.glob(f"*/{KNOWN_FILE}"))
        return tuple(entry for file in files for entry in read_fixes(str(file), options.target))
    if options.what in (None, BUILTIN) and has_some and (options.what or not Path(KNOWN_FILE).exists()):
        entries = read_fixes(BUILTIN, options.target)
        return tuple(packaged_for(options.target, engine.version)) if engine.version else entries
    if not options.what and not Path(KNOWN_FILE).exists():
        raise TraceError(f"there is no {KNOWN_FILE} here; name a file, a folder or builtin")
    return read_fixes(options.what or KNOWN_FILE, options.target)


def list_entries(options: argparse.Namespace) -> int:
    """Print a table."""
    from ...exit_status import CLEAN
    from .common import print_json, printer

    line, entries = printer(options.json), entries_of(options)
    rows: list[dict[str, object]] = [
        {
            "name": entry.title,
            "by": "patch" if entry.patch else "condition" if entry.condition else "signature",
            "target": entry.target,
            "releases": ",".join(entry.releases) or "all",
            "traces": len(entry.traces),
            "expires": str(entry.expires or "never"),
            "reason": entry.reason,
        }
        for entry in entries
    ]
    wide = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in COLUMNS} if rows else {}
    head: dict[str, object] = {name: name for name in (*COLUMNS, "reason")}
    for row in [head, *rows]:
        cells = (f"{row[name]!s:{'>' if name == 'traces' else '<'}{wide.get(name, 0)}}" for name in COLUMNS)
        line(f"{' '.join(cells)}  {row['reason']}")
    if options.json:
        print_json({"exit_reason": "done", "entries": rows})
    return CLEAN


def export(options: argparse.Namespace) -> int:
    """Write the packaged entries for a target to a file, with their patches and traces beside it."""
    from ....targets.base.registry import parse
    from ....targets.base.trace import TraceError
    from ...exit_status import CLEAN
    from ...group.known.fixes import packaged_for
    from ...group.known.known_toml import FILES, take_over
    from ...units import plural
    from .common import print_json, printer

    if options.what:
        raise TraceError("known export: it writes what is packaged for --target; name the file with -o")
    if options.out.exists():
        raise TraceError(f"{options.out}: there is such a file; remove it, or name another one with -o")
    line, target = printer(options.json), options.target
    entries = packaged_for(target, parse(target).version)
    if not entries:
        raise TraceError(f"known export: no known bug of {target} is packaged")
    for entry in entries:
        take_over(options.out, entry)
    line(f"wrote {plural(len(entries), 'known bug')} to {options.out}, and their files to {options.out.parent / FILES}")
    if options.json:
        print_json({"exit_reason": "exported", "entries": [entry.title for entry in entries], "file": str(options.out)})
    return CLEAN


def check(options: argparse.Namespace) -> int:
    """Run the traces of every entry for the target, without its patch and with all patches."""
    import datetime

    import msgspec

    from ...exit_status import CLEAN, VIOLATION
    from ...group.known.fixes import apply_fixes, check_both
    from ...workers.worker_client import WorkerClient
    from .common import launch_target, memory_limit, print_json, printer

    line = printer(options.json)
    fixes = apply_fixes(launch_target(options.target), entries_of(options), options.target, datetime.date.today())
    bugs: list[KnownBug] = []
    memory = memory_limit(options, 2)
    with (
        WorkerClient(options.target, fixes.unpatched, options.timeout, memory) as unpatched,
        WorkerClient(options.target, fixes.launch, options.timeout, memory) as patched,
    ):
        for bug in check_both(fixes, unpatched, patched):
            line(f"{bug.name:28} {bug.verdict:24} {bug.detail}")
            bugs.append(bug)
    if not bugs:
        line(f"no entry is for {options.target}")
    outdated = [bug for bug in bugs if bug.outdated]
    if options.json:
        print_json({"exit_reason": "outdated" if outdated else "done", "entries": msgspec.to_builtins(bugs)})
    return VIOLATION if outdated else CLEAN


def severity(options: argparse.Namespace) -> int:
    """Measure how much each entry's bug matters, and write it."""
    from fnmatch import fnmatchcase

    import msgspec

    from ....targets.base.trace import TraceError
    from ...campaign_summary import Severity
    from ...draw.trace_files import encode_json, read_json, write_atomically
    from ...exit_status import CLEAN
    from ...group.findings.finding_store import OutputError
    from ...group.findings.severity import joined, severity_words
    from ...group.known.recognition import SEVERITIES
    from .common import open_worker, print_json, printer

    if options.out.name != SEVERITIES:
        raise TraceError(f"known severity: name the file to write with -o: FOLDER-OF-THE-PATCHES/{SEVERITIES}")
    if not options.out.parent.is_dir():  # known before minutes of measuring
        raise OutputError(f"cannot write {options.out}: there is no such folder; choose another with -o")
    entries, line = entries_of(options), printer(options.json)
    wanted = [entry for entry in entries if fnmatchcase(entry.title, options.id or "*")]
    if options.id and not wanted:
        raise TraceError(f"known severity: there is no entry {options.id!r}")
    found = (read_json(options.out, dict[str, Severity], "severities") or {}) if options.id else {}
    with open_worker(options) as worker:
        able = worker.start().capabilities
        for entry in wanted:
            found.pop(entry.title, None)
            measured = joined(measure(worker, able, options.target, trace) for trace in entry.read_traces())
            line(f"{entry.title:32} {severity_words(measured) if measured else 'no trace of it fails'}")
            if measured:
                found[entry.title] = measured
    in_order = {entry.title: found[entry.title] for entry in entries if entry.title in found}
    data = encode_json(in_order)
    try:
        write_atomically(options.out, data + b"\n")
    except OSError as error:
        raise OutputError(f"cannot write {options.out}: {error.strerror}; choose another with -o") from error
    line(f"wrote {options.out}")
    if options.json:
        print_json({"exit_reason": "measured", "entries": msgspec.to_builtins(in_order), "file": str(options.out)})
    return CLEAN


def measure(worker: WorkerClient, able: Capabilities, target: str, trace: Trace) -> Severity | None:
    """Return how much the failure of a trace matters, None if the trace does not fail or cannot run."""
    from ....targets.base.trace import TraceError
    from ...group.findings.measured_reach import severity_on

    try:
        violation = worker.run(trace).violation
    except TraceError:
        return None
    return severity_on(target, worker.launch.version, trace, violation, worker, able) if violation else None


def add(options: argparse.Namespace) -> int:
    """Verify the entry, then write traces, patch and entry."""
    import datetime

    from ....targets.base.trace import TraceError
    from ...draw.trace_files import load_trace
    from ...exit_status import CLEAN
    from ...group.findings.finding_store import make_folder
    from ...group.known.known_toml import append_entry, entry_for, load_known
    from ...group.known.verification import traces_of
    from .common import launch_target, print_json, printer

    if not options.what:
        raise TraceError("known add: name a finding: a failing trace, or the folder of a campaign with --id NAME")
    if not options.reason.strip():
        raise TraceError("known add: --reason is missing; name the issue that tracks the bug")
    try:
        expires = datetime.date.fromisoformat(options.expires) if options.expires else None
    except ValueError:
        raise TraceError(f"--expires {options.expires}: write a date such as 2027-01-31") from None
    finding, line = Path(options.what), printer(options.json)
    paths = traces_of(finding, options.id)
    traces = [load_trace(path) for path in paths]
    if options.out.exists():
        load_known(options.out)  # a broken file is reported before anything runs
    launch = launch_target(options.target)
    signatures = tried(options, launch, traces)
    make_folder(options.out.absolute().parent)
    entry = entry_for(
        name=options.id or finding.stem,
        reason=options.reason,
        target=options.target.partition("@")[0] + "*",
        signatures=signatures,
        expires=expires,
        patch=options.patch,
        traces=paths,
    )
    append_entry(options.out, entry, patch=options.patch, traces=paths)
    line(f"added {entry.title} to {options.out}: {', '.join(signatures)}{', with a patch' if entry.patch else ''}")
    if options.json:
        print_json({"exit_reason": "added", "name": entry.title, "signatures": signatures, "file": str(options.out)})
    return CLEAN


def tried(options: argparse.Namespace, launch: Launch, traces: list[Trace]) -> list[str]:
    """Return the signatures of the traces. Raises TraceError if one runs clean, or fails with the patch as well."""
    from ....targets.base.patched_copy import patched
    from ....targets.base.trace import TraceError
    from ...group.known.known_toml import patch_from
    from ...workers.worker_client import WorkerClient
    from .common import memory_limit, progress_line

    def violations(of: Launch, how: str) -> list[str]:
        found = []
        progress_line(f"starting {options.target}, {how} the patch")
        with WorkerClient(options.target, of, options.timeout, memory_limit(options)) as worker:
            worker.start()
            for number, trace in enumerate(traces, 1):
                violation = worker.run(trace).violation
                found.append(violation.signature if violation else "")
                progress_line(f"trace {number} of {len(traces)}, {how} the patch: {found[-1] or 'clean'}")
        return found

    before = violations(launch, "without")
    if "" in before:
        raise TraceError(f"{options.what}: trace {before.index('') + 1} runs clean on {options.target}: not added")
    if options.patch:
        fixed = patched(launch, [patch_from(options.patch, options.patch.stem)])
        if failing := next(filter(None, violations(fixed, "with")), ""):
            raise TraceError(f"{options.patch}: a trace fails with the patch, too ({failing}): not added")
    return sorted(set(before))
