"""Patches to an engine's source: unified diffs, read as data and applied as text.

A patch may come from a stranger. It changes or adds text files and does nothing else: renames, copies, deletions, mode
changes and binary patches are refused, and so is a path that is absolute or contains "..". Limits: 1 MiB, 200 files and
2,000 hunks in a patch, 8 MiB in a file that it changes, 20,000,000 lines searched for hunks not at their lines.

Several patches are all written against the same, unchanged tree. Each is located there by itself: a hunk fits where its
context and the lines that it removes stand, at the line that it names or else at exactly one other place. The changes
are then merged. Hence the order of the patches has no effect, a patch fits or not whatever the others are, and two
patches conflict only if they change the same lines. (`git apply` and `patch` would see the context lines of the second
patch changed by the first; neither is installed everywhere. The `unidiff` package parses, but does not apply.)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, structs

from .protocol import TargetError

PATCH_BYTES_MAX = 1 << 20
FILE_BYTES_MAX = 8 << 20
FILES_MAX = 200
SEARCHED_MAX = 20_000_000
"""Lines that are searched for all hunks of a patch that are not where it says: some seconds."""
HUNKS_MAX = 2000
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_REFUSED = re.compile(
    r"(rename|copy) (from|to) |deleted file mode |(old|new) mode |new file mode 1[26]|GIT binary patch|Binary files "
)
_NAMES = re.compile(r"# names (\S+): ([\w ]+)$")
_PART = re.compile(r"[A-Za-z0-9_.+@-]{1,200}")


class PatchError(TargetError):
    """A patch cannot be read or does not fit; the message is one line that names it."""


class Hunk(Struct, frozen=True):
    """One hunk. `start` is the line of the old file at which `old` is expected, from 0.

    lines   (marker, text): " " for context, "-" for a removed line, "+" for an added one; texts keep their line end
    """

    start: int
    lines: tuple[tuple[str, str], ...]

    @property
    def old(self) -> list[str]:
        """The lines that must be there."""
        return [text for marker, text in self.lines if marker != "+"]


class FilePatch(Struct, frozen=True):
    """The changes to one file; `new` if the patch adds it."""

    path: str
    hunks: tuple[Hunk, ...]
    new: bool = False


class Patch(Struct, frozen=True):
    """A patch. `name` stands in messages; `about` is the text before the first file, with comment signs removed.

    `names` are those that the added lines of a file need, as its head says (`patch_names`).
    """

    name: str
    files: tuple[FilePatch, ...]
    about: str = ""
    names: Mapping[str, tuple[str, ...]] = {}


class Change(NamedTuple):
    """Lines `start` to `stop` of the old file become `text`."""

    start: int
    stop: int
    text: tuple[str, ...]
    patch: str


def _lines(text: str) -> list[str]:
    """Return lines with their ends. Only a newline ends one: Python sources may contain form feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def parse_patch(text: str, name: str) -> Patch:
    """Return a patch read from a unified diff, as `git diff` and `diff -u` write it. Raises PatchError."""
    if len(text) > PATCH_BYTES_MAX:
        raise PatchError(f"patch {name}: more than {PATCH_BYTES_MAX} bytes")
    lines, index = _lines(text), 0
    files: list[FilePatch] = []
    about: list[str] = []
    names: dict[str, tuple[str, ...]] = {}
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if not (line.startswith("--- ") and following.startswith("+++ ")):
            if _REFUSED.match(line):
                raise PatchError(f"patch {name}: line {index + 1}: only text files may be changed or added")
            if _HUNK.match(line):
                raise PatchError(f"patch {name}: line {index + 1}: a hunk without a file")
            if not files and not line.startswith(("diff ", "index ", "new file mode")):
                if said := _NAMES.match(line):
                    names[said[1]] = tuple(said[2].split())
                about.append(line.removeprefix("#").strip())
            index += 1
            continue
        path, is_new = _path(line, following, f"patch {name}: line {index + 1}")
        hunks, index = _hunks(lines, index + 2, name)
        if not hunks:
            raise PatchError(f"patch {name}: {path}: there is no hunk")
        if is_new and (len(hunks) > 1 or hunks[0].old):
            raise PatchError(f"patch {name}: {path}: a new file has one hunk, of added lines")
        if not is_new and not all(hunk.old for hunk in hunks):
            raise PatchError(f"patch {name}: {path}: a hunk has no context, so its place cannot be checked")
        files.append(FilePatch(path, tuple(hunks), is_new))
    paths = [file.path for file in files]
    if not files:
        raise PatchError(f"patch {name}: it is no unified diff: no line with --- and +++")
    if len(set(paths)) < len(paths):
        raise PatchError(f"patch {name}: it has a file twice")
    if len(paths) > FILES_MAX or sum(len(file.hunks) for file in files) > HUNKS_MAX:
        raise PatchError(f"patch {name}: more than {FILES_MAX} files or {HUNKS_MAX} hunks")
    return Patch(name, tuple(files), "\n".join(about).strip(), names)


