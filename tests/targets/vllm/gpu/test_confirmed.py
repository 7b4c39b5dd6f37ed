"""The table of confirmed causes lists every packaged cause, and says what `confirm` said."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
CORPUS = ROOT / "corpus" / "vllm"
NAME = "0.33.0--state-copied-before-load--S4-step-mamba-temporal.json"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(ROOT / "benchmarks" / "confirmed.py"))


def shown(**fields: object) -> dict:
    usual = {"setup": "gdn v2", "signature": "", "message": "", "alone": [], "batch": {}, "refused": ""}
    return {**usual, **fields}


def test_every_cause_of_the_release_is_run_with_its_fix(script: dict) -> None:
    causes = list(script["causes"](CORPUS, []))
    assert all(cause.patch.is_file() and all(path.is_file() for path in cause.traces) for cause in causes)
    traces = {path.name for cause in causes for path in cause.traces}
    assert traces == {path.name for path in CORPUS.glob("0.33.0--*.json")}
    assert [cause.name for cause in script["causes"](CORPUS, ["state-copied"])] == ["state-copied-before-load"]


def test_a_row_says_what_differed_and_with_which_flags(script: dict) -> None:
    met = shown(signature="S4-x", message="S4: it differs", alone=[71], batch={"zero": [108]})
    answer = {"exit_reason": "confirmed", "stock": [shown(setup="mamba2 v2"), met], "patched": [shown()]}
    row = script["row_of"]("state-copied-before-load", CORPUS / NAME, answer, 3.0)
    assert (row.verdict, row.setup, row.flags) == ("confirmed", "gdn v2", "connector=sync")
    table = script["table"]([row])
    assert "1 of 1 causes are confirmed" in table
    assert "S4: it differs | 71 | zero: 108 |" in table


def test_a_row_says_why_no_model_fails(script: dict) -> None:
    answer = {"exit_reason": "not-met", "stock": [shown(refused="no such model"), shown()], "patched": []}
    row = script["row_of"]("c", CORPUS / NAME, answer, 3.0)
    assert (row.verdict, row.what) == ("not-met", "no such model; passes")


def test_a_cause_counts_by_its_best_trace(script: dict) -> None:
    rows = [script["Row"]("c", "t0", "time"), script["Row"]("c", "t1", "confirmed"), script["Row"]("d", "t2", "error")]
    assert "1 of 2 causes are confirmed" in script["table"](rows)
