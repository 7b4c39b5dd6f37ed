"""hybridfuzz bisect: find the releases of an engine that show a failure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...tell.bisect import ReleaseChange, Tried
    from ...workers.worker_client import WorkerClient

SHOWN_MAX = 40
"""Versions that are listed."""
_SIGNATURE = re.compile(r"([MS]\d|[A-Z]{4,})-.+")
EXAMPLES = """\
--versions: FIRST..LAST (both and the releases between, from the package
index), or a list of releases and paths, oldest first. Each environment is made
once (about 0.6 GB a release). Releases that were not tried are listed as such.
--good REF --bad REF: the commits of a checkout, vllm@PATH, along first parents,
each in a worktree that is removed afterwards.
A release that refuses the trace runs the nearest one that it takes. That is
decisive if it fails, or if it shows the failure where the trace itself does.
Exit status: 0 done, 1 the trace fails in the last release that could be
tested, 2 usage or environment.
example: hybridfuzz bisect failing.json --target vllm --versions 0.28.0..0.33.0
example: hybridfuzz bisect failing.json --target vllm@. --good v0.33.0 --bad main
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    parser.add_argument("trace", metavar="TRACE", help="a trace that fails in one of the releases")
    add_target(parser)
    parser.add_argument("--versions", default="", metavar="LIST", help="A..B, or A,B,PATH")
    parser.add_argument("--good", default="", metavar="REF", help="a commit of the checkout without the failure")
    parser.add_argument("--bad", default="", metavar="REF", help="a later one with it")
    parser.add_argument(
        "--signature",
        metavar="S",
        help="failure to look for (default: the finding's, or that of the first release tried that fails)",
    )
    parser.add_argument("--all", action="store_true", help="try every release, not only those that are needed")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Try releases, print a line for each, then the changes."""
    import msgspec

    from ...draw.trace_files import load_trace
    from ...exit_status import CLEAN, USAGE, VIOLATION
    from ...tell.bisect import Nearest, bisect, changes
    from ...tell.commits import subject
    from .common import print_json, printer

    trace, line = load_trace(options.trace), printer(options.json)
    repository = checkout_of(options)
    releases = commits_of(options, repository) if repository else releases_of(options)
    first, named = named_by(Path(options.trace))
    # Where the failure is known, or probable: what a release takes in place of the trace is measured there.
    first = first if first in releases else releases[-1]
    signature = options.signature or named or signature_of_finding(Path(options.trace))
    shown = releases if len(releases) <= SHOWN_MAX else [releases[0], f"... {len(releases) - 2} more ...", releases[-1]]
    line(f"looking for {signature or 'any failure'} in {', '.join(shown)}")
    tried: dict[str, Tried] = {}
    attempt = Nearest(trace, signature, lambda release: started(options, release, repository))
    for one in bisect(releases, signature, attempt, first=first, everything=options.all):
        tried[one.release] = one
        line(f"{one.release:12} {one.state:15} {one.seconds:6.1f} s  {one.detail[:160]}")
        if left_out := attempt.changes.get(one.release):
            line(f"{'':12} ran the nearest trace that it takes: {'; '.join(left_out)[:160]}")
    found = changes(releases, tried)
    for sentence in conclusions(releases, tried, found):
        line(sentence)
    if repository:
        for change in found:
            line(f"{change.after}: {subject(repository, change.after)}")
    decisive = [release for release in releases if release in tried and tried[release].state in ("bad", "good")]
    if options.json:
        signature = next((one.signature for one in tried.values() if one.state == "bad"), signature)
        results = {"signature": signature, "tried": list(tried.values()), "changes": found}
        print_json({"exit_reason": "done" if decisive else "undecided", **msgspec.to_builtins(results)})
    if not decisive:
        return USAGE
    return VIOLATION if tried[decisive[-1]].state == "bad" else CLEAN


def checkout_of(options: argparse.Namespace) -> Path | None:
    """Return the checkout whose commits are to be tried, None for releases. Raises TraceError for half of either."""
    from ....targets.base.registry import parse
    from ....targets.base.trace import TraceError

    if not (options.good or options.bad):
        if options.versions:
            return None
        raise TraceError("bisect: name releases with --versions A..B, or commits of a checkout with --good and --bad")
    if not (options.good and options.bad) or options.versions:
        raise TraceError("bisect: commits need both --good and --bad, and no --versions")
    folder = parse(options.target).version
    if not folder or not Path(folder).is_dir():
        raise TraceError(f"target {options.target!r} is no checkout: give ENGINE@PATH with --good and --bad")
    return Path(folder)


def commits_of(options: argparse.Namespace, repository: Path) -> list[str]:
    """Return the commits that --good and --bad name, oldest first."""
    from ...tell.commits import commits_between

    return commits_between(repository, options.good, options.bad)


def releases_of(options: argparse.Namespace) -> list[str]:
    """Return the releases that --versions names, oldest first. Raises TargetError or TraceError if there are none."""
    from ....targets.base.registry import check_has_releases, releases_between
    from ....targets.base.trace import TraceError
    from .common import progress_line

    check_has_releases(options.target)
    first, dots, last = options.versions.partition("..")
    if dots and "/" not in options.versions:
        return list(releases_between(options.target, first, last, progress_line))
    releases = [one.strip() for one in options.versions.split(",") if one.strip()]
    if not releases:
        raise TraceError("--versions names no release: write A..B, or A,B,PATH")
    return releases


def named_by(path: Path) -> tuple[str, str]:
    """Return the release and the signature in the name of a file of a corpus, RELEASE--CAUSE--SIGNATURE.json or
    CAUSE--SIGNATURE.json; "" for what the name does not hold. The name of a finding is no signature: it may be cut, or
    have a number."""
    *before, last = path.stem.split("--")
    return before[0] if len(before) > 1 else "", last if before and _SIGNATURE.fullmatch(last) else ""


def signature_of_finding(path: Path) -> str:
    """Return the signature of the finding whose shortest trace this is, as the state of its campaign has it; "" if
    there is none. Raises TraceError for a state that cannot be used."""
    from ...group.findings.finding_store import FINDINGS_FOLDER, read_state

    folder = path.absolute().parent
    state = read_state(folder.parent) if folder.name == FINDINGS_FOLDER else None
    findings = state.findings if state else ()
    return next((one.signature for one in findings if Path(one.trace).name == path.name), "")


@contextmanager
def started(options: argparse.Namespace, release: str, repository: Path | None) -> Iterator[WorkerClient]:
    """Yield a worker on one release, or on a commit of a repository."""
    from ....targets.base.registry import prepare
    from ....targets.base.releases import forget
    from ...tell.commits import worktree
    from ...workers.worker_client import WorkerClient
    from .common import memory_limit, progress_line

    engine = options.target.partition("@")[0]
    with worktree(repository, release) if repository else nullcontext(release) as version:
        spec = f"{engine}@{version}"
        try:
            with WorkerClient(spec, prepare(spec, progress_line), options.timeout, memory_limit(options)) as worker:
                worker.start()
                yield worker
        finally:
            if repository:
                forget(engine, Path(version))


def conclusions(releases: list[str], tried: dict[str, Tried], found: list[ReleaseChange]) -> list[str]:
    """Return the conclusions as lines: changes, releases that decide nothing, releases that were not tried."""
    lines = []
    for change in found:
        between = f"; not tried between them: {', '.join(change.open)}" if change.open else ""
        inside = releases[releases.index(change.before) + 1 : releases.index(change.after)]
        if undecided := [release for release in inside if release in tried]:
            between += f"; between them, and not decisive: {', '.join(undecided)}"
        before, after = tried[change.before], tried[change.after]
        if change.kind == "other":
            bad, other = (before, after) if before.state == "bad" else (after, before)
            which = "last" if bad is before else "first"
            lines.append(f"{which} bad: {bad.release} ({other.release} fails differently: {other.signature}){between}")
            continue
        what = "first bad" if change.kind == "introduced" else "first good"
        lines.append(f"{what}: {change.after} ({change.before} is {before.state}){between}")
    if all(change.kind == "other" for change in found):
        states = {one.state for one in tried.values() if one.state in ("bad", "good")}
        result = f"all tested releases are {states.pop()}" if len(states) == 1 else "no release could be tested"
        lines.append(f"no change between bad and good found: {result}")
    undecided = [one.release for one in tried.values() if one.state in ("other", "not applicable")]
    if undecided:
        lines.append(f"not decisive: {', '.join(undecided)}")
    if left := [release for release in releases if release not in tried]:
        lines.append(f"not tried: {', '.join(left)} (--all tries them)")
    return lines
