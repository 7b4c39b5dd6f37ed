"""Lines of an engine that have changed in its git checkout, and how many traces run each of them.

    changed_for     finds the checkout of a target, and
    changed_source  the changed statements: from `git diff`, in the files that the engine is imported from
    ChangedTally    counts the traces that ran them, and says by which features they are told

Changed since a branch is what is new since the two parted, as on the page of a pull request: the lines of `git diff`
against the merge base. Only statements in functions count, each by its first line: a trace does not run what runs at
import. A place where lines were only removed counts as the statement before it. Files that git does not know do not
count (`git add -N` makes them known).

With fixes of known bugs the engine runs from a copy in which lines have moved; they are found again by comparing the
texts.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from inspect import CO_OPTIMIZED
from math import log
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from msgspec import Struct

from ...targets.base.git import commit_of, git
from ...targets.base.launch import Launch
from ...targets.base.patched_copy import path_in_packages
from ...targets.base.protocol import TargetError
from ...targets.base.registry import coverage_scope, parse
from ...targets.base.trace import Trace, TraceError
from ..campaign_summary import Changed, ChangedLine
from ..draw.aim import Aim, features_of
from .engine_source import body_lines, functions, is_kernel, statement_of

FILES_MAX = 2000
COMMON = 0.5
"""A line that this share of the traces runs needs no aim."""
FILE_BYTES_MAX = 8 << 20
_DIFF = ("diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--relative")
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


Line = tuple[str, int]
"""A line of the file that the engine is imported from."""


class Place(NamedTuple):
    """A changed statement: where it is in the checkout, and in the file that the engine is imported from.

    `entry` is the first statement of its function there, 0 if that is unknown.
    """

    file: str
    line: int
    path: str
    ran_line: int
    entry: int


class ChangedSource(Struct, frozen=True):
    """The changed statements of an engine. `since` and `unrecorded` as in `Changed`."""

    since: str
    places: tuple[Place, ...]
    unrecorded: int

    @property
    def watched(self) -> dict[str, list[int]]:
        """The lines that a worker records, by file."""
        found: dict[str, set[int]] = {}
        for place in self.places:
            found.setdefault(place.path, set()).update(filter(None, (place.ran_line, place.entry)))
        return {path: sorted(lines) for path, lines in found.items()}


def changed_for(target: str, since: str, unpatched: Launch, launch: Launch) -> ChangedSource:
    """Return what has changed in the checkout of a target since a commit, as it is imported by a launch with fixes.

    Raises TargetError for a target that is no checkout, and as `changed_source` does.
    """
    parsed = parse(target)
    checkout = Path(unpatched.tree if parsed.name == "python" else parsed.version).expanduser().absolute()
    if not (launch.tree and (parsed.name == "python" or (parsed.version and checkout.is_dir()))):
        raise TargetError(f"target {target!r} is no checkout, whose changes git knows: name one, such as vllm@PATH")
    kernels = False
    with suppress(TargetError, TraceError):  # an engine without a list of modules
        kernels = coverage_scope(target).kernels
    return changed_source(checkout, since, Path(launch.tree), kernels=kernels)


def changed_source(checkout: Path, since: str, tree: Path, *, kernels: bool) -> ChangedSource:
    """Return what has changed in a checkout since a commit, in the packages that are imported from `tree`.

    `kernels` if lines of Triton kernels are recorded. Raises TargetError if git or a file refuses.
    """
    base = commit_of(checkout, since)
    with suppress(TargetError):  # a shallow clone has no common commit
        base = git(checkout, "merge-base", base, "HEAD").strip()
    places: list[Place] = []
    unrecorded = 0
    for file, lines in changed_in(git(checkout, *_DIFF, base, "--", "*.py")):
        if not (inside := path_in_packages(file, tree)):
            continue
        text, ran = _text(checkout / file), _text(tree / inside)
        try:
            found, other = _statements(text, lines, kernels=kernels)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise TargetError(f"{checkout / file}: cannot be parsed: {error}") from None
        moved, path = _moved(text, ran), str((tree / inside).resolve())
        places += [Place(file, line, path, moved[line], moved.get(found[line], 0)) for line in found if line in moved]
        unrecorded += other + sum(line not in moved for line in found)
    return ChangedSource(since, tuple(places), unrecorded)


def changed_in(diff: str) -> Iterator[tuple[str, set[int]]]:
    """Yield (path, changed lines) for each file of a diff without context. A removal is the line before it."""
    lines, index, path = diff.split("\n"), 0, ""
    found: dict[str, set[int]] = {}
    while index < len(lines):
        line = lines[index]
        index += 1
        if head := _HUNK.match(line):
            removed, first, added = (1 if one is None else int(one) for one in head.groups())
            if path:
                found.setdefault(path, set()).update(range(first, first + max(added, 1)))
            index += removed + added
        elif line.startswith("+++ "):
            path = line[6:].rstrip("\t\r") if line.startswith("+++ b/") else ""
    if len(found) > FILES_MAX:
        raise TargetError(f"more than {FILES_MAX} files have changed: name a nearer commit")
    yield from found.items()


def _text(path: Path) -> str:
    """Return the text of a source file. Raises TargetError."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise TargetError(f"{path}: more than {FILE_BYTES_MAX} bytes")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: cannot be read as text: {error}") from None


