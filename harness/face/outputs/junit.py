"""A campaign as a JUnit file: one case for each finding, one for the self-test, one for what was never reached.

`--junit FILE`, written when the campaign ends: `suite` has the totals, `_case` a case, `_details` its text. (A gate's
JUnit file is pytest's own: `--junitxml`.)
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET

from ...campaign_summary import Finding, Summary
from ...group.findings.finding_store import replay_of
from ...group.findings.severity import ranked, severity_known, severity_words
from ...quoting import terminal_line, terminal_text
from ...units import plural
from .final_file import FinalFile


def make_handler(options: argparse.Namespace) -> FinalFile | None:
    """Return the handler for --junit."""
    return FinalFile("--junit", options.junit, junit_file) if options.junit else None


def junit_file(summary: Summary) -> bytes:
    """Return the whole file."""
    return bytes(ET.tostring(suite(summary), encoding="utf-8", xml_declaration=True))


def suite(summary: Summary) -> ET.Element:
    """Return the test suite: known findings are skipped cases, new ones are failures.

    A campaign that was blind, vacuous or cut off has a failure as well: it proves nothing. So has an outdated known
    bug. What was never reached is no failure beside a new finding, as for the exit status.
    """
    name = f"hybridfuzz.{summary.target}"
    cases = [_case(name, "traces", seconds=summary.seconds)]
    if summary.exit_reason in ("interrupted", "error"):
        _fail(cases[0], f"the campaign did not end: {summary.exit_reason}")
    for finding in ranked(summary.findings):
        case = _case(name, finding.id)
        if finding.known:
            ET.SubElement(case, "skipped", message=terminal_line(f"known: {finding.known}"))
        else:
            severity = severity_known(finding)
            level = f"{severity.level}: " if severity and severity.level else ""
            _fail(case, f"{level}{finding.message}", _details(finding, summary))
        cases.append(case)
    if summary.canary:
        case = _case(name, "self-test")
        if summary.blind:
            _fail(case, f"planted bugs were not found: {', '.join(summary.canary.silent)}")
        cases.append(case)
    for bug in summary.known_bugs:
        case = _case(name, f"known bug {bug.name}")
        if bug.outdated:
            _fail(case, f"{bug.verdict}: {bug.detail}")
        cases.append(case)
    case = _case(name, "reached")
    if missing := [*summary.never_exercised, *summary.never_reached]:
        text = f"never exercised or reached: {', '.join(missing)}"
        if summary.new_findings:
            ET.SubElement(case, "skipped", message=terminal_line(text))
        else:
            _fail(case, text)
    cases.append(case)
    failures = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"tests": len(cases), "failures": failures, "errors": 0, "skipped": skipped}
    whole = ET.Element("testsuite", {"name": terminal_line(name), "time": f"{summary.seconds:.3f}"})
    for key, number in counts.items():
        whole.set(key, str(number))
    whole.extend(cases)
    return whole


def _details(finding: Finding, summary: Summary) -> str:
    flaky = f"\nflaky: {finding.shown} of {finding.tried} runs of its trace alone failed" if finding.flaky else ""
    severity = severity_known(finding)
    matters = f"{terminal_line(severity_words(severity))}\n" if severity else ""
    again = replay_of(finding, summary.target, summary.asked)
    return (
        f"{terminal_line(finding.message)}\n{matters}"
        f"{plural(finding.count, 'trace')}, reduced to {plural(finding.events, 'event')}{flaky}\n{again}"
    )


def _case(suite_name: str, name: str, *, seconds: float | None = None) -> ET.Element:
    """Return a test case; one that took no time of its own says nothing of time."""
    time = {} if seconds is None else {"time": f"{seconds:.3f}"}
    return ET.Element("testcase", {"classname": terminal_line(suite_name), "name": terminal_line(name), **time})


def _fail(case: ET.Element, message: str, text: str = "") -> None:
    ET.SubElement(case, "failure", message=terminal_line(message)).text = terminal_text(text) or None
