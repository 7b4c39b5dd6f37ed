"""Unites the folders of independent campaigns on one target: shards of one seed, or campaigns with different seeds.

    ALL/campaign.json      the totals, as one campaign would have them
    ALL/findings, corpus, triage.json    as in the folder of a campaign
    ALL/parts/NAME/        each campaign that was merged: state, findings with their evidence, species, bug history

Everything is computed from the parts, in an order that depends on their content alone: merging in any order, in several
steps, or twice gives the same files. If ALL is the result of an earlier merge, its parts count, too. A campaign that
comes again replaces what it reported before.

Findings of different parts are one if one known bug explains them, or if the evidence says that they have one cause
(`group.causes.same_cause`); without either, if they have one signature and known bugs explain both or neither. They are
taken in the order of their first traces, as one campaign meets them.

A finding is never lost with its files: those that a copy of its campaign has lost are taken from another copy; without
any, it stays in the result and is marked as damaged.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from ...targets.base.trace import TraceError
from ..campaign_summary import Canary, Finding, KnownBug, Node, Seen, Summary
from ..draw.trace_files import (
    NAME_LENGTH_MAX,
    STATE_BYTES_MAX,
    encode_json,
    encode_trace,
    file_name,
    load_trace,
    read_json,
    read_regular,
    write_atomically,
)
from ..quoting import one_line
from ..risk.species_counts import Draws, SavedSpecies, SpeciesCounts, load_species, save_species, up_to_date
from ..units import add_seconds, to_milliseconds
from ..units import shard as parse_shard
from .bug_history import (
    BUG_HISTORY_FILE,
    Bug,
    BugHistory,
    bug_key,
    bug_of,
    judged,
    load_bug_history,
    run_name,
    save_bug_history,
)
from .bug_history import merge as merge_history
from .causes.evidence import EVIDENCE_SUFFIX, EXTRA_TRACES_MAX, FindingEvidence
from .causes.same_cause import joined, same_cause
from .findings.finding_store import (
    EXTRA_SUFFIX,
    FINDINGS_FOLDER,
    HISTORY_SUFFIX,
    STATE_FILE,
    TEXT_SUFFIX,
    UNREDUCED_SUFFIX,
    OutputError,
    load_evidence,
    make_folder,
    moved_text,
    names_for,
    read_state,
)
from .findings.severity import joined as joined_severity
from .known.known_toml import Known, reason_for

PARTS_FOLDER = "parts"
CORPUS_FOLDER = "corpus"
DIGEST_LENGTH = 16
"""Of the digest in the name of a part's folder, if it would be too long."""
_WORST_FIRST = ("error", None, "interrupted", "steps", "time", "risk", "traces")
_CANARY_FIRST = ("silent", "found", "unfinished", "none")
_COUNTED = ("index", "count", "symptoms", "unsorted", "reproduced", "shown", "tried", "known")
"""Fields of a finding that come from the campaign itself, whichever copy has its files."""
_TRACE = ".json"


class MergeResult(NamedTuple):
    """The result of a merge.

    missing    shards that no folder holds
    damaged    what could not be read of findings, in one line each
    """

    summary: Summary
    missing: Sequence[str]
    damaged: Sequence[str] = ()


class _Saved(Struct, frozen=True):
    """A finding of one part, and the content of its files by suffix: those that can be used.

    `damage` says in one line each what is wrong with the others.
    """

    part: str
    finding: Finding
    files: Mapping[str, bytes]
    evidence: FindingEvidence | None
    damage: Sequence[str] = ()

    @property
    def trace(self) -> bytes:
        """The content of its trace, nothing if that is missing or damaged."""
        return self.files.get(_TRACE, b"")

    @property
    def known_as(self) -> str | None:
        """The known bug that explains it, "" if it is not settled which one, None if it is new."""
        return self.finding.cause.name if self.finding.cause else None

    @property
    def health(self) -> tuple[object, ...]:
        """Order of preference among the copies of one finding: the highest is kept."""
        return bool(self.trace), -len(self.damage), -self.finding.events, sorted(self.files.items())

    @property
    def order(self) -> tuple[object, ...]:
        """Order in which findings are grouped: that of their first traces."""
        return (self.finding.index < 0, self.finding.index, self.part, self.finding.id)

    @property
    def rank(self) -> tuple[object, ...]:
        """Order of preference for the trace of a group: the lowest is shown."""
        finding, trace = self.finding, self.trace
        return (not trace, not finding.reproduced, not finding.reduced, finding.events, len(trace), trace, self.order)


