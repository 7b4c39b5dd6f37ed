"""Known bugs, listed in known.toml: a run fails only for new ones.

[[known]]
name = "published-then-preempted"             # for tables; by default the patch's or the first trace's name
reason = "vLLM #57580"                        # required
target = "vllm*"                              # optional; * and ? as in a shell
releases = [">=0.30,<0.33", "0.33.*"]         # optional: a release, a range, or * and ? as in a shell (`fitting`)
patch = "fixes/published.patch"               # the target runs with this patch (`group.known.fixes`)
text = "fixes/published.md"                   # tells the cause; by default the file beside the patch, with .md
traces = ["traces/published.json"]            # they fail as long as the target has the bug
condition = { facts = ["..."] }               # circumstances under which it shows; needs traces
signature = "M2-step-mamba-key"               # or a list; * and ? as in a shell
expires = 2027-01-31                          # from this day on the entry has no effect

An entry needs a patch, a signature or a condition; a condition needs traces. While its patch is in effect, the rest of
the entry has no effect: a failure is then new, whatever its signature. With a condition and no patch in effect it
recognizes a failing trace by its evidence. With neither it takes every failure with its signature for its bug: that
hides other bugs, so campaigns report how many traces it has covered, and warn if it never expires or if its share
changes by much.

The file may come with a pull request: it is read up to 1 MiB, each entry needs a reason, a pattern of signatures
that is not of one oracle is refused, and paths are relative to the file and stay below its folder.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath

import msgspec
from msgspec import Struct, structs
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ....targets.base.patches import PATCH_BYTES_MAX, Patch, parse_patch
from ....targets.base.pip import version_numbers
from ....targets.base.trace import Trace, TraceError
from ...draw.trace_files import file_name, load_trace, read_json, read_regular, read_toml, write_atomically
from ...quoting import clean, one_line, toml_string
from ..causes.evidence import EVIDENCE_SUFFIX, Condition, FindingEvidence
from ..findings.finding_store import OutputError, make_folder

KNOWN_BYTES_MAX = 1 << 20
ENTRIES_MAX = 10_000
TEXT_MAX = 500
TRACES_MAX = 100
FILES = "known"
"""Folder beside known.toml for the files of entries that `append_entry` writes."""
_WILDCARDS = "*?[]!- "
_NAME = re.compile(r"[\w.:@+*?\[\]!, -]{1,200}")
_PATTERN_PARTS = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
"""A set in brackets, or one character."""
ORACLES_SHOWN = 4
_NAMED = re.compile(r"\d[\w.]*")
"""A release in a range."""
_RELEASE = re.compile(r"\d+(\.\d+)+[\w.+]*")


class Known(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One known bug. `folder` is that of the file, to which `patch`, `text` and `traces` are relative; no key of
    the file."""

    reason: str
    signature: str | tuple[str, ...] = ()
    target: str = "*"
    name: str = ""
    releases: tuple[str, ...] = ()
    patch: str = ""
    text: str = ""
    traces: tuple[str, ...] = ()
    condition: Condition | None = None
    expires: datetime.date | None = None
    folder: str = ""

    @property
    def title(self) -> str:
        """The name in tables and messages."""
        named = self.patch or (self.traces[0] if self.traces else "")
        return self.name or PurePosixPath(named).stem or ", ".join(self.signatures)

    @property
    def text_path(self) -> Path | None:
        """Where the cause is told, if it is: `text`, else the file beside the patch; None without either."""
        if self.text:
            return Path(self.folder) / self.text
        return (Path(self.folder) / self.patch).with_suffix(".md") if self.patch else None

    @property
    def signatures(self) -> tuple[str, ...]:
        """The patterns of signatures."""
        return (self.signature,) if isinstance(self.signature, str) else self.signature

    @property
    def is_bare(self) -> bool:
        """True if a signature is all that it goes by while its patch is not in effect."""
        return bool(self.signatures) and self.condition is None

    def covers(self, signature: str, target: str) -> bool:
        """Return True if this entry goes by the signature alone, and a failure on a target has it."""
        return self.is_bare and self.has_symptom(signature, target)

    def has_symptom(self, signature: str, target: str) -> bool:
        """Return True if the signature of a failure on a target is one of this bug's."""
        wanted = any(fnmatchcase(signature, pattern) for pattern in self.signatures)
        return wanted and fnmatchcase(target, self.target)

    def expired(self, today: datetime.date) -> bool:
        """Return True if the entry has no effect any more."""
        return self.expires is not None and today >= self.expires

    def read_patch(self) -> Patch:
        """Return the patch. Raises TraceError or PatchError, in one line, if it cannot be used."""
        data = read_regular(Path(self.folder) / self.patch, PATCH_BYTES_MAX, "a patch")
        try:
            return parse_patch(data.decode("utf-8"), self.title)
        except UnicodeDecodeError as error:
            raise TraceError(f"patch {self.title}: {error}") from None

    def read_traces(self) -> list[Trace]:
        """Return the traces. Raises TraceError, in one line, if one cannot be used."""
        return [load_trace(Path(self.folder) / trace) for trace in self.traces]


