"""The packaged known bug that a failure is, and the public reports that it names."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from ...targets.base.trace import Trace, TraceError
from ..draw.trace_files import load_trace
from ..group.known.cause_text import CauseText, read_cause_text
from ..group.known.fixes import BUILTIN, read_fixes
from ..group.known.known_toml import Known, fitting, patch_text

_NUMBER = re.compile(r"#\d+")
_LINK = re.compile(r"\[([^]]+)\]\((?!https?:)([^)]*)\)")
"""A link to a page beside the text."""
_NUMBERED = re.compile(r"\s\((?:(?:see )?causes? \d+(?:(?:, | and )\d+)*|[MS]\d(?: [^()]*)?)\)")
"""Other causes by their numbers, and rules by their ids, in parentheses."""
_CAUSE = re.compile(r"\b([Cc])ause (\d+)\b")
"""Another cause by its number, in a sentence."""


class RelatedEntry(Struct, frozen=True):
    """An entry of hybridfuzz that is this failure; it is no public report.

    patch  the text of its fix, "" without one
    cause  the text that tells its cause, None without one
    others signatures of its other traces, and of entries with the same text
    """

    name: str
    reason: str
    patch: str = ""
    cause: CauseText | None = None
    others: Sequence[str] = ()


def related(target: str, version: str, trace: Trace, name: str = "") -> RelatedEntry | None:
    """Return the entry with this name, or that lists this trace, of whatever release; None if there is none."""
    try:
        every = read_fixes(BUILTIN, target)
    except TraceError:
        return None
    known = fitting(every, target, version, datetime.date.today())
    if exact := next((entry for entry in (*known, *every) if name == entry.title or _lists(entry, trace)), None):
        patch = patch_text(Path(exact.folder) / exact.patch) if exact.patch and exact in known else ""
        return RelatedEntry(exact.title, exact.reason, patch, _cause(exact), _others(exact, every, trace))
    return None


def packaged_trace(target: str, version: str, name: str, signature: str) -> Trace | None:
    """Return the packaged trace of a known bug, which its text is about: one of this release, with this signature or of
    its rule if there is one. None for a bug without a text or traces."""
    entry = next((one for one in _packaged(target, version) if one.title == name and one.text_path), None)
    rule = signature.partition("-")[0]

    def distance(file: str) -> tuple[bool, bool, bool]:
        name = Path(file).name
        its = _signature(name)
        return not name.startswith(f"{version}--"), its != signature, its.partition("-")[0] != rule

    files = sorted(entry.traces, key=distance) if entry else []
    return load_trace(Path(entry.folder) / files[0]) if entry and files else None


def _others(entry: Known, every: Sequence[Known], trace: Trace) -> list[str]:
    """Return the signatures of packaged traces of the same cause, which a trace's file name ends in, but its own."""
    same = [one for one in every if one == entry or (entry.text_path and one.text_path == entry.text_path)]
    files = [(Path(one.folder) / file, one) for one in same for file in one.traces]
    other = [_signature(path.name) for path, one in files if not _is_at(path, trace)]
    return [*dict.fromkeys(other)]


def _signature(name: str) -> str:
    """Return the signature in which the file name of a packaged trace ends."""
    return name.removesuffix(".json").rpartition("--")[2]


def _is_at(path: Path, trace: Trace) -> bool:
    found = load_trace(path)
    return found.config == trace.config and found.events == trace.events


def other_fixes(target: str, version: str, but: str, signature: str) -> list[Known]:
    """Return the packaged known bugs of a release that have a patch, without `but`; first those whose signatures have
    most parts of this one."""
    every = _packaged(target, version)
    parts = set(signature.split("-"))

    def common(entry: Known) -> int:
        return max((len(parts & set(one.split("-"))) for one in entry.signatures), default=0)

    return sorted((one for one in every if one.patch and one.title != but), key=common, reverse=True)


def _packaged(target: str, version: str) -> Sequence[Known]:
    """Return the packaged known bugs of a release, none for a target without any."""
    try:
        return fitting(read_fixes(BUILTIN, target), target, version, datetime.date.today())
    except TraceError:
        return []


def title_of(entry: Known) -> str:
    """Return what an entry is about, in a phrase: the title of its text, else its reason."""
    cause = _cause(entry)
    return cause.title if cause else entry.reason


def public_reports(entry: RelatedEntry) -> list[str]:
    """Return the numbers of the public reports that an entry names."""
    return [*dict.fromkeys(_NUMBER.findall(entry.reason))]


def _cause(entry: Known) -> CauseText | None:
    path = entry.text_path
    if not path or not path.exists():
        return None
    found = read_cause_text(path)
    heading = found.heading.replace("`", "")  # a title is pasted, and shows them
    return structs.replace(found, heading=heading, body=_without_numbers(found.body, path.parent))


def _without_numbers(text: str, folder: Path) -> str:
    """Return a text in which other causes are named by their titles: their numbers and pages are ours."""

    def named(link: re.Match[str]) -> str:
        other = folder / link[2]
        is_cause = link[1].startswith("cause ") and other.suffix == ".md" and other.exists()
        return f'another defect ("{read_cause_text(other).title}")' if is_cause else link[1]

    def by_number(cause: re.Match[str]) -> str:
        titles = {one.number: one.title for one in map(read_cause_text, sorted(folder.glob("*.md")))}
        title = titles.get(int(cause[2]), "")
        told = f'nother defect ("{title}")' if title else "nother defect"
        return ("A" if cause[1] == "C" else "a") + told

    return _CAUSE.sub(by_number, _NUMBERED.sub("", _LINK.sub(named, text))).strip()


def _lists(entry: Known, trace: Trace) -> bool:
    return any(one.config == trace.config and one.events == trace.events for one in entry.read_traces())