class _Part(Struct, frozen=True):
    """A campaign. Paths in its summary and its history are relative to its folder."""

    summary: Summary
    saved: Sequence[_Saved]
    history: BugHistory
    old: Mapping[str, bytes]
    """Traces of bugs that it did not meet, by name of the file."""
    species: SavedSpecies | None = None

    @property
    def name(self) -> str:
        """Its name, also in the bug history."""
        return run_name(self.summary)

    @property
    def folder_name(self) -> str:
        """The name of its folder. A long one is cut, and what is left may be the beginning of another one, too."""
        stem = file_name(self.name)
        if len(self.name) <= NAME_LENGTH_MAX:
            return stem
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:DIGEST_LENGTH]
        return f"{stem[: NAME_LENGTH_MAX - DIGEST_LENGTH - 1]}-{digest}"


class _Group(NamedTuple):
    """Findings with one cause."""

    name: str
    saved: list[_Saved]
    evidence: FindingEvidence | None

    @property
    def best(self) -> _Saved:
        """The finding whose trace is shown."""
        return min(self.saved, key=lambda one: one.rank)

    @property
    def known_as(self) -> str | None:
        """The known bug that explains it, "" if it is not settled which one, None if it is new."""
        return self.saved[0].known_as

    @property
    def symptoms(self) -> Counter[str]:
        """Failing traces by signature."""
        total = Counter[str]()
        for one in self.saved:
            total.update(one.finding.symptoms or {one.finding.signature: one.finding.count})
        return total


def merge_folders(folders: Sequence[Path], out: Path, known: Sequence[Known], now: str) -> MergeResult:
    """Merge campaigns into `out`, which no other process may be using. `now` is ISO 8601, UTC.

    Raises TraceError for a folder that cannot be used, or for campaigns that cannot be one.
    """
    if (state := read_json(out / STATE_FILE, Summary, "a state file")) and not state.merged:
        raise TraceError(f"{out}: a campaign ran in this folder; choose another one for the result")
    if not state and any((out / FINDINGS_FOLDER).glob("*")):
        raise TraceError(
            f"{out / FINDINGS_FOLDER}: there are files that no merge has listed; move them away, or choose another "
            "folder with -o"
        )
    sources = {folder.resolve(): folder for folder in [*folders, *([out] if state else [])]}
    read = [part for folder in sources.values() for part in _read(folder, now)]
    _check([part.summary for part in read])
    parts = _distinct(read)
    corpus = {name: data for folder in sources.values() for name, data in _corpus(folder).items()}
    try:
        return _write(parts, corpus, out, known)
    except OSError as error:
        raise OutputError(f"cannot write to {out}: {error.strerror}; choose another with -o") from error


def _write(parts: Sequence[_Part], corpus: Mapping[str, bytes], out: Path, known: Sequence[Known]) -> MergeResult:
    for name in (FINDINGS_FOLDER, CORPUS_FOLDER, PARTS_FOLDER):
        make_folder(out, name)
    for part in parts:
        _copy(part, out, Path(PARTS_FOLDER, part.folder_name))
    for name, data in corpus.items():
        write_atomically(out / CORPUS_FOLDER / name, data)
    groups = _grouped([one for part in parts for one in part.saved])
    target = parts[0].summary.target
    findings = [_finding(group, out, known, target) for group in groups]
    _remove_earlier(out)  # a group may have had another name or trace
    for group, finding in zip(groups, findings, strict=True):
        _write_finding(group, finding, target)
    summary = structs.replace(_summary([part.summary for part in parts], findings), seen=_seen(parts))
    history = _history(parts, groups, findings, known, out)
    _write_old(parts, history, out)
    save_bug_history(out, history)
    write_atomically(out / STATE_FILE, encode_json(summary))
    damaged = [f"{part.name}: {line}" for part in parts for one in part.saved for line in one.damage]
    return MergeResult(summary, _missing([part.summary for part in parts]), damaged)


def _read(folder: Path, now: str) -> list[_Part]:
    """Read the campaigns of a folder. Raises TraceError if there is none, or if a file cannot be used."""
    state = read_state(folder, damaged_too=True)
    if state is None:
        raise TraceError(f"{folder}: no campaign ran in this folder ({STATE_FILE} is missing)")
    if state.merged:
        return [_read_part(one, now) for one in _parts_of(folder)]
    return [_campaign(state, folder, now)]


