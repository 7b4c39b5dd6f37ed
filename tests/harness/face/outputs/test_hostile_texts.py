"""What a stranger's file or an engine says stays in its line: no line of its own, no command to a CI service."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.campaign_events import CampaignEnded, CampaignStarted, Found, Notice
from hybridfuzz.harness.campaign_summary import Finding, KnownBug, Summary
from hybridfuzz.harness.face.commands import common
from hybridfuzz.harness.face.outputs import console
from hybridfuzz.harness.face.outputs.junit import junit_file
from hybridfuzz.harness.group.findings.finding_store import FindingStore
from hybridfuzz.harness.judge.violation import Violation

EVIL = "evil\n::warning::forged\r\n  ::error::forged\r##[error]forged ##vso[task.complete]\x1b[31m\u202egnp"
FINDING = Finding(
    EVIL, "M1", EVIL, 1, 1, 3, f"out/{EVIL}", 0, name=EVIL, known=EVIL, symptoms={EVIL: 2, "b": 1}, unsorted=1
)
BUG = KnownBug(EVIL, EVIL, "fixed upstream", EVIL, covered=3, warning=EVIL)
SUMMARY = Summary(
    EVIL, EVIL, 1, {}, "time", 10, 100, 1.0, [FINDING, structs.replace(FINDING, known="")], {}, {}, [], [],
    known_bugs=[BUG],
)  # fmt: skip


def assert_quoted(text: str) -> None:
    """No line is of the text alone, and nothing in it is a command."""
    assert "evil" in text
    for line in re.split(r"[\n\r\x0b\x0c\x85\u2028\u2029]", text):
        assert not line.strip().startswith(("::", "forged", "gnp")), line
    assert not re.search(r"##(\[|vso\[)", text)
    assert "\u202e" not in text and "\x1b" not in text


@pytest.mark.parametrize("name", ["console", "printer", "progress_line"])
def test_lines(capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name == "console":
        screen = console.Console(console.Terminal())
        earlier = [FINDING]
        started = CampaignStarted(EVIL, EVIL, 1, 1, EVIL, earlier, earlier_target=EVIL, earlier_asked=["--fixes", EVIL])
        for event in (started, Found(FINDING), Notice(EVIL), CampaignEnded(SUMMARY)):
            screen.handle_event(event)
    else:
        line: Callable[[str], None] = common.printer(False) if name == "printer" else common.progress_line
        line(f"FAILED {EVIL}")
        line(EVIL.removeprefix("evil\n") + "evil")
    assert_quoted("".join(capsys.readouterr()))


def test_junit() -> None:
    """It had a quoting of its own, which kept a mark that turns the direction of text."""
    root = ET.fromstring(junit_file(SUMMARY))
    texts = [text for one in root.iter() for text in (*one.attrib.values(), one.text or "") if "evil" in text]
    assert len(texts) > 5
    for text in texts:
        assert_quoted(text)


def test_the_text_of_a_finding(tmp_path: Path) -> None:
    store = FindingStore(tmp_path, "hybrid")
    violation = Violation("M4", "x", EVIL, expected=EVIL)
    finding, _ = store.claim(violation, 1, make_trace(arrive("r0", 9), *steps(2)))
    assert_quoted(Path(finding.trace).with_suffix(".txt").read_text())
