"""The folder of a campaign: its findings and its state.

    OUT/campaign.json          the summary so far
    OUT/findings/NAME.json     the shortest trace so far
    OUT/findings/NAME.txt      what it breaks, why, and how to replay it
    OUT/findings/NAME.history  the lives of its blocks (`record.history`), for reports; JSON, but not a trace
    OUT/findings/NAME.evidence what is known about its cause (`group.causes.evidence`); JSON, but not a trace
    OUT/findings/NAME.also-1.json   a further trace of the same cause, up to four of them
    OUT/waiting/SEED-INDEX.json        a failing trace that nobody has looked into yet (`campaign.backlog`)
    OUT/findings/NAME.unreduced.json   a longer trace of this campaign, until it is decided whether the shorter one of
                               an earlier campaign still fails

A finding is one cause. Its name is the signature of its first trace; a further cause behind the same signature gets
".2", ".3", ... A trace whose cause is not known yet counts for the finding of its signature, as *unsorted*; sorting
moves it (`sort`), and two findings that turn out to have one cause become one (`merge`).

A finding is on disk before it is reported. Every file is replaced in one go, and in an order such that the files of
one finding never contradict each other, even after SIGKILL: text and history are removed before their trace changes
and written after it. A trace on disk is only ever replaced by a shorter one, or by one that fails where it does not.

Paths that a state file names are not trusted: they must be the names that this module gives (`read_state`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path

import msgspec
from msgspec import structs

from ....targets.base.registry import describe
from ....targets.base.trace import Trace, TraceError
from ...campaign_summary import Cause, Finding, Severity, Summary
from ...draw.trace_files import (
    ERROR_LENGTH_MAX,
    NAME_LENGTH_MAX,
    encode_json,
    file_name,
    load_trace,
    read_json,
    read_regular,
    save_trace,
    write_atomically,
)
from ...judge.oracles import consequence_of
from ...judge.violation import Violation
from ...quoting import one_line, terminal_line, terminal_text
from ...record.history import History
from ..causes.evidence import EVIDENCE_SUFFIX, EXTRA_TRACES_MAX, FindingEvidence
from .severity import joined, severity_known, severity_words

STATE_FILE = "campaign.json"
FINDINGS_FOLDER = "findings"
WAITING_FOLDER = "waiting"
OWN_FOLDERS = (FINDINGS_FOLDER, "corpus", "coverage", "hypothesis", "parts", WAITING_FOLDER)
"""All folders that this program writes to in an output folder."""
TEXT_SUFFIX = ".txt"
TEXT_BYTES_MAX = 1 << 20
_REPLAY = "Replay: "
"""What stands before the command in the text of a finding."""
_SEVERITY = "Severity: "
"""What the paragraph of a finding's text begins with that says how much it matters."""
HISTORY_SUFFIX = ".history"
UNREDUCED_SUFFIX = ".unreduced.json"
EXTRA_SUFFIX = ".also-{}.json"
EVIDENCE_BYTES_MAX = 4 << 20
POSITIONS_MAX = 10**12
"""Of the traces of a campaign: at a thousand in a second, those of thirty years."""


class OutputError(Exception):
    """An output folder or file cannot be used; the message is one line."""


def refuse_links(folder: Path) -> None:
    """Raise OutputError if one of `OWN_FOLDERS`, or a folder below it, is a symbolic link.

    The folder may be a stranger's: what is written to such a link, renamed or removed there would lie elsewhere.
    """
    for name in OWN_FOLDERS:
        _refuse_link(folder / name)
        for parent, folders, _ in os.walk(folder / name):
            for inner in folders:
                _refuse_link(Path(parent, inner))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise OutputError(f"{path} is a symbolic link, which may lead elsewhere; remove it, or choose another folder")