def _parts_of(folder: Path) -> list[Path]:
    """Return the folders of the campaigns of which the result in a folder was made."""
    try:
        parts = sorted((folder / PARTS_FOLDER).iterdir())
    except OSError as error:
        raise TraceError(
            f"{folder / PARTS_FOLDER}: cannot be read: {error.strerror}; merge the campaigns again into another folder"
        ) from None
    if not parts:
        raise TraceError(f"{folder / PARTS_FOLDER}: it is empty; merge the campaigns again into another folder")
    return parts


def _read_part(folder: Path, now: str) -> _Part:
    """Read one campaign of a merged result."""
    state = read_state(folder, damaged_too=True)
    if state is None or state.merged:
        raise TraceError(f"{folder}: not the campaign of a merged result; remove it, or merge the campaigns again")
    return _campaign(state, folder, now)


def _campaign(state: Summary, folder: Path, now: str) -> _Part:
    """Read the files of a campaign."""
    name = run_name(state)
    saved = [_saved(name, finding) for finding in state.findings]
    state = structs.replace(state, findings=[one.finding for one in saved])
    history = load_bug_history(folder)
    met = {bug_key(state.target, one.id) for one in state.findings}
    if not met <= history.keys():  # killed before it was written
        history = merge_history(history, state, (), now)
    old = {}
    for key, bug in history.items():
        if key not in met and (trace := Path(bug.trace)).exists():
            old[file_name(bug.id) + _TRACE] = encode_trace(load_trace(trace))
    inside = {key: structs.replace(bug, trace=_inside(bug.trace)) for key, bug in history.items()}
    return _Part(state, saved, inside, old, load_species(folder))


def _inside(path: str) -> str:
    return f"{FINDINGS_FOLDER}/{Path(path).name}"


def _saved(part: str, finding: Finding) -> _Saved:
    """Read the files of a finding. One that cannot be used is left out and described: the finding itself stays."""
    trace, files, damage, evidence = Path(finding.trace), dict[str, bytes](), list[str](), None
    extras = {EXTRA_SUFFIX.format(number): Path(extra) for number, extra in enumerate(finding.extras, 1)}
    for suffix, path in {_TRACE: trace, **extras}.items():
        with _noting(damage, finding):
            files[suffix] = encode_trace(load_trace(path))
    for suffix in (TEXT_SUFFIX, HISTORY_SUFFIX, EVIDENCE_SUFFIX):
        if os.path.lexists(path := trace.with_suffix(suffix)):
            with _noting(damage, finding):
                evidence = load_evidence(trace) if suffix == EVIDENCE_SUFFIX else evidence
                files[suffix] = read_regular(path, STATE_BYTES_MAX, "a file of a finding")
    stem = file_name(finding.id)
    kept = [suffix for suffix in extras if suffix in files]
    relative = structs.replace(
        finding,
        trace=f"{FINDINGS_FOLDER}/{stem}{_TRACE}",
        extras=[f"{FINDINGS_FOLDER}/{stem}{suffix}" for suffix in kept],
        damaged=_TRACE not in files,
    )
    return _Saved(part, relative, files, evidence, damage)


@contextmanager
def _noting(damage: list[str], finding: Finding) -> Iterator[None]:
    """Note a file of a finding that cannot be used."""
    try:
        yield
    except TraceError as error:
        damage.append(one_line(f"finding {finding.id} is damaged: {error}"))


def _corpus(folder: Path) -> dict[str, bytes]:
    return {path.name: encode_trace(load_trace(path)) for path in sorted((folder / CORPUS_FOLDER).glob("*.json"))}


def _distinct(parts: Iterable[_Part]) -> list[_Part]:
    """Return each campaign once, in its furthest state, by name; files that a copy has lost are taken from another."""
    copies: dict[str, list[_Part]] = {}
    for part in parts:
        copies.setdefault(part.name, []).append(part)
    return [_restored(max(copies[name], key=_progress), copies[name]) for name in sorted(copies)]


def _progress(part: _Part) -> tuple[object, ...]:
    state = part.summary
    found = len(state.findings), len(part.history)
    return state.traces, state.seconds, state.exit_reason is not None, found, encode_json((state, part.history))


