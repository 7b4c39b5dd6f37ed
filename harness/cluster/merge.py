"""Unites the folders of independent campaigns on one target: shards of one seed, or campaigns with different seeds.

    ALL/campaign.json      the totals, as one campaign would have them
    ALL/parts/NAME.json    the state of each campaign that was merged
    ALL/findings, corpus, triage.json    as in the folder of a campaign

Everything is computed from the parts and from the files of all folders, in an order that depends on their content
alone: merging in any order, in several steps, or twice gives the same files. ALL counts as one of the folders if it
exists. A folder that comes again replaces what it reported before.

Times of first and last sight come from the bug histories of the folders.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from ...targets.base.trace import TraceError
from ..events import Canary, Finding, Node, Summary
from ..findings.known import Known, reason_for
from ..findings.store import (
    FINDINGS_FOLDER,
    HISTORY_SUFFIX,
    STATE_FILE,
    TEXT_SUFFIX,
    OutputError,
    file_name,
    make_folder,
    read_state,
    replay_command,
)
from ..findings.triage import Bug, BugHistory, bug_key, judged, load_bug_history, run_name, save_bug_history
from ..traces.files import (
    STATE_BYTES_MAX,
    TRACE_BYTES_MAX,
    encode_trace,
    load_trace,
    read_json,
    read_regular,
    write_atomically,
)
from ..units import shard as parse_shard

PARTS_FOLDER = "parts"
CORPUS_FOLDER = "corpus"
_WORST_FIRST = ("error", None, "interrupted", "steps", "time", "traces")
_CANARY_FIRST = ("silent", "found", "unfinished", "none")


class Merged(NamedTuple):
    """The result of a merge. `missing` names shards that no folder holds."""

    summary: Summary
    missing: Sequence[str]


class _Saved(Struct, frozen=True):
    """A finding with its files, read completely."""

    finding: Finding
    trace: bytes
    text: bytes
    history: bytes

    @property
    def rank(self) -> tuple[object, ...]:
        """Order of preference: the lowest is kept."""
        finding = self.finding
        return (not finding.reproduced, not finding.reduced, finding.events, len(self.trace), self.trace, self.text)


class _Folder(Struct, frozen=True):
    """What a folder holds."""

    parts: Sequence[Summary]
    saved: Sequence[_Saved]
    history: BugHistory
    corpus: Mapping[str, bytes]


def merge_folders(folders: Sequence[Path], out: Path, known: Sequence[Known], now: str) -> Merged:
    """Merge campaigns into `out`, which no other process may be using. `now` is ISO 8601, UTC.

    Raises TraceError for a folder that cannot be used, or for campaigns that cannot be one.
    """
    if (state := read_json(out / STATE_FILE, Summary, "a state file")) and not state.merged:
        raise TraceError(f"{out}: a campaign ran in this folder; choose another one for the result")
    sources = {folder.resolve(): folder for folder in [*folders, *([out] if state else [])]}
    read = [_read(folder) for folder in sources.values()]
    parts = _distinct(part for one in read for part in one.parts)
    _check(parts)
    make_folder(out, FINDINGS_FOLDER)
    for name in (PARTS_FOLDER, CORPUS_FOLDER):
        make_folder(out, name)
    try:
        for part in parts:
            data = msgspec.json.format(msgspec.json.encode(part), indent=1)
            write_atomically(out / PARTS_FOLDER / f"{file_name(run_name(part))}.json", data)
        for one in read:
            for name, data in one.corpus.items():
                write_atomically(out / CORPUS_FOLDER / name, data)
        best = _best(read)
        findings = _findings(parts, best, known, out)
        for finding in findings:
            _write(best[finding.signature], finding, parts[0].target)
        history = _history([one.history for one in read], parts, findings, known, now)
        _copy_traces(history, [one.history for one in read], out)
        save_bug_history(out, {key: _at(bug, out) for key, bug in sorted(history.items())})
        summary = _summary(parts, findings)
        write_atomically(out / STATE_FILE, msgspec.json.format(msgspec.json.encode(summary), indent=1))
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror}; choose another with -o") from error
    return Merged(summary, _missing(parts))


def _read(folder: Path) -> _Folder:
    """Read everything of a folder. Raises TraceError if no campaign ran there, or if a file cannot be used."""
    state = read_state(folder)
    if state is None:
        raise TraceError(f"{folder}: no campaign ran in this folder ({STATE_FILE} is missing)")
    parts: list[Summary] = []
    for path in sorted((folder / PARTS_FOLDER).glob("*.json")):
        if part := read_json(path, Summary, "a part of a merged campaign"):
            parts.append(part)
    if not state.merged:
        inside = [structs.replace(one, trace=f"{FINDINGS_FOLDER}/{Path(one.trace).name}") for one in state.findings]
        parts.append(structs.replace(state, findings=inside))
    saved = [_saved(finding) for finding in state.findings]
    corpus = {path.name: encode_trace(load_trace(path)) for path in sorted((folder / CORPUS_FOLDER).glob("*.json"))}
    return _Folder(parts, saved, load_bug_history(folder), corpus)


def _saved(finding: Finding) -> _Saved:
    path = Path(finding.trace)
    text, history = path.with_suffix(TEXT_SUFFIX), path.with_suffix(HISTORY_SUFFIX)
    return _Saved(
        finding,
        read_regular(path, TRACE_BYTES_MAX, "a trace"),
        read_regular(text, STATE_BYTES_MAX, "a text") if text.exists() else b"",
        read_regular(history, STATE_BYTES_MAX, "a history") if history.exists() else b"",
    )


def _distinct(parts: Iterable[Summary]) -> list[Summary]:
    """Return each campaign once, in its furthest state, by name."""
    furthest: dict[str, Summary] = {}
    for part in parts:
        name = run_name(part)
        if name not in furthest or _progress(part) > _progress(furthest[name]):
            furthest[name] = part
    return [furthest[name] for name in sorted(furthest)]


def _progress(part: Summary) -> tuple[object, ...]:
    return part.traces, part.seconds, part.exit_reason is not None, msgspec.json.encode(part)


def _check(parts: Sequence[Summary]) -> None:
    """Raise TraceError for campaigns whose totals cannot be added up."""
    first = parts[0]
    for part in parts[1:]:
        for name in ("target", "version", "overrides"):
            if getattr(part, name) != getattr(first, name):
                ours, theirs = getattr(first, name), getattr(part, name)
                raise TraceError(
                    f"{run_name(first)} and {run_name(part)} cannot be merged: {name} {ours!r} and {theirs!r}"
                )
    sizes: dict[int, Summary] = {}
    for part in parts:
        other = sizes.setdefault(part.seed, part)
        if _shards(part) != _shards(other):
            raise TraceError(f"{run_name(other)} and {run_name(part)} cannot be merged: they ran the same traces")


def _shards(part: Summary) -> int:
    try:
        return parse_shard(part.shard).of if part.shard else 1
    except ValueError:
        raise TraceError(f"{run_name(part)}: {part.shard!r} is not a shard") from None


def _missing(parts: Sequence[Summary]) -> list[str]:
    """Return the names of shards of which no folder is there."""
    names = {run_name(part) for part in parts}
    wanted = [
        run_name(structs.replace(part, shard=f"{number}/{_shards(part)}"))
        for part in {part.seed: part for part in parts if part.shard}.values()
        for number in range(1, _shards(part) + 1)
    ]
    return [name for name in wanted if name not in names]


def _best(read: Sequence[_Folder]) -> dict[str, _Saved]:
    """Return the files to keep, by signature."""
    best: dict[str, _Saved] = {}
    for saved in (saved for one in read for saved in one.saved):
        signature = saved.finding.signature
        if signature not in best or saved.rank < best[signature].rank:
            best[signature] = saved
    return best


def _findings(parts: Sequence[Summary], best: Mapping[str, _Saved], known: Sequence[Known], out: Path) -> list[Finding]:
    """Return the findings of all parts, with counts over all of them, by number of their first trace."""
    met: dict[str, list[Finding]] = {}
    for finding in (finding for part in parts for finding in part.findings):
        if finding.signature in best:
            met.setdefault(finding.signature, []).append(finding)
    findings = [
        structs.replace(
            best[signature].finding,
            trace=str(out / FINDINGS_FOLDER / f"{file_name(signature)}.json"),
            index=min((one.index for one in several if one.index >= 0), default=-1),
            count=sum(one.count for one in several),
            reproduced=any(one.reproduced for one in several),
            shown=sum(one.shown for one in several),
            tried=sum(one.tried for one in several),
            known=reason_for(known, signature, parts[0].target),
        )
        for signature, several in met.items()
    ]
    return sorted(findings, key=lambda finding: (finding.index, finding.signature))


def _write(saved: _Saved, finding: Finding, target: str) -> None:
    """Write the files of a finding: text and history after their trace."""
    path = Path(finding.trace)
    again = f"Replay: {replay_command(target, finding.trace)}"
    text = re.sub(r"Replay: .*", lambda _: again, saved.text.decode("utf-8", "replace"), count=1)
    for suffix in (TEXT_SUFFIX, HISTORY_SUFFIX):
        path.with_suffix(suffix).unlink(missing_ok=True)
    write_atomically(path, saved.trace)
    write_atomically(path.with_suffix(TEXT_SUFFIX), text.encode())
    if saved.history:
        write_atomically(path.with_suffix(HISTORY_SUFFIX), saved.history)


def _history(
    histories: Sequence[BugHistory],
    parts: Sequence[Summary],
    findings: Sequence[Finding],
    known: Sequence[Known],
    now: str,
) -> BugHistory:
    """Return the union of bug histories. Shards of one seed are one run, as in the history of one campaign."""
    merged: BugHistory = {}
    target = parts[0].target
    found = {bug_key(target, finding.signature): finding for finding in findings}
    counts = _counts(parts)
    names = {run_name(part) for part in parts} | {run_name(structs.replace(part, shard="")) for part in parts}
    for key in sorted({*found, *(key for history in histories for key in history)}):
        bugs = sorted((history[key] for history in histories if key in history), key=_recent)
        runs = Counter[str]()
        for bug in bugs:
            runs |= Counter(bug.counts)
        runs = Counter({run: count for run, count in runs.items() if run not in names}) + counts.get(key, Counter())
        times = [*(bug.first_seen for bug in bugs), *(bug.last_seen for bug in bugs)] or [now]
        if key in found:
            finding = found[key]
            bug = Bug(
                target=target,
                version=parts[0].version,
                signature=finding.signature,
                oracle=finding.oracle,
                message=finding.message,
                trace=finding.trace,
                events=finding.events,
                first_seen=min(times),
                last_seen=max(times),
                counts=dict(sorted(runs.items())),
                shown=finding.shown,
                tried=finding.tried,
            )
            merged[key] = judged(bug, known, seen=True)
        else:
            bug = structs.replace(
                bugs[-1], first_seen=min(times), last_seen=max(times), counts=dict(sorted(runs.items()))
            )
            merged[key] = judged(bug, known, seen=bug.state != "fixed")
    return merged


def _recent(bug: Bug) -> tuple[object, ...]:
    return bug.last_seen, -bug.events, msgspec.json.encode(structs.replace(bug, trace=""))


def _counts(parts: Sequence[Summary]) -> dict[str, Counter[str]]:
    """Return the failing traces of all parts by bug, and by run."""
    counts: dict[str, Counter[str]] = {}
    for part in parts:
        for finding in part.findings:
            run = run_name(structs.replace(part, shard=""))
            counts.setdefault(bug_key(part.target, finding.signature), Counter())[run] += finding.count
    return counts


def _copy_traces(history: BugHistory, histories: Sequence[BugHistory], out: Path) -> None:
    """Copy the traces of bugs that none of the campaigns met: later campaigns test them again."""
    for key in history:
        path = out / FINDINGS_FOLDER / f"{file_name(history[key].signature)}.json"
        traces = [Path(one[key].trace) for one in histories if key in one]
        data = [read_regular(trace, TRACE_BYTES_MAX, "a trace") for trace in traces if trace.exists()]
        if data and not path.exists():
            write_atomically(path, min(data, key=lambda one: (len(one), one)))


def _at(bug: Bug, out: Path) -> Bug:
    return structs.replace(bug, trace=str(out / FINDINGS_FOLDER / f"{file_name(bug.signature)}.json"))


def _summary(parts: Sequence[Summary], findings: Sequence[Finding]) -> Summary:
    """Return the totals of all parts. They ran side by side: the longest one gives the time."""
    exercised, reached = Counter[str](), Counter[str]()
    for part in parts:
        exercised.update(part.exercised)
        reached.update(part.reached)
    first = parts[0]
    return Summary(
        target=first.target,
        version=first.version,
        seed=min(part.seed for part in parts),
        overrides=first.overrides,
        exit_reason=min((part.exit_reason for part in parts), key=_WORST_FIRST.index),
        traces=sum(part.traces for part in parts),
        steps=sum(part.steps for part in parts),
        seconds=max(part.seconds for part in parts),
        findings=findings,
        exercised=_ordered(exercised, [part.exercised for part in parts]),
        reached=_ordered(reached, [part.reached for part in parts]),
        never_exercised=_all_lack([part.never_exercised for part in parts]),
        never_reached=_all_lack([part.never_reached for part in parts]),
        lost_workers=sum(part.lost_workers for part in parts),
        canary=_canary(parts),
        nodes=[
            Node(run_name(part), 0, part.traces, part.steps, part.lost_workers, part.seconds, "up") for part in parts
        ],
        merged=[run_name(part) for part in parts],
    )


def _ordered(totals: Mapping[str, int], names: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return totals in the order of the parts' own lists."""
    return {name: totals[name] for name in dict.fromkeys(name for one in names for name in one)}


def _all_lack(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return what every part lacks."""
    return [name for name in lists[0] if all(name in one for one in lists)]


def _canary(parts: Sequence[Summary]) -> Canary | None:
    """Return the result of the self-tests: of a campaign whose self-test failed, if there is one."""
    canaries = [part.canary for part in parts if part.canary]
    return min(canaries, key=lambda one: (_CANARY_FIRST.index(one.state), msgspec.json.encode(one)), default=None)
