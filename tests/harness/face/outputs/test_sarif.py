"""SARIF output: valid against the published schema, one result for each finding, with its reduced trace.

`tests/data/sarif-schema-2.1.0.json` is the schema of the OASIS standard. The logs also pass Microsoft's
`Sarif.Multitool validate` (5.7.0), which has rules beyond the schema.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_events import CampaignEnded
from hybridfuzz.harness.campaign_summary import Finding, Reach, Severity, Summary
from hybridfuzz.harness.face.outputs.final_file import FinalFile
from hybridfuzz.harness.face.outputs.handler import CampaignInfo
from hybridfuzz.harness.face.outputs.sarif import make_handler, sarif_file, sarif_log
from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence, Place
from hybridfuzz.harness.group.findings.finding_store import OutputError

ROOT = Path(__file__).parents[4]
CORPUS = ROOT / "corpus"
SCHEMA = json.loads((ROOT / "tests" / "data" / "sarif-schema-2.1.0.json").read_text())
VALIDATOR = jsonschema.validators.validator_for(SCHEMA)(SCHEMA)


def finding(trace: str, **more: Any) -> Finding:
    path = CORPUS / trace
    fields = {"shown": 3, "tried": 3, **more}
    return Finding("M4-step-mamba-dead-write", "M4", 'M4: "broken" <b>\x1b', 1, 1, 1, str(path), 7, 2, **fields)


def summary(*findings: Finding, reason: Any = "time") -> Summary:
    return Summary("vllm@0.33.0", "0.33.0", 1, {}, reason, 10, 100, 1.0, findings, {}, {}, [], [])


FINDINGS = [
    finding("null-as-state-slot--M4-step-mamba-dead-write.json"),
    finding("finished-row-not-cleared--M4-dummy_run-mamba-dead-write.json", known="vLLM #1"),
    finding("no-such-file.json", reproduced=False, shown=0, tried=1),
]


@pytest.mark.parametrize("findings", [[], FINDINGS])
@pytest.mark.parametrize("reason", ["time", "interrupted", "error"])
def test_it_is_valid(findings: list[Finding], reason: str) -> None:
    VALIDATOR.validate(sarif_log(summary(*findings, reason=reason)))


def with_places(folder: Path, *files: str) -> Finding:
    """A finding whose evidence names lines 10, 11, ... of some files."""
    path = folder / "x.json"
    path.write_bytes((CORPUS / "null-as-state-slot--M4-step-mamba-dead-write.json").read_bytes())
    places = [Place(file, "Pool.take", 10 + number, 1 / (number + 1)) for number, file in enumerate(files)]
    evidence = Evidence("M4-step-mamba-dead-write", places=places)
    path.with_suffix(".evidence").write_bytes(msgspec.json.encode(FindingEvidence([evidence])))
    return finding(str(path))


def test_a_result_points_at_the_engine(tmp_path: Path) -> None:
    """At the most suspicious line, by its path in the repository: it stands in a pull request."""
    (tmp_path / "python/engine").mkdir(parents=True)
    (tmp_path / "python/engine/pool.py").touch()
    found = with_places(tmp_path, "engine/pool.py", "engine/gone.py")
    log: Any = sarif_log(structs.replace(summary(found), target=f"sglang@{tmp_path}"))
    VALIDATOR.validate(log)
    [result] = log["runs"][0]["results"]
    [place] = result["locations"]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "python/engine/pool.py", "uriBaseId": "%SRCROOT%"}
    assert place["physicalLocation"]["region"] == {"startLine": 10}
    trace, second = result["relatedLocations"]
    assert trace["physicalLocation"]["artifactLocation"]["uri"].endswith("x.json")
    assert second["physicalLocation"]["artifactLocation"]["uri"] == "engine/gone.py"


@pytest.mark.parametrize("file", ["/etc/passwd", "../../x.py"])
def test_a_path_that_leaves_the_repository_is_no_place(tmp_path: Path, file: str) -> None:
    log: Any = sarif_log(summary(with_places(tmp_path, file)))
    [location] = log["runs"][0]["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("x.json")


def test_the_validator_objects_to_a_log_that_is_not() -> None:
    log: Any = sarif_log(summary(*FINDINGS))
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert not VALIDATOR.is_valid(log)


def test_a_result_holds_its_trace_event_by_event() -> None:
    log: Any = sarif_log(summary(*FINDINGS))
    [run] = log["runs"]
    assert [result["level"] for result in run["results"]] == ["error", "error", "warning"], "a flaky one is a warning"
    assert [result.get("suppressions", [{}])[0].get("justification") for result in run["results"]] == [
        None, "vLLM #1", None,
    ]  # fmt: skip
    text = run["artifacts"][1]["contents"]["text"]
    assert text == Path(FINDINGS[1].trace).read_text()
    [flow] = run["results"][1]["codeFlows"]
    steps = [step["location"] for step in flow["threadFlows"][0]["locations"]]
    assert [json.loads(step["message"]["text"])["event"] for step in steps] == ["arrive", "step", "dummy_run"]
    for step in steps:
        line = step["physicalLocation"]["region"]["startLine"]
        assert step["message"]["text"] in text.splitlines()[line - 1]


def test_the_file_is_there_after_the_last_event_whatever_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.sarif"
    handler = make_handler(Namespace(sarif=path))
    assert handler
    handler.start(CampaignInfo(target="hybrid", version="", seed=1, out=tmp_path))
    assert not path.exists()
    handler.handle_event(CampaignEnded(summary(reason="interrupted")))
    assert json.loads(path.read_text())["runs"][0]["invocations"][0]["properties"]["exitReason"] == "interrupted"


def test_a_file_that_cannot_be_written_is_refused_before_the_first_trace(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "folder" / "x.sarif"):
        with pytest.raises(OutputError, match="cannot write"):
            FinalFile("--sarif", path, sarif_file).start(
                CampaignInfo(target="hybrid", version="", seed=1, out=tmp_path)
            )


def test_the_most_severe_result_comes_first_and_says_what_it_needs() -> None:
    traces = ("null-as-state-slot--M4-step-mamba-dead-write", "finished-row-not-cleared--M4-dummy_run-mamba-dead-write")
    one, other, gone = *(f"{trace}.json" for trace in traces), "gone.json"
    lost_hit = finding(one, name="lost", severity=Severity("P3", "slower", Reach(("--x",))))
    wrong = finding(other, name="wrong", severity=Severity("P0", "wrong tokens", Reach()))
    log: Any = sarif_log(summary(lost_hit, wrong, finding(gone, name="unknown")))
    VALIDATOR.validate(log)
    results = log["runs"][0]["results"]
    assert [result.get("rank") for result in results] == [100.0, None, 25.0]
    assert "P0, wrong tokens; on the stock server" in results[0]["message"]["text"]
    assert list(results[2]["properties"]["severity"]["reach"]["needs"]) == ["--x"]
    assert results[1]["properties"]["severity"] is None
