"""JUnit output: the most severe finding is the first failure, and says what it needs."""

from msgspec import structs

from hybridfuzz.harness.campaign_summary import Finding, Reach, Severity, Summary
from hybridfuzz.harness.face.outputs.junit import suite


def test_findings_are_ranked() -> None:
    unknown = Finding("S3-a", "S3", "S3: broken", 1, 1, 9, "findings/S3-a.json", 0, shown=1, tried=1)
    lost_hit = structs.replace(unknown, name="lost", severity=Severity("P3", "slower", Reach(["--x"])))
    wrong = structs.replace(unknown, name="wrong", severity=Severity("P0", "wrong tokens", Reach()))
    summary = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [lost_hit, unknown, wrong], {}, {}, [], [])
    failed = [(case.get("name"), case.find("failure")) for case in suite(summary)]
    shown = [(name, failure.get("message"), failure.text) for name, failure in failed if failure is not None]
    assert [(name, message) for name, message, _ in shown] == [
        ("wrong", "P0: S3: broken"),
        ("S3-a", "S3: broken"),
        ("lost", "P3: S3: broken"),
    ]
    assert shown[0][2] and "\nP0, wrong tokens; on the stock server\n" in shown[0][2]
    assert shown[2][2] and "\nP3, slower; needs --x\n" in shown[2][2]


def test_what_was_never_reached_is_no_failure_beside_a_new_finding() -> None:
    finding = Finding("S3-a", "S3", "S3: broken", 1, 1, 9, "findings/S3-a.json", 0, shown=1, tried=1)
    silent = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [], {}, {}, [], ["preempted twice"])
    message = "never exercised or reached: preempted twice"
    for summary, kind in ((silent, "failure"), (structs.replace(silent, findings=[finding]), "skipped")):
        *_, reached = suite(summary)
        result = reached.find(kind)
        assert result is not None and result.get("message") == message
        assert suite(summary).get("failures") == "1"


def test_only_what_was_measured_has_a_time() -> None:
    finding = Finding("S3-a", "S3", "S3: broken", 1, 1, 9, "findings/S3-a.json", 0, shown=1, tried=1)
    whole = suite(Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [finding], {}, {}, [], []))
    assert [(case.get("name"), case.get("time")) for case in whole if case.get("time")] == [("traces", "10.000")]