def _restored(part: _Part, copies: Sequence[_Part]) -> _Part:
    """Return a campaign whose findings have the files of the most intact copy."""
    saved = []
    for one in part.saved:
        others = [other for copy in copies for other in copy.saved if other.finding.id == one.finding.id]
        best = max(others, key=lambda other: other.health) if one.damage else one
        counted = {name: getattr(one.finding, name) for name in _COUNTED}
        saved.append(structs.replace(best, finding=structs.replace(best.finding, **counted)))
    findings = [one.finding for one in saved]
    return structs.replace(part, saved=saved, summary=structs.replace(part.summary, findings=findings))


def _check(parts: Sequence[Summary]) -> None:
    """Raise TraceError for campaigns whose totals cannot be added up."""
    first = parts[0]
    sizes: dict[int, Summary] = {}
    for part in parts:
        for name in ("target", "version", "overrides", "workload"):
            if getattr(part, name) != getattr(first, name):
                ours, theirs = getattr(first, name), getattr(part, name)
                raise TraceError(
                    f"{run_name(first)} and {run_name(part)} cannot be merged: {name} {ours!r} and {theirs!r}"
                )
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


def _remove_earlier(folder: Path) -> None:
    """Remove the files of the findings and bugs that an earlier merge has listed in a folder, and no others."""
    state = read_json(folder / STATE_FILE, Summary, "a state file")
    names = {one.id for one in state.findings} | {bug.id for bug in load_bug_history(folder).values()} if state else ()
    extras = [EXTRA_SUFFIX.format(number) for number in range(1, EXTRA_TRACES_MAX + 1)]
    for name in names:
        for suffix in (_TRACE, UNREDUCED_SUFFIX, TEXT_SUFFIX, HISTORY_SUFFIX, EVIDENCE_SUFFIX, *extras):
            (folder / FINDINGS_FOLDER / f"{file_name(name)}{suffix}").unlink(missing_ok=True)


def _copy(part: _Part, out: Path, folder: Path) -> None:
    """Write a part as the folder of a campaign, `folder` in `out`; the state comes last."""
    make_folder(out, str(folder / FINDINGS_FOLDER))
    folder = out / folder
    _remove_earlier(folder)
    for name, data in part.old.items():
        write_atomically(folder / FINDINGS_FOLDER / name, data)
    for one in part.saved:
        for suffix, data in one.files.items():
            write_atomically(folder / FINDINGS_FOLDER / f"{file_name(one.finding.id)}{suffix}", data)
    if part.species:
        save_species(folder, part.species)
    write_atomically(folder / BUG_HISTORY_FILE, encode_json(part.history))
    write_atomically(folder / STATE_FILE, encode_json(part.summary))


def _grouped(saved: Sequence[_Saved]) -> list[_Group]:
    """Return findings by cause."""
    groups: dict[str, _Group] = {}
    for one in sorted(saved, key=lambda one: one.order):
        name = _group_of(one, groups)
        group = groups.get(name, _Group(name, [], None))
        groups[name] = _Group(name, [*group.saved, one], _joined(group.evidence, one.evidence))
        while other := _like(name, groups):  # with this finding, two groups may turn out to have one cause
            name, gone = sorted((name, other), key=list(groups).index)
            members = [*groups[name].saved, *groups[gone].saved]
            groups[name] = _Group(name, members, _joined(groups[name].evidence, groups.pop(gone).evidence))
    return list(groups.values())


def _group_of(one: _Saved, groups: Mapping[str, _Group]) -> str:
    """Return the name of the group that a finding belongs to, that of a new one if there is none yet."""
    signature = one.finding.signature
    evidence = one.evidence.evidence if one.evidence else ()
    if alike := same_cause(evidence, _evidence_of(groups)):
        return alike
    known_alike = {name: group for name, group in groups.items() if group.known_as == one.known_as}
    if one.known_as and known_alike:
        return next(iter(known_alike))
    showing = [name for name, group in known_alike.items() if signature in group.symptoms]
    if showing and not (evidence and evidence[0].complete):
        return max(showing, key=lambda name: groups[name].symptoms[signature])
    bare = [name for name in showing if not groups[name].evidence]  # the first one with evidence names its cause
    return next(iter(bare), "") or next(name for name in names_for(signature) if name not in groups)


