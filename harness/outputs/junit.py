"""A campaign as a JUnit file: a case for each finding, for the canary, and for what was never met."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path

from ..events import Summary
from ..findings.store import OutputError, replay_command
from ..traces.files import write_atomically

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path, summary: Summary, known: Mapping[str, str]) -> None:
    """Write the file; `known` says by signature why a finding is no news. Raises OutputError."""
    try:
        write_atomically(path, ET.tostring(suite(summary, known), encoding="utf-8", xml_declaration=True))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error


def suite(summary: Summary, known: Mapping[str, str]) -> ET.Element:
    """Known findings are skipped cases, news are failures; a blind or vacuous campaign fails, too."""
    name = f"hybridfuzz.{summary.target}"
    cases = [_case(name, "traces", seconds=summary.seconds)]
    for finding in summary.findings:
        case = _case(name, finding.signature)
        if reason := known.get(finding.signature):
            ET.SubElement(case, "skipped", message=f"known: {reason}")
        else:
            again = replay_command(summary.target, finding.trace)
            text = f"{finding.message}\n{finding.count} traces, reduced to {finding.events} events\n{again}"
            ET.SubElement(case, "failure", message=_clean(finding.message)).text = _clean(text)
        cases.append(case)
    if summary.canary:
        case = _case(name, "canary")
        if summary.blind:
            ET.SubElement(case, "failure", message=f"planted bugs were not found: {', '.join(summary.canary.silent)}")
        cases.append(case)
    missing = [*summary.never_exercised, *summary.never_reached]
    case = _case(name, "reached")
    if missing:
        ET.SubElement(case, "failure", message=f"never exercised or reached: {', '.join(missing)}")
    cases.append(case)
    failures = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"tests": len(cases), "failures": failures, "errors": 0, "skipped": skipped}
    whole = ET.Element("testsuite", {"name": name, "time": f"{summary.seconds:.3f}"})
    for key, number in counts.items():
        whole.set(key, str(number))
    whole.extend(cases)
    return whole


def _case(suite_name: str, name: str, *, seconds: float = 0.0) -> ET.Element:
    return ET.Element("testcase", classname=suite_name, name=name, time=f"{seconds:.3f}")


def _clean(text: str) -> str:
    """Without what XML cannot hold: a crashed engine's last words may be anything."""
    return _NOT_XML.sub("?", text)