def _statements(source: str, lines: set[int], *, kernels: bool) -> tuple[dict[int, int], int]:
    """Return the changed statements that a trace can run, and how many other lines have code.

    A statement is its first line -> the first line with code in its function.
    """
    first, tree = statement_of(source), ast.parse(source)
    inside, outside = _code_lines(compile(source, "", "exec", dont_inherit=True))
    executable = {first[line] for line in inside if line in first}
    compiled = {
        line for _, one in functions(tree) if is_kernel(one) and not kernels for line in body_lines(one)
    }  # fmt: skip
    found = {first[line] for line in lines if line in first} & executable
    at_import = (lines & outside) - first.keys()
    entries: dict[int, int] = {}
    for _, one in functions(tree):  # nested ones come after theirs
        entry = min(executable.intersection(body_lines(one)), default=0)
        entries |= dict.fromkeys(found.intersection(body_lines(one)), entry)
    return {line: entries[line] for line in sorted(found - compiled)}, len(found & compiled) + len(at_import)


def _code_lines(code: CodeType) -> tuple[set[int], set[int]]:
    """Return the lines of code in functions, and of code that runs at import: modules and bodies of classes."""
    own = {line for _, _, line in code.co_lines() if line}
    inside, outside = (own, set[int]()) if code.co_flags & CO_OPTIMIZED else (set[int](), own)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            nested = _code_lines(constant)
            inside |= nested[0]
            outside |= nested[1]
    return inside, outside


def _moved(before: str, after: str) -> Mapping[int, int]:
    """Return the line of each line in a changed text; none for a line that is gone."""
    old, new = before.splitlines(), after.splitlines()
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks() if old != new else [(0, 0, len(old))]
    return {start + at + 1: other + at + 1 for start, other, size in blocks for at in range(size)}


class ChangedTally:
    """How many traces ran each changed line, and what to aim at. The campaign's lock guards it."""

    def __init__(self, source: ChangedSource, earlier: Changed | None = None) -> None:
        self.source = source
        self._lessons = Lessons()
        self._aimed: Counter[Place] = Counter()
        before = earlier if earlier and earlier.since == source.since else Changed("")
        counts = {(line.file, line.line): line.traces for line in before.lines}
        self._counts = {place: counts.get((place.file, place.line), 0) for place in source.places}
        self._traces = before.traces

    def add(self, ran: Mapping[str, Sequence[int]], trace: Trace | None = None) -> None:
        """Count a trace by the watched lines that it ran, and learn from it."""
        lines = {(path, line) for path, numbers in ran.items() for line in numbers}
        for place in self._counts:
            self._counts[place] += (place.path, place.ran_line) in lines
        self._traces += 1
        if trace:
            self._lessons.add(features_of(trace), lines)

    def aim(self) -> Aim:
        """Return what the next traces are aimed at: a changed line that few of them run, or the function of one that
        none has run; each in its turn."""
        rare = {place: line for place in self.source.places if (line := self._way_to(place))}
        if not rare:
            return {}
        place = min(rare, key=lambda one: (self._aimed[one], self._counts[one]))
        self._aimed[place] += 1
        return self._lessons.weights(rare[place])

    def _way_to(self, place: Place) -> Line | None:
        """Return the changed line, or else the entry of its function, if some traces ran it, but less than half."""
        ways = ((place.path, place.ran_line), (place.path, place.entry))
        way = next((line for line in ways if self._lessons.share(line)), None)
        return way if way and self._lessons.share(way) < COMMON else None

    def result(self) -> Changed:
        """Return the counts so far."""
        lines = [ChangedLine(place.file, place.line, count) for place, count in self._counts.items()]
        return Changed(self.source.since, lines, self.source.unrecorded, self._traces)


class Lessons:
    """Which features traces have that run a line."""

    def __init__(self) -> None:
        self._traces = 0
        self._having: Counter[str] = Counter()
        self._running: Counter[Line] = Counter()
        self._both: dict[Line, Counter[str]] = {}

    def add(self, features: frozenset[str], lines: set[Line]) -> None:
        """Take a trace."""
        self._traces += 1
        self._having.update(features)
        self._running.update(lines)
        for line in lines:
            self._both.setdefault(line, Counter()).update(features)

    def share(self, line: Line) -> float:
        """Return the share of traces that run a line."""
        return self._running[line] / self._traces if self._traces else 0.0

    def weights(self, line: Line) -> Aim:
        """Return the weight of each feature: the logarithm of how much more often the traces have it that run a line,
        with half a trace added to each count."""
        both, running = self._both[line], self._running[line]
        return {
            feature: round(log((both[feature] + 0.5) / (running + 1) * (self._traces + 1) / (having + 0.5)), 3)
            for feature, having in self._having.items()
        }
