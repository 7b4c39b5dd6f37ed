"""All lines that the traces of a campaign reached, merged over its workers and kept on disk.

    OUT/coverage/lines.json

They are written before the state that counts their traces, so a campaign that was killed loses no line of a counted
trace; lines of traces that were not counted yet are found again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ...targets.base.trace import TraceError
from ..draw.trace_files import read_json, write_atomically

COVERAGE_FOLDER = "coverage"
LINES_FILE = "lines.json"


class SavedLines(Struct, frozen=True):
    """The content of the file.

    traces    traces that ran while lines were recorded
    lines     lines by module, ascending
    """

    target: str
    version: str
    seed: int
    traces: int
    lines: Mapping[str, Sequence[int]]


def lines_file(folder: Path) -> Path:
    """Return where the lines of a campaign's folder are."""
    return folder / COVERAGE_FOLDER / LINES_FILE


def load_lines(folder: Path) -> SavedLines | None:
    """Return the lines of a campaign's folder, None where there are none. Raises TraceError for a broken file."""
    return read_json(lines_file(folder), SavedLines, "reached lines", "; move it away, or choose another folder")


class ReachedLines:
    """The lines so far. The campaign's lock guards it."""

    def __init__(self, folder: Path, target: str, version: str, seed: int) -> None:
        self._folder, self._target, self._version, self._seed = folder, target, version, seed
        self._lines: dict[str, set[int]] = {}
        self._traces = 0
        self._total = 0
        self._changed = True

    def resume(self, counted: int) -> None:
        """Take over the lines of the folder's campaign, of which `counted` traces are counted.

        Raises TraceError if the file is of another campaign.
        """
        saved = load_lines(self._folder)
        if saved is None:  # it began without recording
            return
        if (saved.target, saved.version, saved.seed) != (self._target, self._version, self._seed):
            raise TraceError(f"{lines_file(self._folder)}: of another campaign; move it away, or use --fresh")
        self.add(saved.lines)
        self._traces = min(saved.traces, counted)

    @property
    def total(self) -> int:
        """Number of lines."""
        return self._total

    def trace_ended(self) -> None:
        """Count a trace that ran while lines were recorded."""
        self._traces += 1
        self._changed = True

    def add(self, lines: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """Add lines of one worker. Return those that no trace has reached before."""
        found: dict[str, list[int]] = {}
        for module, numbers in lines.items():
            known = self._lines.setdefault(module, set())
            if new := set(numbers) - known:
                known |= new
                self._total += len(new)
                found[module] = sorted(new)
        return found

    def save(self) -> None:
        """Write the file if anything has changed. Raises OSError."""
        if not self._changed:
            return
        lines = {module: sorted(numbers) for module, numbers in sorted(self._lines.items())}
        saved = SavedLines(self._target, self._version, self._seed, self._traces, lines)
        path = lines_file(self._folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(saved))
        self._changed = False
