"""Related reports: the known bug that lists the trace, or those with the same symptom, said so."""

from pathlib import Path

from hybridfuzz.harness.reproduce.related import related
from hybridfuzz.harness.traces.files import load_trace
from msgspec import structs

CORPUS = Path(__file__).parents[3] / "corpus" / "vllm"


def test_the_known_bug_of_a_trace() -> None:
    [path] = CORPUS.glob("0.33.0--published-then-preempted--*.json")
    [found] = related("vllm@0.33.0", "0.33.0", load_trace(path), "M2-step-mamba-key")
    assert "#57580" in found
    assert "Same symptom" not in found


def test_the_same_symptom_is_no_certainty() -> None:
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    other = structs.replace(load_trace(path), events=load_trace(path).events[:-1])
    found = related("vllm@0.33.0", "0.33.0", other, "S3-step-mamba-temporal")
    assert len(found) >= 5
    assert all(line.startswith("Same symptom, perhaps another cause: ") for line in found)
    assert related("vllm@0.33.0", "0.33.0", other, "S8-step-x") == []


def test_an_engine_without_known_bugs() -> None:
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    assert related("hybrid", "", load_trace(path), "S3-step-mamba-temporal") == []
    assert related("python:some:THING", "", load_trace(path), "S3-step-mamba-temporal") == []