def _path(old: str, new: str, where: str) -> tuple[str, bool]:
    """Return the path of a file without git's a/ and b/, and True if the patch adds it."""
    first, second = (line[4:].rstrip("\r\n").partition("\t")[0].rstrip() for line in (old, new))
    if second == "/dev/null":
        raise PatchError(f"{where}: a patch may not delete a file")
    is_new = first == "/dev/null"
    if second.startswith("b/") and (is_new or first.startswith("a/")):
        second = second[2:]
    if not all(_PART.fullmatch(part) and part not in (".", "..") for part in second.split("/")):
        raise PatchError(f"{where}: {second[:200]!r} is no relative path of letters, digits and _ . + @ -")
    return second, is_new


def _hunks(lines: Sequence[str], index: int, name: str) -> tuple[list[Hunk], int]:
    """Return the hunks from a line on, and the first line behind them."""
    hunks = []
    while index < len(lines) and (head := _HUNK.match(lines[index])):
        old, new = (1 if head[group] is None else int(head[group]) for group in (2, 3))
        at, index, body = index + 1, index + 1, list[tuple[str, str]]()
        while index < len(lines) and (old > 0 or new > 0 or lines[index].startswith("\\")):
            line = lines[index]
            marker = line[0] if line.strip("\r\n") else " "  # mailers cut off the blank of an empty context line
            if marker == "\\" and body:  # "\ No newline at end of file", about the line before
                body[-1] = body[-1][0], body[-1][1].rstrip("\r\n")
            elif marker in " +-":
                body.append((marker, line[1:] if line.strip("\r\n") else line))
                old, new = old - (marker != "+"), new - (marker != "-")
            else:
                break
            index += 1
        if old or new or not any(marker != " " for marker, _ in body):
            raise PatchError(f"patch {name}: line {at}: the hunk is cut off, or its line numbers do not fit its lines")
        hunks.append(Hunk(max(int(head[1]) - 1, 0), tuple(body)))
    return hunks, index


def with_words(patch: Patch, words: Mapping[str, Mapping[str, str]]) -> Patch:
    """Return a patch with some words exchanged in the lines of each file, by path."""
    files = [
        FilePatch(file.path, tuple(_exchanged(hunk, words[file.path]) for hunk in file.hunks), file.new)
        for file in patch.files
    ]
    return structs.replace(patch, files=tuple(files))


def _exchanged(hunk: Hunk, words: Mapping[str, str]) -> Hunk:
    word = re.compile(r"\w+")
    lines = [(marker, word.sub(lambda one: words.get(one[0], one[0]), text)) for marker, text in hunk.lines]
    return Hunk(hunk.start, tuple(lines))