def patch_text(path: Path) -> str:
    """Return the text of a patch. Raises TraceError. What is not UTF-8 is replaced: it may not be applied."""
    return read_regular(path, PATCH_BYTES_MAX, "a patch").decode("utf-8", "replace")


def patch_from(path: Path, name: str) -> Patch:
    """Return the patch in a file that a user names. Raises TraceError or PatchError, in one line."""
    return parse_patch(patch_text(path), name)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    known: tuple[Known, ...] = ()


def load_known(path: Path) -> tuple[Known, ...]:
    """Read a file. Raises TraceError, in one line, if it cannot be used."""
    table, where = read_toml(path, KNOWN_BYTES_MAX, "known bugs"), clean(str(path))
    try:
        entries = msgspec.convert(table, _File).known
    except ValueError as error:
        raise TraceError(f"{where}: {one_line(str(error), TEXT_MAX)}") from None
    if len(entries) > ENTRIES_MAX:
        raise TraceError(f"{where}: {len(entries)} entries; at most {ENTRIES_MAX} are read")
    titles: set[tuple[str, ...]] = set()
    for number, entry in enumerate(entries, 1):
        if problem := _problem(entry):
            raise TraceError(f"{where}: entry {number}: {problem}")
        if (key := (entry.title, *entry.releases)) in titles and entry.patch:
            raise TraceError(f"{where}: entry {number}: an earlier one is called {entry.title!r}, too; give it a name")
        titles.add(key)
    return tuple(structs.replace(entry, folder=str(path.parent)) for entry in entries)


def _problem(entry: Known) -> str:
    """Return why an entry cannot be used; empty if it can."""
    shown = repr((entry.title or entry.reason)[:TEXT_MAX])
    if not entry.reason.strip():
        return f"{'signature' if entry.signatures else 'entry'} {shown} has no reason; name the issue that tracks it"
    if not (entry.patch or entry.condition or entry.signatures):
        return f"{shown} has neither a patch nor a condition nor a signature: it would cover nothing"
    if entry.condition and not entry.traces:
        return f"{shown} has a condition but no traces to compare with: the condition would cover nothing; name traces"
    for pattern in entry.signatures:
        if not pattern.strip(_WILDCARDS):
            return f"signature {pattern[:TEXT_MAX]!r} covers every bug; name at least an oracle, such as 'M2-*'"
        if len(oracles := _oracles_of(pattern)) > 1:
            named = ", ".join(oracles[:ORACLES_SHOWN]) + (", ..." if len(oracles) > ORACLES_SHOWN else "")
            return f"signature {pattern[:TEXT_MAX]!r} covers bugs of {named}; write one for each oracle, such as 'M2-*'"
    if not entry.target.strip():
        return "its target is empty; leave it out for every target"
    texts = (*entry.signatures, *entry.releases, entry.reason, entry.target, entry.name)
    if max(map(len, texts)) > TEXT_MAX:
        return f"a text is longer than {TEXT_MAX} characters"
    if entry.name and not _NAME.fullmatch(entry.name):
        return f"name {entry.name[:TEXT_MAX]!r}: use letters, digits and _ . : @ + -"
    if entry.folder:
        return "there is no key 'folder'"
    for pattern in entry.releases:
        try:
            fits_release(pattern, "0")
        except InvalidSpecifier:
            return f"releases {pattern[:TEXT_MAX]!r}: write a release, a range such as '>=0.30,<0.33', or '0.33.*'"
    if len(entry.traces) > TRACES_MAX:
        return f"{shown} has more than {TRACES_MAX} traces"
    for path in filter(None, (entry.patch, entry.text, *entry.traces)):
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts or "\0" in path or len(path) > TEXT_MAX:
            return f"{path[:TEXT_MAX]!r} does not stay below the folder of this file"
    return ""


def _oracles_of(pattern: str) -> list[str]:
    """Return the oracles whose signatures a pattern may match: its beginning, up to the first *, fits "ORACLE-"."""
    from ...judge.oracles import oracle_ids

    beginning = list(takewhile(lambda part: part != "*", _PATTERN_PARTS.findall(pattern)))
    return [
        oracle
        for oracle in oracle_ids()
        if all(fnmatchcase(letter, part) for letter, part in zip(f"{oracle}-", beginning, strict=False))
    ]


def fits_release(pattern: str, release: str) -> bool:
    """Return True if a release is among those of a pattern: a range (PEP 440), or * and ? as in a shell. Raises
    InvalidSpecifier for a range that cannot be read."""
    if _is_range(pattern):
        return SpecifierSet(pattern).contains(release, prereleases=True)
    return fnmatchcase(release, pattern)


def _is_range(pattern: str) -> bool:
    return pattern.startswith(("<", ">", "=", "!", "~"))