def _like(name: str, groups: Mapping[str, _Group]) -> str:
    """Return the name of another group with the same cause, "" if there is none."""
    own = groups[name].evidence
    return same_cause(own.evidence, _evidence_of(groups), but=name) if own else ""


def _evidence_of(groups: Mapping[str, _Group]) -> dict[str, FindingEvidence]:
    """Return the evidence of the groups that have some."""
    return {name: group.evidence for name, group in groups.items() if group.evidence}


def _joined(known: FindingEvidence | None, more: FindingEvidence | None) -> FindingEvidence | None:
    """Return the evidence of both, as a campaign would have learned it."""
    return joined(known, more.evidence) if more else known


def _finding(group: _Group, out: Path, known: Sequence[Known], target: str) -> Finding:
    """Return a group as one finding of the merged campaign."""
    stem, best, several = file_name(group.name), group.best, [one.finding for one in group.saved]
    symptoms = group.symptoms
    return structs.replace(
        best.finding,
        name=group.name,
        trace=str(out / FINDINGS_FOLDER / f"{stem}{_TRACE}"),
        extras=[
            str(out / FINDINGS_FOLDER / f"{stem}{EXTRA_SUFFIX.format(number + 1)}")
            for number in range(len(_extras(group)))
        ],
        index=min((one.index for one in several if one.index >= 0), default=-1),
        count=symptoms.total(),
        symptoms=dict(sorted(symptoms.items())),
        unsorted=sum(one.unsorted for one in several),
        reproduced=any(one.reproduced for one in several),
        shown=sum(one.shown for one in several),
        tried=sum(one.tried for one in several),
        known=reason_for(known, best.finding.signature, target) or _known_to_all(group),
        severity=joined_severity(one.severity for one in several),
    )


def _known_to_all(group: _Group) -> str:
    """Return the reason of its campaigns for which a group is not new; "" if it was new in one of them.

    They alone had what it takes to know a bug by its condition, and the files of --fixes.
    """
    return group.best.finding.known if all(one.finding.known for one in group.saved) else ""


def _extras(group: _Group) -> list[bytes]:
    """Return further traces of a group: those of the best finding, then the other findings' own."""
    ranked = sorted(group.saved, key=lambda one: one.rank)
    traces = [data for suffix, data in sorted(ranked[0].files.items()) if suffix.startswith(".also-")]
    traces += [one.trace for one in ranked[1:]]
    return [data for data in dict.fromkeys(traces) if data not in (b"", ranked[0].trace)][:EXTRA_TRACES_MAX]


def _write_finding(group: _Group, finding: Finding, target: str) -> None:
    """Write the files of a finding."""
    path, best = Path(finding.trace), group.best
    text = moved_text(best.files.get(TEXT_SUFFIX, b"").decode("utf-8", "replace"), target, finding.trace)
    if best.trace:
        write_atomically(path, best.trace)
    write_atomically(path.with_suffix(TEXT_SUFFIX), text.encode())
    if HISTORY_SUFFIX in best.files:
        write_atomically(path.with_suffix(HISTORY_SUFFIX), best.files[HISTORY_SUFFIX])
    if group.evidence:
        write_atomically(path.with_suffix(EVIDENCE_SUFFIX), encode_json(group.evidence))
    for number, data in enumerate(_extras(group), 1):
        write_atomically(path.with_suffix(EXTRA_SUFFIX.format(number)), data)


def _history(
    parts: Sequence[_Part], groups: Sequence[_Group], findings: Sequence[Finding], known: Sequence[Known], out: Path
) -> BugHistory:
    """Return the union of bug histories. Shards of one seed are one run, as in the history of one campaign."""
    first = parts[0].summary
    merged: BugHistory = {}
    runs = {part.name for part in parts} | {_whole(part.summary) for part in parts}
    by_name = {part.name: part for part in parts}
    for group, finding in zip(groups, findings, strict=True):
        bugs = [by_name[one.part].history[bug_key(first.target, one.finding.id)] for one in group.saved]
        counts = Counter[str]()
        for bug in bugs:
            counts |= Counter({run: count for run, count in bug.counts.items() if run not in runs})
        for one in group.saved:
            counts[_whole(by_name[one.part].summary)] += one.finding.count
        seen = min(bug.first_seen for bug in bugs), max(bug.last_seen for bug in bugs)
        bug = bug_of(finding, first, seen, dict(sorted(counts.items())))
        merged[bug_key(first.target, finding.id)] = judged(bug, known, seen=True)
    met = {bug_key(first.target, one.finding.id) for part in parts for one in part.saved}
    for key in sorted({key for part in parts for key in part.history} - met - merged.keys()):
        bugs = sorted((part.history[key] for part in parts if key in part.history), key=_recent)
        latest, counts = bugs[-1], Counter[str]()
        for bug in bugs:
            counts |= Counter(bug.counts)
        bug = structs.replace(
            latest,
            trace=str(out / FINDINGS_FOLDER / f"{file_name(latest.id)}{_TRACE}"),
            first_seen=min(bug.first_seen for bug in bugs),
            counts=dict(sorted(counts.items())),
        )
        merged[key] = judged(bug, known, seen=bug.state != "fixed")
    return merged


