"""Related reports: the known bug that lists the trace, or those with the same symptom, said so."""

from pathlib import Path

from msgspec import structs

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.tell.related import public_reports, related

CORPUS = Path(__file__).parents[3] / "corpus" / "vllm"


def test_the_known_bug_of_a_trace() -> None:
    [path] = CORPUS.glob("0.33.0--published-then-preempted--*.json")
    [found] = related("vllm@0.33.0", "0.33.0", load_trace(path), "M2-step-mamba-key")
    assert found.name == "published-then-preempted" and found.is_exact
    assert "+++ b/vllm/v1/core" in found.patch
    assert public_reports([found]) == ["#57580", "#43569", "#56525"]


def test_the_same_symptom_is_no_certainty() -> None:
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    other = structs.replace(load_trace(path), events=load_trace(path).events[:-1])
    found = related("vllm@0.33.0", "0.33.0", other, "S3-step-mamba-temporal")
    assert len(found) >= 5
    assert not any(one.is_exact or one.patch for one in found)
    assert public_reports(found) == []
    assert related("vllm@0.33.0", "0.33.0", other, "S8-step-x") == []


def test_an_engine_without_known_bugs() -> None:
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    assert related("hybrid", "", load_trace(path), "S3-step-mamba-temporal") == []
    assert related("python:some:THING", "", load_trace(path), "S3-step-mamba-temporal") == []
