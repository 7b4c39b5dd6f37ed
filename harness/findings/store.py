"""The folder of a campaign: its findings and its state.

    OUT/campaign.json               the summary so far
    OUT/findings/SIGNATURE.json     the shortest trace so far
    OUT/findings/SIGNATURE.txt      what it breaks, why, and how to replay it
    OUT/findings/SIGNATURE.history  the lives of its blocks (`explain.history`), for reports; JSON, but not a trace
    OUT/findings/SIGNATURE.unreduced.json   a longer trace of this campaign, until it is decided whether the shorter
                                    one of an earlier campaign still fails

A finding is on disk before it is reported. Every file is replaced in one go, and in an order such that the files of
one finding never contradict each other, even after SIGKILL: text and history are removed before their trace changes
and written after it. A trace on disk is only ever replaced by a shorter one, or by one that fails where it does not.

Paths that a state file names are not trusted: they must be the names that this module gives (`read_state`).
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
from ..quoting import one_line
from ..traces.files import ERROR_LENGTH_MAX, load_trace, read_json, save_trace, write_atomically
from ..traces.violation import Violation

STATE_FILE = "campaign.json"
FINDINGS_FOLDER = "findings"
TEXT_SUFFIX = ".txt"
HISTORY_SUFFIX = ".history"
UNREDUCED_SUFFIX = ".unreduced.json"
NAME_LENGTH_MAX = 120


class OutputError(Exception):
    """An output folder or file cannot be used; the message is one line."""


def file_name(signature: str) -> str:
    """Return a signature as the stem of a file name."""
    return re.sub(r"[^\w.@+-]", "_", signature, flags=re.ASCII)[:NAME_LENGTH_MAX]


def make_folder(folder: Path, inner: str = "") -> None:
    """Make an output folder, and one in it. Raises OutputError if it cannot be written to."""
    try:
        (folder / inner).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / inner / ".probe", b"")
        (folder / inner / ".probe").unlink(missing_ok=True)  # another process may use the folder, too
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another with -o"
        ) from error


def replay_command(target: str, trace: str) -> str:
    """Return the command that runs a finding again."""
    return shlex.join(["hybridfuzz", "replay", trace, "--target", target])


def trace_path(folder: Path, signature: str, named: str) -> Path:
    """Return where the trace of a finding lies that a state file says is at `named`.

    Raises TraceError unless `named` ends in a name that this module gives to the signature: a state file that came
    with a pull request must not make us read or write elsewhere.
    """
    stem = file_name(signature)
    *_, parent, name = ("", *Path(named).parts) if named else ("", "", "")
    if parent != FINDINGS_FOLDER or name not in (f"{stem}.json", stem + UNREDUCED_SUFFIX):
        raise TraceError(f"finding {signature!r}: {named!r} is not a trace in {FINDINGS_FOLDER}/")
    return folder / FINDINGS_FOLDER / name


def read_state(folder: Path) -> Summary | None:
    """Return the state of the campaign in a folder, None where there is none.

    Each finding's `trace` and `events` are those of the file that is there now; findings whose trace is gone are left
    out. Raises TraceError for a file that cannot be read or that names other files.
    """
    path = folder / STATE_FILE
    summary = read_json(path, Summary, "a state file", "; move it away, or choose another folder with -o")
    if summary is None:
        return None
    try:
        findings = [found for finding in summary.findings if (found := _on_disk(folder, finding))]
    except TraceError as error:
        raise TraceError(f"{path}: {one_line(str(error), ERROR_LENGTH_MAX)}") from None
    return structs.replace(summary, findings=findings)


def _on_disk(folder: Path, finding: Finding) -> Finding | None:
    """Return a finding with the path and length of its trace as it is on disk, None if there is no such file."""
    path = trace_path(folder, finding.signature, finding.trace)
    if not path.exists():  # it was reduced below, or replaced, just before the process was killed
        path = path.with_name(f"{file_name(finding.signature)}.json")
    if not path.exists():
        return None
    try:
        events = len(load_trace(path).events)
    except TraceError:
        return structs.replace(finding, trace=str(path))  # reported when it is needed
    return structs.replace(finding, trace=str(path), events=events)


class FindingStore:
    """The output folder of one campaign. Methods raise OutputError; call them under one lock."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self.target = target
        self.findings: dict[str, Finding] = {}
        make_folder(folder, FINDINGS_FOLDER)

    def resume(self, findings: Sequence[Finding]) -> None:
        """Take over the findings of a campaign that is being resumed, and complete their files."""
        for finding in findings:
            self.findings[finding.signature] = finding
            if not Path(finding.trace).with_suffix(TEXT_SUFFIX).exists():
                self._write_text(finding, self._text(finding, None))

    def claim(
        self, violation: Violation, index: int, trace: Trace, known: str = ""
    ) -> tuple[Finding, Trace | None] | None:
        """Count a violation. Returns None if its signature has been met already; else it has been saved.

        Also returns the shorter trace that an earlier campaign left under this signature, if there is one. `known` is
        the reason for which this is not a new finding, "" for a new one.
        """
        signature = violation.signature
        if met := self.findings.get(signature):
            self.findings[signature] = structs.replace(met, count=met.count + 1)
            return None
        path, earlier = self._path(signature), None
        with suppress(TraceError):
            earlier = load_trace(path)
        if earlier and len(earlier.events) >= len(trace.events):
            earlier = None
        finding = Finding(
            signature=signature,
            oracle=violation.oracle,
            message=violation.message,
            step=violation.step,
            event=violation.event,
            events=len(trace.events),
            trace=str(path.with_suffix(UNREDUCED_SUFFIX) if earlier else path),
            index=index,
            known=known,
        )
        self._save(finding, violation, trace)
        self.findings[signature] = finding
        return finding, earlier

    def repeat(self, signature: str, times: int) -> None:
        """Count further failing traces of a signature that was met before."""
        met = self.findings[signature]
        self.findings[signature] = structs.replace(met, count=met.count + times)

    def improve(self, signature: str, trace: Trace, violation: Violation | None) -> Finding:
        """Replace the trace of a finding. Without its violation the text is short."""
        before = self.findings[signature]
        finding = structs.replace(before, events=len(trace.events), trace=str(self._path(signature)))
        if violation:
            finding = structs.replace(finding, message=violation.message, step=violation.step, event=violation.event)
        self._save(finding, violation, trace)
        self.findings[signature] = finding
        if before.trace != finding.trace:
            self._remove(Path(before.trace))
        return finding

    def explain(self, signature: str, violation: Violation, history: History, text: str) -> None:
        """Add the explanation (`text`) of the shortest trace to its text file, and keep its history."""
        finding = self.findings[signature]
        path = Path(finding.trace)
        self._write_text(finding, f"{self._text(finding, violation)}\n{text}\n")
        self._write(path.with_suffix(HISTORY_SUFFIX), msgspec.json.encode(history))

    def settle(self, signature: str, *, reproduced: bool, shown: int, tried: int) -> Finding:
        """Record how the investigation of a finding ended; one that did not fail again is not reduced."""
        finding = structs.replace(
            self.findings[signature], reproduced=reproduced, reduced=reproduced, shown=shown, tried=tried
        )
        unreduced = Path(finding.trace)
        if unreduced.name.endswith(UNREDUCED_SUFFIX):  # the shorter one of an earlier campaign does not fail any more
            finding = structs.replace(finding, trace=str(self._path(signature)))
            self._remove_companions(finding)
            try:
                unreduced.replace(finding.trace)
            except OSError as error:
                raise OutputError(f"cannot write {finding.trace}: {error.strerror}") from error
            self._remove(unreduced)
            self._write_text(finding, self._text(finding, None))
        self.findings[signature] = finding
        return finding

    def save_state(self, summary: Summary) -> None:
        """Write the state of the campaign."""
        self._write(self.folder / STATE_FILE, msgspec.json.format(msgspec.json.encode(summary), indent=1))

    def _path(self, signature: str) -> Path:
        return self.folder / FINDINGS_FOLDER / f"{file_name(signature)}.json"

    def _save(self, finding: Finding, violation: Violation | None, trace: Trace) -> None:
        path = Path(finding.trace)
        try:
            self._remove_companions(finding)
            save_trace(trace, path)
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}; the finding that is lost ({trace.origin}): {finding.message}"
            ) from error
        self._write_text(finding, self._text(finding, violation))

    def _write_text(self, finding: Finding, text: str) -> None:
        self._write(_companion(finding.trace, TEXT_SUFFIX), text.encode())

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_atomically(path, data)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error

    def _remove_companions(self, finding: Finding) -> None:
        for suffix in (TEXT_SUFFIX, HISTORY_SUFFIX):
            _companion(finding.trace, suffix).unlink(missing_ok=True)

    def _remove(self, trace: Path) -> None:
        for path in (_companion(trace, TEXT_SUFFIX), _companion(trace, HISTORY_SUFFIX), trace):
            path.unlink(missing_ok=True)

    def _text(self, finding: Finding, violation: Violation | None) -> str:
        details = "\n".join(
            f"{name:10} {value}"
            for name, value in (structs.asdict(violation) if violation else {}).items()
            if name != "message" and value not in ("", -1)
        )
        again = f"{finding.events} events. Replay: {replay_command(self.target, finding.trace)}"
        return "\n\n".join(filter(None, [finding.signature, finding.message, details, again])) + "\n"


def _companion(trace: str | Path, suffix: str) -> Path:
    """Return the path of a file that goes with a trace."""
    return Path(trace).with_suffix(suffix)
