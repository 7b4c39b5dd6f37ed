"""A campaign as SARIF 2.1.0, for code-scanning pages: `--sarif FILE`, written when the campaign ends.

One rule for each oracle, one result for each finding. A result points to the most suspicious line of the engine
(`group.causes.evidence`), by its path in the checkout, so that it stands in the pull request; the next ones are related
locations. It contains its reduced trace: as an embedded artifact, and as a code flow with one location for each event
(a trace file has one event a line). A result without a suspicious line points to the trace. Known findings are
suppressed with their reason.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import msgspec

from ....targets.base.registry import parse
from ....targets.base.trace import TraceError
from ...campaign_summary import Finding, Summary
from ...draw.trace_files import encode_trace, load_trace
from ...group.findings.finding_store import load_evidence, replay_of
from ...group.findings.severity import ranked, severity_known, severity_words
from ...judge.oracles import titles
from ...units import plural
from .final_file import FinalFile

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
EVENT_LINE = b'{"event":'
PLACES_MAX = 3
RANKS = {"P0": 100.0, "P1": 75.0, "P2": 50.0, "P3": 25.0}
"""Priority of a result (3.27.25 of the standard) by severity."""


def make_handler(options: argparse.Namespace) -> FinalFile | None:
    """Return the handler for --sarif."""
    return FinalFile("--sarif", options.sarif, sarif_file) if options.sarif else None


def sarif_file(summary: Summary) -> bytes:
    """Return the whole file."""
    return json.dumps(sarif_log(summary), indent=1).encode() + b"\n"


def sarif_log(summary: Summary) -> dict[str, object]:
    """Return the whole log: one run with its rules, results and traces."""
    names = titles()
    oracles = sorted({finding.oracle for finding in summary.findings})
    rules = [
        {"id": oracle, "name": names.get(oracle, oracle), "shortDescription": {"text": names.get(oracle, oracle)}}
        for oracle in oracles
    ]
    traces = [_Trace(finding) for finding in ranked(summary.findings)]
    results = [_result(trace, summary, oracles) for trace in traces]
    try:
        tool_version = version("hybridfuzz")
    except PackageNotFoundError:
        tool_version = "unknown"
    invocation = {
        "executionSuccessful": summary.exit_reason not in ("error", None),
        "properties": {"exitReason": summary.exit_reason, "traces": summary.traces, "steps": summary.steps},
    }
    driver = {"name": "hybridfuzz", "semanticVersion": tool_version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"hybridfuzz/{quote(summary.target, safe='@:.')}/"},
        "invocations": [invocation],
        "artifacts": [trace.artifact() for trace in traces],
        "results": results,
        "properties": {"target": summary.target, "version": summary.version, "seed": summary.seed},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


class _Trace:
    """The reduced trace of a finding; empty if its file cannot be read."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        path = Path(finding.trace)
        self.uri = path.as_uri() if path.is_absolute() else quote(path.as_posix())
        self.data = b""
        with suppress(TraceError):
            self.data = encode_trace(load_trace(finding.trace))

    def artifact(self) -> dict[str, object]:
        """Return the embedded file."""
        return {
            "location": {"uri": self.uri},
            "mimeType": "application/json",
            "contents": {"text": self.data.decode()},
        }

    def events(self) -> list[tuple[int, str]]:
        """Return (line number from 1, text) of each event."""
        lines = self.data.splitlines()
        return [
            (number, line.strip().rstrip(b",").decode())
            for number, line in enumerate(lines, 1)
            if line.strip().startswith(EVENT_LINE)
        ]

    def location(self, line: int, text: str) -> dict[str, object]:
        """Return a place in the file."""
        place = {"artifactLocation": {"uri": self.uri}, "region": {"startLine": line}}
        return {"physicalLocation": place, "message": {"text": text}}


def _places(finding: Finding, target: str) -> list[dict[str, object]]:
    """Return the suspicious lines of the engine, the most suspicious first, by their paths in its repository."""
    evidence = None
    with suppress(TraceError):
        evidence = load_evidence(finding.trace)
    found = []
    for place in evidence.places[:PLACES_MAX] if evidence else ():
        path = _in_repository(place.file, target)
        if path and place.line > 0:
            region = {"startLine": place.line}
            physical = {"artifactLocation": {"uri": quote(path), "uriBaseId": "%SRCROOT%"}, "region": region}
            text = f"{place.function}: suspicious ({place.score:.2f})"
            found.append({"physicalLocation": physical, "message": {"text": text}})
    return found


def _in_repository(file: str, target: str) -> str:
    """Return the path of an engine's file in its checkout, whose package may be in a folder of it; "" for no path."""
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        return ""
    version = parse(target).version
    checkout = Path(version).expanduser() if version else Path("/dev/null")
    if checkout.is_dir() and not (checkout / path).is_file():
        below = (folder.name for folder in sorted(checkout.iterdir()) if (folder / path).is_file())
        return str(next(below, "") / path)
    return str(path)


def _result(trace: _Trace, summary: Summary, oracles: list[str]) -> dict[str, object]:
    finding, events = trace.finding, trace.events()
    line = events[min(max(finding.event, 0), len(events) - 1)][0] if events else 1
    again = replay_of(finding, summary.target, summary.asked)
    here, places = trace.location(line, finding.id), _places(finding, summary.target)
    severity = severity_known(finding)
    message = [finding.message, *([severity_words(severity)] if severity else [])]
    message += [f"{plural(finding.count, 'trace')}, reduced to {plural(finding.events, 'event')}", again]
    result: dict[str, object] = {
        "ruleId": finding.oracle,
        "ruleIndex": oracles.index(finding.oracle),
        "level": "warning" if finding.flaky else "error",
        "message": {"text": "\n".join(message)},
        "locations": [*places[:1], *([] if places else [here])],
        "partialFingerprints": {"hybridfuzz/signature/v1": f"{summary.target} {finding.id}"},
        "properties": {
            "signature": finding.signature,
            "symptoms": dict(finding.symptoms),
            "count": finding.count,
            "flaky": finding.flaky,
            "severity": msgspec.to_builtins(severity),
        },
    }
    if places:
        result["relatedLocations"] = [here, *places[1:]]
    if events:
        steps = [{"location": trace.location(number, text)} for number, text in events]
        result["codeFlows"] = [{"threadFlows": [{"locations": steps}]}]
    if severity and severity.level:
        result["rank"] = RANKS[severity.level]
    if finding.known:
        result["suppressions"] = [{"kind": "external", "justification": finding.known}]
    return result