def _whole(part: Summary) -> str:
    """Return the name of the campaign of which a part is a shard."""
    return run_name(structs.replace(part, shard=""))


def _recent(bug: Bug) -> tuple[object, ...]:
    return bug.last_seen, -bug.events, encode_json(bug)


def _write_old(parts: Sequence[_Part], history: BugHistory, out: Path) -> None:
    """Write the traces of bugs that no part met: later campaigns test them again."""
    for bug in history.values():
        path = out / FINDINGS_FOLDER / f"{file_name(bug.id)}{_TRACE}"
        traces = [part.old[path.name] for part in parts if path.name in part.old]
        if traces and not path.exists():
            write_atomically(path, min(traces, key=lambda one: (len(one), one)))


def _summary(parts: Sequence[Summary], findings: Sequence[Finding]) -> Summary:
    """Return the totals of all parts. They ran side by side: the longest one gives the time."""
    exercised, reached, defaults = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        exercised.update(part.exercised)
        reached.update(part.reached)
        defaults.update(part.defaults)
    first = parts[0]
    effort, took = dict[str, float](), dict[str, float]()
    for part in parts:
        add_seconds(effort, part.effort)
        add_seconds(took, part.took)
    return Summary(
        target=first.target,
        version=first.version,
        seed=min(part.seed for part in parts),
        overrides=first.overrides,
        workload=first.workload,
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
        refused=sum(part.refused for part in parts),
        not_run=_ordered(sum((Counter(part.not_run) for part in parts), Counter()), [part.not_run for part in parts]),
        given_up=sum(part.given_up for part in parts),
        canary=_canary(parts),
        nodes=[
            Node(run_name(part), 0, part.traces, part.steps, part.lost_workers, part.seconds, "up") for part in parts
        ],
        merged=[run_name(part) for part in parts],
        known_bugs=_known_bugs(parts),
        effort=to_milliseconds(effort),
        took=to_milliseconds(took),
        triage_share=max(part.triage_share for part in parts),
        waiting=[one for part in parts for one in part.waiting],
        asked=first.asked,
        defaults=dict(defaults),
    )


def _seen(parts: Sequence[_Part]) -> Seen | None:
    """Return what all parts have seen; None where they did not draw from one stream, or kept no species."""
    counts, ran = SpeciesCounts(), dict[tuple[int, str], Draws]()
    read = [(part.species, up_to_date(part.species, part.summary)) for part in parts if part.species]
    kept = [(saved, draws) for saved, draws in read if draws]
    for saved, draws in kept:
        counts.merge(saved)
        for one in draws:  # the histories of two parts may have the same campaigns
            ran[one.seed, one.shard] = max(ran.get((one.seed, one.shard), one), one, key=lambda each: each.traces)
    return counts.seen(list(ran.values())) if len({encode_json(saved.stream) for saved, _ in kept}) == 1 else None


def _known_bugs(parts: Sequence[Summary]) -> list[KnownBug]:
    """Return the known bugs of all parts: each with the verdict that asks for most, and all that it covered."""
    met: dict[str, list[KnownBug]] = {}
    for part in parts:
        for bug in part.known_bugs:
            met.setdefault(bug.name, []).append(bug)
    return [
        structs.replace(
            min(bugs, key=lambda one: (not one.outdated, one.verdict == "not tested", encode_json(one))),
            covered=sum(bug.covered for bug in bugs),
            warning="; ".join(dict.fromkeys(bug.warning for bug in bugs if bug.warning)),
        )
        for bugs in met.values()
    ]


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
