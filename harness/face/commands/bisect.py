"""hybridfuzz bisect: find the releases of an engine that show a failure."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.trace import Trace
    from ...judge.outcome import Outcome
    from ...tell.bisect import ReleaseChange, Tried

_SIGNATURE = re.compile(r"([MS]\d|[A-Z]{4,})-.+")
EXAMPLES = """\
--versions: FIRST..LAST (both and the releases between, from the package
index), or a list of releases and paths, oldest first. Each environment is made
once (about 0.6 GB a release). Releases that were not tried are listed as such.
Exit status: 0 done, 1 the trace fails in the last release that could be
tested, 2 usage or environment.
example: hybridfuzz bisect failing.json --target vllm --versions 0.28.0..0.33.0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from .common import add_target

    parser.add_argument("trace", metavar="TRACE", help="a trace that fails in one of the releases")
    add_target(parser)
    parser.add_argument("--versions", required=True, metavar="LIST", help="A..B, or A,B,PATH")
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

    from ...draw.files import load_trace
    from ...exit_status import CLEAN, USAGE, VIOLATION
    from ...tell.bisect import bisect, changes
    from .common import print_json, printer

    trace, line = load_trace(options.trace), printer(options.json)
    releases = releases_of(options)
    first, named = named_by(Path(options.trace))
    signature = options.signature or named or signature_of_finding(Path(options.trace))
    line(f"looking for {signature or 'any failure'} in {', '.join(releases)}")
    tried: dict[str, Tried] = {}
    for one in bisect(
        releases, signature, lambda release: attempt(options, trace, release), first=first, everything=options.all
    ):
        tried[one.release] = one
        line(f"{one.release:12} {one.state:15} {one.seconds:6.1f} s  {one.detail[:160]}")
    found = changes(releases, tried)
    for sentence in conclusions(releases, tried, found):
        line(sentence)
    decisive = [release for release in releases if release in tried and tried[release].state in ("bad", "good")]
    if options.json:
        signature = next((one.signature for one in tried.values() if one.state == "bad"), signature)
        results = {"signature": signature, "tried": list(tried.values()), "changes": found}
        print_json({"exit_reason": "done" if decisive else "undecided", **msgspec.to_builtins(results)})
    if not decisive:
        return USAGE
    return VIOLATION if tried[decisive[-1]].state == "bad" else CLEAN


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
    from ...group.store import FINDINGS_FOLDER, read_state

    folder = path.absolute().parent
    state = read_state(folder.parent) if folder.name == FINDINGS_FOLDER else None
    findings = state.findings if state else ()
    return next((one.signature for one in findings if Path(one.trace).name == path.name), "")


def attempt(options: argparse.Namespace, trace: Trace, release: str) -> Outcome:
    """Run the trace on one release, in a worker of its own."""
    from ....targets.base.registry import prepare
    from ...workers.client import WorkerClient
    from .common import memory_limit, progress_line

    spec = f"{options.target}@{release}"
    with WorkerClient(spec, prepare(spec, progress_line), options.timeout, memory_limit(options)) as worker:
        worker.start()
        return worker.run(trace)


def conclusions(releases: list[str], tried: dict[str, Tried], found: list[ReleaseChange]) -> list[str]:
    """Return the conclusions as lines: changes, releases that decide nothing, releases that were not tried."""
    lines = []
    for change in found:
        between = f"; not tried between them: {', '.join(change.open)}" if change.open else ""
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