def make_folder(folder: Path, inner: str = "") -> None:
    """Make an output folder, and one in it. Raises OutputError if it cannot be written to, or if a part of `inner` is
    a symbolic link."""
    for place in (Path(inner), *Path(inner).parents)[:-1]:
        _refuse_link(folder / place)
    try:
        (folder / inner).mkdir(parents=True, exist_ok=True)
        write_atomically(folder / inner / ".probe", b"")
        (folder / inner / ".probe").unlink(missing_ok=True)  # another process may use the folder, too
    except OSError as error:
        raise OutputError(
            f"cannot write to the output folder {folder}: {error.strerror}; choose another with -o"
        ) from error


def replay_command(target: str, trace: str, fixes: Sequence[str] = ()) -> str:
    """Return the command that runs a finding again, behind fixes as `--fixes` takes them."""
    return shlex.join(["hybridfuzz", "replay", trace, "--target", target, *fixes_options(fixes)])


def fixes_options(fixes: Sequence[str]) -> list[str]:
    """Return the options of a command that runs behind fixes."""
    return [word for where in fixes for word in ("--fixes", where)]


def fixes_asked(asked: Sequence[str]) -> list[str]:
    """Return the fixes among the options of a campaign's command."""
    return [where for option, where in pairwise(asked) if option == "--fixes"]


def replay_of(finding: Finding, target: str, asked: Sequence[str]) -> str:
    """Return the command that runs the trace of a campaign's finding again, as the campaign ran it. `asked`: options of
    the campaign's command (`Summary.asked`)."""
    return replay_command(target, finding.trace, fixes_asked(asked))


def moved_text(text: str, target: str, trace: str) -> str:
    """Return the text of a finding whose trace lies elsewhere now."""
    before, mark, after = text.partition(_REPLAY)
    line, _, rest = after.partition("\n")
    _, option, behind = line.partition(" --fixes ")
    return f"{before}{mark}{replay_command(target, trace)}{option}{behind}\n{rest}" if mark else text


def cause_words(cause: Cause) -> str:
    """Return the known bug that explains a finding, in a few words."""
    if not cause.name:
        return "one of the causes whose fixes are packaged, not settled which"
    number = f"cause {cause.number}, " if cause.number else ""
    phrase = f" ({cause.phrase})" if cause.phrase else ""
    return f"{number}{cause.name}{phrase}; fix packaged"


def title_line(finding: Finding) -> str:
    """Return what a finding is called: how much it matters, what goes wrong, then its name with the implementation and
    the model."""
    known = severity_known(finding)
    level = f"{known.level} " if known and known.level else ""
    if not finding.phrase:
        return level + (f"{finding.id} ({finding.setting})" if finding.setting else finding.id)
    return f"{level}{finding.phrase} ({'; '.join(filter(None, [finding.id, finding.setting]))})"


def setting_of(target: str, trace: Trace) -> str:
    """Return the implementation that a trace selects, and the model that it stands for; "" if there is one of each."""
    options, server = trace.config.options, describe(target, trace)
    titles = [one.title for one in server.implementations if one.options.items() <= options.items()]
    models = [name for name in server.command[-1:] if "/" in name]
    return ", ".join([*titles, *models])


def trace_path(folder: Path, finding: str, named: str) -> Path:
    """Return where a trace of a finding lies that a state file says is at `named`.

    Raises TraceError unless `named` ends in a name that this module gives to a trace of the finding with this name: a
    state file that came with a pull request must not make us read or write elsewhere.
    """
    stem = file_name(finding)
    allowed = [f"{stem}.json", stem + UNREDUCED_SUFFIX]
    allowed += [f"{stem}{EXTRA_SUFFIX.format(number)}" for number in range(1, EXTRA_TRACES_MAX + 1)]
    *_, parent, name = ("", *Path(named).parts) if named else ("", "", "")
    if parent != FINDINGS_FOLDER or name not in allowed:
        raise TraceError(f"finding {finding!r}: {named!r} is not a trace in {FINDINGS_FOLDER}/")
    return folder / FINDINGS_FOLDER / name


