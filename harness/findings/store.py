"""Findings on disk: one trace and one page of text for each signature, and the campaign's state.

    OUT/campaign.json               the summary so far
    OUT/findings/SIGNATURE.json     the smallest trace so far
    OUT/findings/SIGNATURE.txt      what it breaks, why, and how to replay it
    OUT/findings/SIGNATURE.history  the lives of its blocks (`history`), for reports; JSON, but no trace

A finding is on disk before anybody hears of it. Every file is replaced in one go.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from ...targets.base.trace import Trace, TraceError
from ..events import Finding, Summary
from ..explain.history import History
from ..explain.terminal import finding_text
from ..traces.files import load_trace, save_trace, write_atomically
from ..traces.violation import Violation

STATE_FILE = "campaign.json"
HISTORY_SUFFIX = ".history"
NAME_LENGTH_MAX = 120


class OutputError(Exception):
    """The output folder cannot be used; one line."""


def file_name(signature: str) -> str:
    """A signature as the stem of a file name."""
    return re.sub(r"[^\w.@+-]", "_", signature)[:NAME_LENGTH_MAX]


def make_folder(folder: Path, inner: str = "") -> None:
    """Make an output folder, and one in it. OutputError if it cannot be written to."""
    try:
        (folder / inner).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / inner / ".probe", b"")
        (folder / inner / ".probe").unlink(missing_ok=True)  # somebody else may use the folder, too
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another with -o"
        ) from error


def replay_command(target: str, trace: str) -> str:
    """What to type to see a finding again."""
    return shlex.join(["hybridfuzz", "replay", trace, "--target", target])


class FindingStore:
    """The output folder of one campaign. Methods raise OutputError; call them under one lock."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.target = target
        self.findings: dict[str, Finding] = {}
        make_folder(folder, "findings")

    def earlier(self) -> Sequence[Finding]:
        """Findings of an earlier campaign in this folder whose traces are still there."""
        try:
            data = (self.folder / STATE_FILE).read_bytes()
            summary = msgspec.json.decode(data, type=Summary)
        except (OSError, msgspec.DecodeError):
            return []
        return [finding for finding in summary.findings if Path(finding.trace).exists()]

    def claim(self, violation: Violation, index: int, trace: Trace) -> tuple[Finding, Trace | None] | None:
        """Count a violation. None if its signature is known; else it has been saved.

        Also returns the shorter trace that an earlier campaign left under this signature, if there
        is one.
        """
        signature = violation.signature
        if known := self.findings.get(signature):
            self.findings[signature] = structs.replace(known, count=known.count + 1)
            return None
        path = self._path(signature)
        finding = Finding(
            signature=signature,
            oracle=violation.oracle,
            message=violation.message,
            step=violation.step,
            event=violation.event,
            events=len(trace.events),
            trace=str(path),
            index=index,
        )
        earlier = None
        with suppress(TraceError):
            earlier = load_trace(path)
        self._save(finding, violation, trace)
        self.findings[signature] = finding
        return finding, earlier if earlier and len(earlier.events) < len(trace.events) else None

    def improve(self, signature: str, trace: Trace, violation: Violation | None) -> Finding:
        """Replace the trace of a finding. Without its violation the text stays as it is."""
        finding = structs.replace(self.findings[signature], events=len(trace.events))
        if violation:
            finding = structs.replace(finding, message=violation.message, step=violation.step, event=violation.event)
        self._save(finding, violation, trace)
        self.findings[signature] = finding
        return finding

    def explain(self, signature: str, violation: Violation, history: History) -> None:
        """Add the explanation of the smallest trace to its text, and keep what it was made of."""
        finding = self.findings[signature]
        path = Path(finding.trace)
        text = f"{self._text(finding, violation)}\n{finding_text(history)}\n"
        try:
            write_atomically(path.with_suffix(".txt"), text.encode())
            write_atomically(path.with_suffix(HISTORY_SUFFIX), msgspec.json.encode(history))
        except OSError as error:
            raise OutputError(f"cannot write {path.with_suffix('.txt')}: {error.strerror}") from error

    def settle(self, signature: str, *, reproduced: bool, shown: int, tried: int) -> Finding:
        """Note how a finding ended; one that does not show again is not reduced."""
        finding = structs.replace(
            self.findings[signature], reproduced=reproduced, reduced=reproduced, shown=shown, tried=tried
        )
        self.findings[signature] = finding
        return finding

    def save_state(self, summary: Summary) -> None:
        """The campaign so far."""
        data = msgspec.json.format(msgspec.json.encode(summary), indent=1)
        try:
            write_atomically(self.folder / STATE_FILE, data)
        except OSError as error:
            raise OutputError(f"cannot write {self.folder / STATE_FILE}: {error.strerror}") from error

    def _path(self, signature: str) -> Path:
        return self.folder / "findings" / f"{file_name(signature)}.json"

    def _save(self, finding: Finding, violation: Violation | None, trace: Trace) -> None:
        path = self._path(finding.signature)
        try:
            save_trace(trace, path)
            if violation:
                write_atomically(path.with_suffix(".txt"), self._text(finding, violation).encode())
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; lost is a finding ({trace.origin}): {finding.message}"
            ) from error

    def _text(self, finding: Finding, violation: Violation) -> str:
        details = "\n".join(
            f"{name:10} {value}"
            for name, value in structs.asdict(violation).items()
            if name != "message" and value not in ("", -1)
        )
        again = replay_command(self.target, finding.trace)
        return f"{finding.signature}\n\n{finding.message}\n\n{details}\n\nReplay: {again}\n"