def fitting(known: Sequence[Known], target: str, version: str, today: datetime.date) -> tuple[Known, ...]:
    """Return the entries for a target and its version that have not expired.

    A version that is no release number is a checkout's: of the entries with releases those of the newest one that is
    named fit. So they do for a release that is newer than all of them, except that a range or a pattern decides for
    itself: which bugs it still has, and which patches apply, is found by trying.
    """
    number = match[0] if (match := _RELEASE.match(version)) else ""
    patterns = [pattern for entry in known if fnmatchcase(target, entry.target) for pattern in entry.releases]
    named = [name for one in patterns for name in (_NAMED.findall(one) if _is_range(one) else [one])]
    newest = max(named, key=version_numbers, default="")
    is_newer = bool(named) and version_numbers(number) > version_numbers(newest)

    def fits(pattern: str) -> bool:
        """Return True if a pattern of an entry is for this version."""
        if number and (not is_newer or _is_range(pattern) or set(pattern) & set("*?[")):
            return fits_release(pattern, number)
        return fits_release(pattern, newest) or version_numbers(pattern) == version_numbers(newest)

    return tuple(
        entry
        for entry in known
        if fnmatchcase(target, entry.target)
        and not entry.expired(today)
        and (not entry.releases or any(map(fits, entry.releases)))
    )


def entry_for(
    *,
    name: str,
    reason: str,
    target: str,
    signatures: Sequence[str],
    expires: datetime.date | None,
    patch: Path | None,
    traces: Sequence[Path],
) -> Known:
    """Return an entry for a finding with the paths that `append_entry` gives to its files.

    The condition is the one learned for the finding (`findings/NAME.evidence`), if there is one.
    """
    stem, condition = file_name(name), None
    evidence = read_json(traces[0].with_suffix(EVIDENCE_SUFFIX), FindingEvidence, "evidence")
    if evidence and (evidence.condition.switches or evidence.condition.facts):
        condition = evidence.condition
    return Known(
        name=name,
        reason=reason,
        target=target,
        signature=tuple(signatures),
        expires=expires,
        patch=f"{FILES}/{stem}.patch" if patch else "",
        traces=tuple(f"{FILES}/{stem}-{number}.json" for number in range(1, len(traces) + 1)),
        condition=condition,
    )


def append_entry(path: Path, entry: Known, *, patch: Path | None, traces: Sequence[Path]) -> None:
    """Copy the files of an entry beside known.toml, and append the entry. Raises TraceError or OutputError."""
    before = load_known(path) if path.exists() else ()
    if any(one.title == entry.title for one in before):
        raise TraceError(f"{path}: there is an entry {entry.title!r} already; remove it first")
    if problem := _problem(entry):
        raise TraceError(f"{path}: {problem}")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = ["[[known]]", f"name = {_toml(entry.name)}", f"reason = {_toml(entry.reason)}"]
    lines += [f"target = {_toml(entry.target)}", f"signature = {_toml(entry.signatures)}"]
    lines += [f"patch = {_toml(entry.patch)}"] if entry.patch else []
    lines += [f"traces = {_toml(entry.traces)}"]
    if entry.condition:
        condition = entry.condition
        switches = ", ".join(f"{_toml(key)} = {_toml(values)}" for key, values in condition.switches.items())
        facts, traits = _toml(condition.facts), _toml(condition.traits)
        lines += [f"condition = {{ switches = {{ {switches} }}, facts = {facts}, traits = {traits} }}"]
    lines += [f"expires = {entry.expires.isoformat()}"] if entry.expires else []
    block = "\n".join(lines) + "\n"
    make_folder(path.absolute().parent, FILES)
    try:
        copies = [*zip(entry.traces, traces, strict=True), *([(entry.patch, patch)] if patch else [])]
        for name, source in copies:
            write_atomically(path.parent / name, source.read_bytes())
        write_atomically(path, (f"{text.rstrip()}\n\n{block}" if text.strip() else block).encode())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def take_over(path: Path, entry: Known) -> None:
    """Append an entry of another file to one's own, for every release, and copy its files. Raises as `append_entry`."""
    source, title = Path(entry.folder), entry.title
    traces = [source / trace for trace in entry.traces]
    own = structs.replace(
        entry,
        name=title,
        releases=(),
        folder="",
        patch=f"{FILES}/{title}.patch" if entry.patch else "",
        traces=tuple(f"{FILES}/{title}-{number}.json" for number in range(1, len(traces) + 1)),
    )
    append_entry(path, own, patch=source / entry.patch if entry.patch else None, traces=traces)


def _toml(value: str | Sequence[str]) -> str:
    """Return a string or a list of strings in TOML."""
    if isinstance(value, str):
        return toml_string(value)
    return f"[{', '.join(map(_toml, value))}]"


def reason_for(known: Sequence[Known], signature: str, target: str) -> str:
    """Return the reason of the entry that knows a failure by its signature alone; empty if none does."""
    return next((one.reason for one in known if one.covers(signature, target)), "")