def read_state(folder: Path, *, damaged_too: bool = False) -> Summary | None:
    """Return the state of the campaign in a folder, None where there is none.

    Each finding's `trace` and `events` are those of the file that is there now; findings whose trace is gone are left
    out unless `damaged_too`. Older versions counted refused traces among `traces`: that is put right. Raises TraceError
    for a file that cannot be read, that names other files, or that counts what cannot be.
    """
    path, cure = folder / STATE_FILE, "; move it away, or choose another folder with -o"
    summary = read_json(path, Summary, "a state file", cure)
    if summary is None:
        return None
    try:
        check_counted(summary)
        found = [_on_disk(folder, finding) for finding in summary.findings]
    except TraceError as error:
        raise TraceError(f"{path}: {one_line(str(error), ERROR_LENGTH_MAX)}{cure}") from None
    counted = summary.done + sum(stop - start for start, stop in summary.beyond)
    traces = summary.traces - (summary.refused if summary.traces == counted else 0)
    findings = [one for one in found if damaged_too or not one.damaged]
    return structs.replace(summary, findings=findings, traces=traces)


def check_counted(summary: Summary) -> None:
    """Raise TraceError unless the counts are what a campaign writes: `beyond` has ranges in order, above `done`, none
    empty; no more traces have numbers than were drawn; nothing is negative."""
    end = counted = summary.done
    for start, stop in summary.beyond:
        if not end <= start < stop:
            raise TraceError(f"beyond: [{start}, {stop}) is not a range of traces behind {end}")
        end, counted = stop, counted + stop - start
    counts = (summary.traces, summary.steps, summary.seconds, summary.lost_workers, summary.refused)
    if min(*counts, *summary.not_run.values()) < 0:
        raise TraceError("a count is negative")
    if counted > (drawn := summary.traces + summary.unopened):
        raise TraceError(f"done, beyond: {counted:,} traces have numbers, but {drawn:,} were drawn")
    if not 0 <= summary.done <= end <= POSITIONS_MAX:
        raise TraceError(f"done, beyond: trace numbers are from 0 to {POSITIONS_MAX:,}")


def _on_disk(folder: Path, finding: Finding) -> Finding:
    """Return a finding with the path and length of its trace as it is on disk, as `damaged` if there is no file."""
    path = trace_path(folder, finding.id, finding.trace)
    if not path.exists():  # it was reduced below, or replaced, just before the process was killed
        path = path.with_name(f"{file_name(finding.id)}.json")
    extras = [str(extra) for named in finding.extras if (extra := trace_path(folder, finding.id, named)).exists()]
    finding = structs.replace(finding, trace=str(path), extras=extras, damaged=not path.exists())
    with suppress(TraceError):  # reported when it is needed
        finding = structs.replace(finding, events=len(load_trace(path).events))
    return finding


def names_for(signature: str) -> Iterator[str]:
    """Yield the names that findings with this signature get, in order; each is the stem of a file name."""
    stem = file_name(signature)[: NAME_LENGTH_MAX - 10]
    yield stem
    for number in count(2):
        yield f"{stem}.{number}"


def load_evidence(trace: str | Path) -> FindingEvidence | None:
    """Return what is known about the cause of the finding whose trace is at this path, None if there is nothing.

    Raises TraceError for a file that cannot be read.
    """
    return read_json(_companion(trace, EVIDENCE_SUFFIX), FindingEvidence, "evidence", limit=EVIDENCE_BYTES_MAX)


