"""The exit status tells faults of an adapter from those of its engine."""

import pytest

from hybridfuzz.harness.campaign_summary import Finding, Summary
from hybridfuzz.harness.exit_status import ADAPTER, CLEAN, VIOLATION
from hybridfuzz.harness.face.commands.fuzz import status


def finding(oracle: str, known: str = "") -> Finding:
    return Finding(f"{oracle}-step-x", oracle, "", 0, 0, 1, "trace.json", 0, known=known)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((), CLEAN),
        ((finding("ADAPTER"), finding("RECORD")), ADAPTER),
        ((finding("ADAPTER"), finding("CRASH")), VIOLATION),
        ((finding("S3"),), VIOLATION),
        ((finding("RECORD"), finding("S3", known="reported")), ADAPTER),
        ((finding("RECORD", known="mine"),), CLEAN),
    ],
)
def test_only_findings_of_the_adapter_end_with_6(found: tuple[Finding, ...], expected: int) -> None:
    summary = Summary("t", "", 1, {}, "traces", 1, 1, 1.0, found, {}, {}, (), ())
    assert status(summary) == expected