def has_word(text: str, word: str) -> bool:
    """Return True if a text has a word."""
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def located(patch: Patch, read: Callable[[str], str | None]) -> Iterator[tuple[str, list[Change]]]:
    """Yield (path, changes) for each file of a patch. `read` returns a file's text, None if there is no such file.

    Raises PatchError, in one line, if the patch does not fit.
    """
    searched = 0
    for file in patch.files:
        text = read(file.path)
        if (text is None) != file.new:
            there = "there is no such file" if text is None else "the file is there already"
            raise PatchError(f"patch {patch.name} does not apply: {file.path}: {there}")
        lines, changes, behind = _lines(text or ""), list[Change](), 0
        for number, hunk in enumerate(file.hunks, 1):
            searched += 0 if _is_in_place(lines, hunk, behind) else len(lines)
            if searched > SEARCHED_MAX:
                raise PatchError(
                    f"patch {patch.name}: too many hunks are not at their lines in large files; regenerate the patch"
                )
            start = _place(lines, hunk, behind)
            if start is None:
                wanted = next((one.strip() for one in hunk.old if one.strip()), "")
                raise PatchError(
                    f"patch {patch.name} does not apply: {file.path}: hunk {number} (line {hunk.start + 1}, "
                    f"{wanted[:60]!r}) fits nowhere, or at several places"
                )
            found = list(_changes(hunk, start, patch.name))
            behind = start + len(hunk.old)
            changes += found
        yield file.path, changes


def _place(lines: list[str], hunk: Hunk, least: int) -> int | None:
    """Return the line at which a hunk fits: where it says, else the only other place behind `least`."""
    old = hunk.old
    if not old:  # of a new file
        return 0
    if _is_in_place(lines, hunk, least):
        return hunk.start
    found = list(islice(_occurrences(lines, old, least), 2))
    return found[0] if len(found) == 1 else None


def _is_in_place(lines: Sequence[str], hunk: Hunk, least: int) -> bool:
    return least <= hunk.start and lines[hunk.start : hunk.start + len(hunk.old)] == hunk.old


def _occurrences(lines: Sequence[str], wanted: Sequence[str], first: int) -> Iterator[int]:
    """Yield the places of some lines, from line `first` on.

    In time linear in the number of lines (Knuth, Morris, Pratt): a file of equal lines would take the square.
    """
    borders, matched = [0] * len(wanted), 0
    for at in range(1, len(wanted)):
        while matched and wanted[at] != wanted[matched]:
            matched = borders[matched - 1]
        matched += wanted[at] == wanted[matched]
        borders[at] = matched
    matched = 0
    for at in range(first, len(lines)):
        while matched and (matched == len(wanted) or lines[at] != wanted[matched]):
            matched = borders[matched - 1]
        matched += lines[at] == wanted[matched]
        if matched == len(wanted):
            yield at + 1 - len(wanted)


def _changes(hunk: Hunk, start: int, patch: str) -> Iterator[Change]:
    """Yield the runs of removed and added lines of a hunk that was found at a line."""
    at, first, added, changed = start, start, list[str](), False
    for marker, text in (*hunk.lines, (" ", "")):
        if marker == " ":
            if changed:
                yield Change(first, at, tuple(added), patch)
            at, added, changed = at + 1, [], False
            first = at
        else:
            changed = True
            if marker == "+":
                added.append(text)
            else:
                at += 1


def merged(patches: Sequence[Patch], read: Callable[[str], str | None]) -> Mapping[str, str]:
    """Return the new text of each file that patches change. All are located in the unchanged files.

    Raises PatchError if one does not fit, or if two change the same lines; both are named then.
    """
    by_file: dict[str, list[Change]] = defaultdict(list)
    for patch in patches:
        for path, changes in located(patch, read):
            by_file[path] += changes
    return {path: _applied(read(path) or "", changes, path) for path, changes in by_file.items()}


def _applied(text: str, changes: Sequence[Change], path: str) -> str:
    lines, result, done, before = _lines(text), list[str](), 0, ""
    last = Change(-1, -1, (), "")
    for change in sorted(changes, key=lambda one: one[:2]):
        if change.start < done or change[:2] == last[:2]:
            if change[:3] == last[:3]:  # the very same change
                continue
            raise PatchError(
                f"patches {before} and {change.patch} conflict: {path}: both change line {change.start + 1}"
            )
        result += [*lines[done : change.start], *change.text]
        done, before, last = change.stop, change.patch, change
    return "".join([*result, *lines[done:]])