class FindingStore:
    """The output folder of one campaign. Methods raise OutputError; call them under one lock."""

    def __init__(self, folder: Path, target: str, fixes: Sequence[str] = ()) -> None:
        """Keep findings of a target, which runs behind fixes."""
        self._fixes = fixes
        self.folder = folder
        self.target = target
        self.findings: dict[str, Finding] = {}
        self.evidence: dict[str, FindingEvidence] = {}
        """By name, also of findings that an earlier campaign left in this folder and that this one has not met yet."""
        self._gone = set[str]()
        """Names of findings that became part of another one: no other finding is announced under them."""
        self.problems: list[str] = []
        """Files of earlier findings that cannot be read, in one line each. They are written again."""
        make_folder(folder, FINDINGS_FOLDER)
        for path in sorted((folder / FINDINGS_FOLDER).glob(f"*{EVIDENCE_SUFFIX}")):
            try:
                if path.with_suffix(".json").exists() and (known := load_evidence(path)):
                    self.evidence[path.stem] = known
            except TraceError as error:
                self.problems.append(str(error))

    def resume(self, findings: Sequence[Finding]) -> None:
        """Take over the findings of a campaign that is being resumed, and complete their files."""
        for finding in findings:
            self.findings[finding.id] = finding
            if not Path(finding.trace).with_suffix(TEXT_SUFFIX).exists():
                self._write_text(finding, self._text(finding, None))

    def count(self, violation: Violation) -> Finding | None:
        """Count a violation, unsorted, for the finding that shows its signature most often; None if none does."""
        finding = self._showing(violation.signature)
        if finding:
            self.repeat(violation.signature, 1)
            return self.findings[finding.id]
        return None

    def holder(self, name: str, signature: str) -> str:
        """Return the name of the finding that counts an unsorted trace that was counted for `name`: another one if that
        was merged meanwhile; "" if there is none."""
        finding = max(
            self._all_showing(signature),
            key=lambda one: (one.unsorted > 0, one.id == name, one.symptoms.get(signature, 1)),
            default=None,
        )
        return finding.id if finding else ""

    def _showing(self, signature: str) -> Finding | None:
        """Return the finding that shows a signature most often, None if none does."""
        return max(self._all_showing(signature), key=lambda one: one.symptoms.get(signature, 1), default=None)

    def _all_showing(self, signature: str) -> list[Finding]:
        return [one for one in self.findings.values() if signature == one.signature or signature in one.symptoms]

    def _counted(self, finding: Finding, signature: str, change: int) -> Finding:
        """Return a finding with one trace more or less of a signature."""
        symptoms = dict(finding.symptoms or {finding.signature: finding.count})
        symptoms[signature] = symptoms.get(signature, 0) + change
        symptoms = {one: times for one, times in symptoms.items() if times > 0}
        return structs.replace(finding, count=finding.count + change, symptoms=symptoms)

    def claim(self, violation: Violation, index: int, trace: Trace, known: str = "") -> tuple[Finding, Trace | None]:
        """Add a finding with this trace; it is saved when this returns.

        Also returns the shorter trace that an earlier campaign left under the same name, if there is one. `known` is
        the reason for which this is not a new finding, "" for a new one.
        """
        name = next(name for name in names_for(violation.signature) if self._is_free(name))
        path, earlier = self._path(name), None
        with suppress(TraceError):
            earlier = load_trace(path)
        if earlier and len(earlier.events) >= len(trace.events):
            earlier = None
        finding = Finding(
            signature=violation.signature,
            oracle=violation.oracle,
            message=violation.message,
            step=violation.step,
            event=violation.event,
            events=len(trace.events),
            trace=str(path.with_suffix(UNREDUCED_SUFFIX) if earlier else path),
            index=index,
            known=known,
            name=name,
            symptoms={violation.signature: 1},
            phrase=consequence_of(violation)[0],
            setting=setting_of(self.target, trace),
        )
        self._save(finding, violation, trace)
        self.findings[name] = finding
        return finding, earlier

    def repeat(self, signature: str, times: int) -> None:
        """Count further failing traces of a signature that was met before; they stay unsorted."""
        if finding := self._showing(signature):
            counted = self._counted(finding, signature, times)
            self.findings[finding.id] = structs.replace(counted, unsorted=counted.unsorted + times)

    def _is_free(self, name: str) -> bool:
        return name not in self.findings and name not in self.evidence and name not in self._gone

    def sort(self, counted: str, signature: str, into: str) -> Finding:
        """Count a trace that was counted, unsorted, for finding `counted` for the finding that it belongs to."""
        before = self.findings[counted]
        self.findings[counted] = before = structs.replace(before, unsorted=max(before.unsorted - 1, 0))
        if into != counted:
            self.findings[counted] = self._counted(before, signature, -1)
            self.findings[into] = self._counted(self.findings[into], signature, 1)
        return self.findings[into]

    def split(self, counted: str, violation: Violation, index: int, trace: Trace, known: str = "") -> Finding:
        """Make a trace that was counted, unsorted, for finding `counted` a finding of its own."""
        finding, _ = self.claim(violation, index, trace, known)
        before = self.findings[counted]
        before = structs.replace(before, unsorted=max(before.unsorted - 1, 0))
        self.findings[counted] = self._counted(before, violation.signature, -1)
        return finding

    def merge(self, name: str, into: str) -> tuple[Finding, Finding]:
        """Make two findings of one cause one: add the counts of `name` to `into`, which may be one that an earlier
        campaign left. Returns the finding that is gone, whose files stay until `remove`, and the other one."""
        gone = self.findings.pop(name)
        self._gone.add(name)
        kept = self.findings.get(into)
        if kept is None:
            kept = structs.replace(gone, name=into, trace=str(self._path(into)), extras=self._extras(into))
            with suppress(TraceError):
                kept = structs.replace(kept, events=len(load_trace(kept.trace).events))
        else:
            for signature, times in (gone.symptoms or {gone.signature: gone.count}).items():
                kept = self._counted(kept, signature, times)
            severity = joined([kept.severity, gone.severity])
            kept = structs.replace(kept, unsorted=kept.unsorted + gone.unsorted, severity=severity)
        self.findings[into] = kept
        return gone, kept

    def _extras(self, name: str) -> list[str]:
        paths = [self._path(name).with_suffix(EXTRA_SUFFIX.format(number + 1)) for number in range(EXTRA_TRACES_MAX)]
        return [str(path) for path in paths if path.exists()]

    def remove(self, gone: Finding) -> None:
        """Remove the files of a finding that was merged into another; call it once the state is on disk."""
        self.evidence.pop(gone.id, None)
        for named in (*gone.extras, gone.trace):
            self._remove(Path(named))

    def add_trace(self, name: str, trace: Trace) -> Finding:
        """Keep a further trace of a finding, if there is room."""
        finding = self.findings[name]
        if len(finding.extras) < EXTRA_TRACES_MAX:
            path = self._path(name).with_suffix(EXTRA_SUFFIX.format(len(finding.extras) + 1))
            try:
                save_trace(structs.replace(trace, target=self.target), path)
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror}") from error
            self.findings[name] = finding = structs.replace(finding, extras=[*finding.extras, str(path)])
        return finding

    def learn(self, name: str, evidence: FindingEvidence) -> None:
        """Write what is known about the cause of a finding."""
        self.evidence[name] = evidence
        path = _companion(str(self._path(name)), EVIDENCE_SUFFIX)
        self._write(path, encode_json(evidence))

    def improve(self, name: str, trace: Trace, violation: Violation | None) -> Finding:
        """Replace the trace of a finding. Without its violation the text is short."""
        before = self.findings[name]
        finding = structs.replace(before, events=len(trace.events), trace=str(self._path(name)))
        if violation:
            finding = structs.replace(
                finding,
                message=violation.message,
                step=violation.step,
                event=violation.event,
                setting=setting_of(self.target, trace),
            )
        self._save(finding, violation, trace)
        self.findings[name] = finding
        if before.trace != finding.trace:
            self._remove(Path(before.trace))
        return finding

    def adopt(self, into: str, gone: Finding, trace: Trace) -> None:
        """Let the trace of a finding that was merged into another one take the place of a longer one, with what is said
        of it. A trace of another symptom does not: name, signature, message and trace belong together."""
        kept = self.findings[into]
        if gone.signature == kept.signature and len(trace.events) < kept.events:
            told = {name: getattr(gone, name) for name in ("message", "step", "event", "setting", "phrase")}
            self.findings[into] = structs.replace(kept, **told)
            self.improve(into, trace, None)

    def explain(self, name: str, violation: Violation, history: History, text: str, phrase: str) -> None:
        """Add the explanation (`text`) of the shortest trace to its text file, and keep its history. `phrase` says
        what goes wrong, in a few words."""
        finding = self.findings[name] = structs.replace(self.findings[name], phrase=phrase)
        path = Path(finding.trace)
        self._write_text(finding, f"{self._text(finding, violation)}\n{text}\n")
        self._write(path.with_suffix(HISTORY_SUFFIX), msgspec.json.encode(history))

    def settle(self, name: str, *, reproduced: bool, shown: int, tried: int, reduced: bool = True) -> Finding:
        """Record how the investigation of a finding ended; one that did not fail again is not reduced."""
        finding = structs.replace(
            self.findings[name],
            reproduced=reproduced,
            reduced=reproduced and reduced,
            shown=shown,
            tried=tried,
        )
        unreduced = Path(finding.trace)
        if unreduced.name.endswith(UNREDUCED_SUFFIX):  # the shorter one of an earlier campaign does not fail any more
            finding = structs.replace(finding, trace=str(self._path(name)))
            self._remove_companions(finding)
            try:
                unreduced.replace(finding.trace)
            except OSError as error:
                raise OutputError(f"cannot write {finding.trace}: {error.strerror}") from error
            self._remove(unreduced)
            self._write_text(finding, self._text(finding, None))
        self.findings[name] = finding
        return finding

    def grade(self, name: str, severity: Severity) -> Finding:
        """Note how much a finding matters, also behind title and message in its text."""
        finding = self.findings[name] = structs.replace(self.findings[name], severity=severity)
        with suppress(OSError, TraceError):  # a text that is gone is written again when the campaign is resumed
            file = _companion(finding.trace, TEXT_SUFFIX)
            text = read_regular(file, TEXT_BYTES_MAX, "a finding's text").decode(errors="replace")
            title, message, *rest = [part for part in text.split("\n\n") if not part.startswith(_SEVERITY)]
            self._write_text(finding, "\n\n".join([title, message, *_severity_line(finding), *rest]))
        return finding

    def recognize(self, name: str, cause: Cause, violation: Violation) -> Finding:
        """Note which known bug explains a finding. It is not reduced any further."""
        finding = self.findings[name] = structs.replace(self.findings[name], cause=cause)
        self._write_text(finding, self._text(finding, violation))
        return finding

    def with_cause(self, cause: Cause) -> str:
        """Return the name of the finding that a known bug explains, "" if there is none."""
        explained = [one for one in self.findings.values() if one.cause and one.cause.name == cause.name]
        return next((one.id for one in explained if cause.name), "")

    def save_state(self, summary: Summary) -> None:
        """Write the state of the campaign."""
        self._write(self.folder / STATE_FILE, encode_json(summary))

    def _path(self, name: str) -> Path:
        return self.folder / FINDINGS_FOLDER / f"{file_name(name)}.json"

    def _save(self, finding: Finding, violation: Violation | None, trace: Trace) -> None:
        path = Path(finding.trace)
        try:
            self._remove_companions(finding)
            save_trace(structs.replace(trace, target=self.target), path)
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
        for path in (*(_companion(trace, suffix) for suffix in (TEXT_SUFFIX, HISTORY_SUFFIX, EVIDENCE_SUFFIX)), trace):
            path.unlink(missing_ok=True)

    def _text(self, finding: Finding, violation: Violation | None) -> str:
        details = "\n".join(
            terminal_text(f"{name:10} {value}")
            for name, value in (structs.asdict(violation) if violation else {}).items()
            if name != "message" and value not in ("", -1)
        )
        again = f"{finding.events} events. {_REPLAY}{replay_command(self.target, finding.trace, self._fixes)}"
        parts = [terminal_line(line) for line in (title_line(finding), finding.message)]
        parts += _severity_line(finding)
        if finding.cause:
            parts.append(terminal_line(f"Known: {cause_words(finding.cause)}"))
        return "\n\n".join(filter(None, [*parts, details, again])) + "\n"


def _severity_line(finding: Finding) -> list[str]:
    """Return the severity of a finding as a paragraph, nothing for one without."""
    known = severity_known(finding)
    return [terminal_line(_SEVERITY + severity_words(known))] if known else []


def _companion(trace: str | Path, suffix: str) -> Path:
    """Return the path of a file that goes with a trace."""
    return Path(trace).with_suffix(suffix)
