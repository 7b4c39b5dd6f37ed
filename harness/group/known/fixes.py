"""Known bugs with a patch: campaigns and gates run with them fixed, and test each night whether they are still there.

The patches of all entries are applied to a copy of the engine's tree (`targets.base.patched_copy`). A patch that
does not fit is left out, which costs this patch alone: its entry then knows failures by its condition or its
signatures. The traces of all entries run on the unpatched tree, too (`check`):

    still there               a trace fails
    fixed upstream            no trace fails: remove the entry
    patch no longer applies   a trace fails, or there is none, and the patch does not fit: adapt the patch
    not fixed by its patch    a trace fails with all patches, too (`check_both`)
    not tested                there is no trace that this target takes

All but the first and the last make an entry *outdated*: a campaign is then incomplete, and its exit status is 3.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from ....targets.base.launch import Launch
from ....targets.base.patched_copy import misfits, patched
from ....targets.base.patches import Patch
from ....targets.base.pip import version_numbers
from ....targets.base.registry import parse
from ....targets.base.trace import TraceError
from ...campaign_summary import KnownBug, Verdict
from ...units import plural
from ...workers.worker_client import WorkerClient
from .known_toml import Known, fitting, load_known

BUILTIN = "builtin"
CORPUS = Path(__file__).parents[3] / "corpus"
KNOWN_FILE = "known.toml"
_FIXES = re.compile(r"(?:^| )\d+ fix(?:es)?$")


class Fixes(Struct, frozen=True):
    """Known bugs of one target, and how to start it with them fixed.

    launch     with all patches that fit
    unpatched  without them; the same if there are none
    entries    all entries for this target and version
    problems   entry -> why its patch is not in effect, by title
    patches    those in effect
    """

    launch: Launch
    unpatched: Launch
    entries: tuple[Known, ...] = ()
    problems: Mapping[str, str] = {}
    patches: tuple[Patch, ...] = ()

    @property
    def in_effect(self) -> tuple[Known, ...]:
        """Entries whose patch is applied: no failure is one of these bugs."""
        return tuple(entry for entry in self.entries if entry.patch and entry.title not in self.problems)

    @property
    def acknowledged(self) -> tuple[Known, ...]:
        """The other entries: they know failures by a condition or by signatures."""
        return tuple(entry for entry in self.entries if not entry.patch or entry.title in self.problems)


def read_fixes(where: str, target: str) -> tuple[Known, ...]:
    """Return the entries of a folder's known.toml, or of a file; for "builtin" those that come with hybridfuzz.

    Raises TraceError if there are none for the target's engine, or if they cannot be read.
    """
    if where != BUILTIN:
        path = Path(where)
        return load_known(path / KNOWN_FILE if path.is_dir() else path)
    path = CORPUS / parse(target).name / KNOWN_FILE
    if not path.exists():
        raise TraceError(f"--fixes {BUILTIN}: hybridfuzz has no known bugs of {parse(target).name}; name a folder")
    return load_known(path)


def packaged_traces(target: str) -> list[Path]:
    """Return the packaged traces of a target's engine.

    One without a folder gets those of `hybrid`: that is hybrid itself, and targets of one's own.
    """
    own = CORPUS / parse(target).name
    return sorted((own if own.is_dir() else CORPUS).glob("*.json"))


def asked_fixes(folders: Sequence[str], target: str, version: str, today: datetime.date) -> list[Known]:
    """Return the entries of the folders that `--fixes` names. Raises TraceError for one with none for this version:
    whoever asks for fixes would otherwise meet the known bugs, and take them for new ones."""
    found: list[Known] = []
    for where in folders:
        entries = read_fixes(where, target)
        if not fitting(entries, target, version, today):
            releases = sorted({one for entry in entries for one in entry.releases}, key=version_numbers)
            has = f"it has some of {', '.join(releases)}" if releases else f"it has {plural(len(entries), 'known bug')}"
            raise TraceError(f"--fixes {where}: no known bug there is one of {target}; {has}")
        found += entries
    return found


def packaged_for(target: str, version: str) -> list[Known]:
    """Return the packaged known bugs of a release; of a checkout those of the newest release that has some."""
    return list(fitting(read_fixes(BUILTIN, target), target, version, datetime.date.today()))


def fixes_in(version: str) -> str:
    """Return the end of a version that names its fixes, "" without any: verdicts hold only for the same fixes."""
    match = _FIXES.search(version)
    return match[0].strip() if match else ""


def once(known: Sequence[Known]) -> list[Known]:
    """Leave out what stands twice, because two settings name the same file."""
    entries: dict[object, Known] = {}
    for entry in known:
        key = (Path(entry.folder).resolve(), entry.title, entry.releases, entry.target, entry.signatures, entry.reason)
        entries.setdefault(key, entry)
    return list(entries.values())


def apply_fixes(launch: Launch, known: Sequence[Known], target: str, today: datetime.date) -> Fixes:
    """Return the known bugs of a target with as many of their patches applied as fit together.

    Of two patches that conflict the first is applied. Raises TraceError or PatchError for a patch that cannot be read,
    TargetError if the overlay cannot be made.
    """
    entries = fitting(once(known), target, launch.version, today)
    patches = [entry.read_patch() for entry in entries if entry.patch]
    for entry in entries:
        entry.read_traces()  # a broken file is reported before the first trace
    if not patches:
        return Fixes(launch, launch, entries)
    problems = misfits(launch, patches)
    fit = tuple(one for one in patches if one.name not in problems)
    return Fixes(patched(launch, fit), launch, entries, problems, fit)


def check(entries: Sequence[Known], problems: Mapping[str, str], worker: WorkerClient) -> Iterator[KnownBug]:
    """Run the traces of entries on the unpatched target, and yield a verdict on each entry.

    Raises what a worker raises, Stopped included. The worker must have been started.
    """
    for entry in entries:
        failed, ran, refused = 0, 0, ""
        for trace in entry.read_traces():
            try:
                outcome = worker.run(trace)
            except TraceError as error:  # another version has other configurations
                refused = str(error)
                continue
            ran += 1
            failed += outcome.violation is not None
        yield verdict_on(entry, problems.get(entry.title, ""), failed=failed, ran=ran, refused=refused)


def check_both(fixes: Fixes, unpatched: WorkerClient, patched: WorkerClient) -> Iterator[KnownBug]:
    """Run the traces of all entries without patches, and those of entries with a patch in effect with all patches, too.

    Raises what a worker raises.
    """
    traced = any(entry.traces for entry in fixes.entries)
    if traced:
        unpatched.start()
    if traced and fixes.in_effect:
        patched.start()
    for entry in fixes.entries:
        [bug] = check([entry], fixes.problems, unpatched)
        if bug.patched and bug.failed:
            violations = [patched.run(trace).violation for trace in entry.read_traces()]
            failing = [violation.signature for violation in violations if violation]
            if failing:
                detail = f"{len(failing)} of {len(violations)} traces fail with all patches, too ({failing[0]})"
                bug = structs.replace(bug, verdict="not fixed by its patch", detail=detail)
        yield bug


def verdict_on(entry: Known, problem: str, *, failed: int, ran: int, refused: str = "") -> KnownBug:
    """Return the verdict on an entry whose traces ran on the unpatched target. `problem` is that of its patch."""
    verdict: Verdict = "still there"
    detail = f"{failed} of {ran} traces fail without the patch" if entry.patch else f"{failed} of {ran} traces fail"
    if ran and not failed:
        verdict, detail = "fixed upstream", "none of its traces fails; remove the entry"
        if problem:
            detail += f" ({problem})"
    elif problem:
        verdict, detail = "patch no longer applies", problem
    elif not ran:
        verdict, detail = "not tested", refused or "it has no trace"
    in_effect = bool(entry.patch) and not problem
    return KnownBug(entry.title, entry.reason, verdict, detail, patched=in_effect, failed=failed, traces=ran)
