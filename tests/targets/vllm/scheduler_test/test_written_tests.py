"""Tests of vLLM's scheduler alone fail on the release where the defect is in the scheduler, pass with the packaged fix,
and are not written for a defect of the worker."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.tell.related import related
from hybridfuzz.harness.tell.reproduce import packaged_patch
from hybridfuzz.harness.tell.script import ScriptVerdict, failure_of
from hybridfuzz.harness.tell.unit_test import unit_test
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.engine_tests import EngineTest
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.registry import prepare, write_scripts

SPEC = "vllm@0.33.0"
FOLDER = Path(__file__).parents[4] / "corpus" / "vllm"
pytestmark = pytest.mark.engine


def written(
    name: str, folder: Path, *, with_fix: bool = True
) -> tuple[EngineTest, ScriptVerdict, ScriptVerdict | None] | None:
    """Return the unit test of a packaged trace."""
    launch, trace = prepare(SPEC, print), load_trace(FOLDER / f"0.33.0--{name}.json")
    with WorkerClient(SPEC, launch, trace_seconds=300) as worker:
        worker.start()
        history = worker.explain(trace)[1]
    assert history.violation
    script = write_scripts(SPEC, trace, failure_of(trace, history, history.violation))[0]
    patch = parse_patch(packaged_patch(related(SPEC, launch.version, trace, ""))[0], "fix")
    fixed = patched(launch, [patch]) if with_fix else None
    return unit_test(SPEC, trace, script, "What is wrong.", "scheduled", folder, launch, fixed)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("one-token-prompt-v2--S3-step-mamba-temporal", '{"r0": 2, "r1": 2}', '{"r0": 2, "r1": 1}'),
        ("past-a-partial-hit-v2--S1-step-mamba-temporal", '{"r10": 13}', '{"r10": 4}'),
    ],
)  # fmt: skip
def test_the_wrong_answer_of_the_scheduler_is_asserted_to_be_none(
    name: str, wrong: str, right: str, tmp_path: Path
) -> None:
    found = written(name, tmp_path)
    assert found
    test, verdict, _ = found
    text = (tmp_path / test.path).read_text(encoding="utf-8")
    assert verdict.promised
    assert f"num_scheduled_tokens != {wrong}" in text
    assert f"With the patch it is {right}." in text
    assert "hybridfuzz" not in text
    assert max(map(len, text.splitlines())) <= 88
    assert ast.get_docstring(ast.parse(text), clean=True)


def test_where_only_blocks_differ_no_test_is_written(tmp_path: Path) -> None:
    """The worker may be mended instead, and the scheduler's blocks stay as they are."""
    assert written("inner-state-without-block-v2--M3-step-mamba-column", tmp_path) is None


def test_a_defect_of_the_worker_has_no_test_of_the_scheduler(tmp_path: Path) -> None:
    assert written("accepted-permuted-twice-v1--S3-step-mamba-temporal", tmp_path) is None
    assert not list(tmp_path.rglob("test_*.py"))


def test_what_the_scheduler_raises_needs_no_fix(tmp_path: Path) -> None:
    name = "clipped-padding-v2--CRASH-step-AssertionError-schedule"
    found = written(name, tmp_path, with_fix=False)
    assert found
    text = (tmp_path / found[0].path).read_text(encoding="utf-8")
    assert "# Raises AssertionError as long as the bug is there." in text
    assert "assert " not in text.partition("# Raises")[2]


def test_a_kv_connector_gives_the_answers_of_the_run(tmp_path: Path) -> None:
    found = written("session-after-load-v1--S6-step-input", tmp_path)
    assert found
    text = (tmp_path / found[0].path).read_text(encoding="utf-8")
    assert "class GivenConnector(" in text
    assert "finished_recving" in text
