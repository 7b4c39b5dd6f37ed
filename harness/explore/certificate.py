"""The certificate of an exploration: what was enumerated, what was checked, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ...targets.base.trace import AnyEvent, Trace, TraceError
from ..campaign_summary import Cause
from ..draw.trace_files import encode_json, file_name, read_json, write_atomically
from ..judge.violation import Violation
from ..quoting import one_line
from ..units import plural
from .form import UNSEEN, UNSEEN_WITHOUT_INSPECTION
from .scope import Scope
from .search import Level, Search

CERTIFICATE_FILE = "certificate.json"
PAGE_FILE = "certificate.md"
HIDDEN = "; the target hides part of its state, so a trace may have been taken for one that was seen"
Verdict = Literal["clean", "fails", "unsound", "incomplete"]


class Failing(Struct, frozen=True):
    """A failure of the scope. No shorter trace of the scope fails so. `file` is its trace in the folder."""

    signature: str
    message: str
    events: int
    times: int
    file: str


class Shown(Struct, frozen=True):
    """A known bug that failing traces show: the first of them, which is a shortest one, and how many do.

    name    of the bug; "" for failures that known bugs explain, though no single one, and for those that none explains
    phrase  what happens, in a few words
    """

    name: str
    phrase: str
    signature: str
    events: int
    times: int
    file: str


class Sample(Struct, frozen=True):
    """A state that was reached: the number of its configuration, its events and its fingerprint."""

    configuration: int
    events: tuple[AnyEvent, ...]
    fingerprint: int


class Certificate(Struct, frozen=True, kw_only=True):
    """Everything that an exploration states.

    verdict     "clean", "fails", "unsound" (a merge was wrong), "incomplete" (a limit was met or a signal came)
    events      length up to which all traces of the scope were explored, or were found to lead to no new state
    exhausted   the last level had no new state: no longer trace leads to one, either
    named       failing traces that were compared with known bugs, at most `ALIKE_MAX` that are alike
    shown       which known bugs these show
    differences what differed between two traces that were one for the form; [] in a sound exploration
    oracles     those that checked something, with the number of checks
    whole       the form sees all of the target's state
    left_out    events of the scope that the target does not have, or does not have in a configuration
    """

    hybridfuzz: str
    target: str
    engine: str
    patches: tuple[str, ...]
    scope: Scope
    scope_name: str
    disturbances: int | None
    verdict: Verdict
    events: int
    exhausted: bool
    levels: tuple[Level, ...]
    states: int
    transitions: int
    merges: int
    merges_checked: int
    differences: tuple[str, ...]
    failures: tuple[Failing, ...]
    named: int
    shown: tuple[Shown, ...]
    oracles: dict[str, int]
    whole: bool
    unseen: tuple[str, ...]
    left_out: tuple[str, ...]
    collision_chance: float
    digest: str
    sample: tuple[Sample, ...]
    seconds: float
    jobs: int


def names_of(search: Search) -> Iterator[tuple[str, Trace]]:
    """Yield a file name for the trace of each failure."""
    for signature, failure in search.failures.items():
        yield f"failures/{file_name(signature)}.json", failure.trace


def unseen(*, whole: bool) -> tuple[str, ...]:
    """Return what the form does not see."""
    return UNSEEN if whole else (UNSEEN_WITHOUT_INSPECTION, *UNSEEN)


def load_certificate(path: Path) -> Certificate:
    """Return a certificate. Raises TraceError."""
    found = read_json(path / CERTIFICATE_FILE if path.is_dir() else path, Certificate, "a certificate")
    if found is None:
        raise TraceError(f"{path}: there is no certificate")
    return found


def save_certificate(certificate: Certificate, folder: Path) -> None:
    """Write the certificate and its page. Raises OSError."""
    data = encode_json(certificate)
    write_atomically(folder / CERTIFICATE_FILE, data + b"\n")
    write_atomically(folder / PAGE_FILE, page(certificate).encode())


def statement(certificate: Certificate) -> str:
    """Return the verdict in one sentence."""
    bound = f"up to {plural(certificate.events, 'event')}"
    if certificate.exhausted:
        bound = "of any length"
    if certificate.disturbances is not None:
        bound += f" with at most {plural(certificate.disturbances, 'disturbance')}"
    what = f"all traces of scope {certificate.scope_name} {bound}"
    if certificate.verdict == "clean":
        return f"{what}: no violation{'' if certificate.whole else HIDDEN}"
    if certificate.verdict == "fails":
        shortest = min(failure.events for failure in certificate.failures)
        return (
            f"{what}: {plural(len(certificate.failures), 'signature')} of failures; no trace of the scope with fewer "
            f"than {plural(shortest, 'event')} fails"
        )
    if certificate.verdict == "unsound":
        return f"nothing is certified: {one_line(certificate.differences[0], 300)}"
    found = plural(len(certificate.failures), "signature")
    return f"ended early: scope {certificate.scope_name} is complete {bound}; {found} of failures so far"


def bugs_line(certificate: Certificate) -> str:
    """Return how many known bugs the failing traces show."""
    bugs = sum(bool(one.name) for one in certificate.shown)
    failing = sum(level.failing for level in certificate.levels)
    return f"{plural(bugs, 'known bug')} shown; {certificate.named} of {plural(failing, 'failing trace')} compared"


def left_inside(certificate: Certificate) -> str:
    """Return how many failing traces are left inside the bound, "" if that is not known."""
    if certificate.verdict != "clean" or not certificate.whole:
        return ""
    return "what is left: 0 failing traces inside this bound, which is no estimate; nothing is said of other traces"


def page(certificate: Certificate) -> str:
    """Return the certificate as Markdown."""
    rows = [
        ("target", certificate.target),
        ("engine", certificate.engine or "comes with hybridfuzz"),
        ("patches", ", ".join(certificate.patches) or "none"),
        ("hybridfuzz", certificate.hybridfuzz),
        ("scope", f"{certificate.scope_name}: {certificate.scope.about}"),
        ("configurations", str(len(certificate.scope.configuration))),
        ("states", str(certificate.states)),
        ("transitions", str(certificate.transitions)),
        ("state compared", "all" if certificate.whole else "what the view shows"),
        ("merges, of these checked", f"{certificate.merges}, {certificate.merges_checked}"),
        ("wrong merges", str(len(certificate.differences))),
        ("chance of a collision", f"{certificate.collision_chance:.1e}"),
        ("not in the alphabet", "; ".join(certificate.left_out) or "nothing"),
        ("digest", certificate.digest),
        ("time", f"{certificate.seconds:.0f} s, {plural(certificate.jobs, 'worker')}"),
    ]
    sentence = statement(certificate)
    lines = ["# Certificate", "", f"{sentence[0].upper()}{sentence[1:]}.", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in rows]
    lines += [
        "",
        "| events | traces that ran | new states | merged | failing |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {level.events} | {level.transitions} | {level.states} | {level.merged} | {level.failing} |"
        for level in certificate.levels
    ]
    if certificate.failures:
        lines += ["", "## Failures", "", "| signature | events | times | trace |", "| --- | ---: | ---: | --- |"]
        lines += [
            f"| {_cell(one.signature)} | {one.events} | {one.times} | [{one.file}]({one.file}) |"
            for one in certificate.failures
        ]
    if certificate.shown:
        lines += ["", "## Known bugs", "", f"{bugs_line(certificate)}.", ""]
        lines += ["| bug | signature | events | times | trace |", "| --- | --- | ---: | ---: | --- |"]
        lines += [
            f"| {_cell(one.name or one.phrase)} | {_cell(one.signature)} | {one.events} | {one.times} "
            f"| [{one.file}]({one.file}) |"
            for one in certificate.shown
        ]
    lines += ["", "## Checks of each oracle", "", "| oracle | checks |", "| --- | ---: |"]
    lines += [f"| {name} | {times} |" for name, times in sorted(certificate.oracles.items())]
    lines += ["", "## Not seen by the canonical form", "", *(f"- {what}" for what in certificate.unseen), ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


NEW, SEVERAL = "no known bug explains it", "known bugs explain it, no single one"


def to_shown(search: Search, causes: Sequence[Cause | None]) -> dict[Shown, Trace]:
    """Return the known bugs that failing traces show, each with a shortest trace."""
    groups: dict[tuple[str, str], list[tuple[Trace, Violation]]] = {}
    for one, cause in zip(search.failing, causes, strict=True):
        name = cause.name if cause else ""
        phrase = cause.phrase if cause and name else SEVERAL if cause else f"{NEW}: {one[1].signature}"
        groups.setdefault((name, phrase), []).append(one)
    found = {}
    for (name, phrase), those in groups.items():
        trace, violation = those[0]
        file = f"bugs/{file_name(name or phrase)}.json"
        found[Shown(name, phrase, violation.signature, len(trace.events), len(those), file)] = trace
    return found


def to_samples(search: Search) -> tuple[Sample, ...]:
    """Return some states of a search."""
    return tuple(Sample(*one) for one in search.sample())


def to_failing(search: Search) -> Sequence[Failing]:
    """Return the failures of a search, the shortest first."""
    found = [
        Failing(failure.violation.signature, failure.violation.message, len(trace.events), failure.times, name)
        for (name, trace), failure in zip(names_of(search), search.failures.values(), strict=True)
    ]
    return sorted(found, key=lambda one: one.events)
