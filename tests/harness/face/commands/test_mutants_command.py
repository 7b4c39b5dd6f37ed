"""`hybridfuzz mutants` and the matrix behind it: what it finds, what it misses, and what ends badly."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from cli_process import Cli, command, wait_for

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.exit_status import CLEAN, INTERNAL, INTERRUPTED, VIOLATION
from hybridfuzz.harness.face.commands.mutants import status
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.measure.detection.matrix import Matrix, MatrixSettings, chosen_mutants, mutants_of
from hybridfuzz.reports.data import load_folder
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import load_factory, prepare

QUICK = "null-as-state-slot"
OTHER = "stale-fp32-bytes-nan"
# Without speculation there are no scratch columns that a narrow table could miss.
HIDDEN = ("all-spec-table-width", "num_speculative_tokens=0")


def matrix(tmp_path: Path, *mutants: str, target: str = "hybrid", **changes: object) -> Matrix:
    fields = {"seeds": (1,), "seconds": 2.0, "reduce_seconds": 2.0, **changes}
    launch = prepare("hybrid", print)
    return Matrix(MatrixSettings(target=target, launch=launch, mutants=mutants, out=tmp_path, **fields))  # type: ignore[arg-type]


def test_a_hunt_runs_the_traces_of_a_campaign(tmp_path: Path) -> None:
    """Detection in trace n means: traces 0 .. n-2 of that seed are silent, trace n-1 is not."""
    [detection] = matrix(tmp_path, "all-spec-table-width").run()
    factory = load_factory("hybrid:all-spec-table-width")
    outcomes = [
        run_trace(factory, draw_trace(factory.capabilities, 1, index, {}, factory.supports))
        for index in range(detection.traces)
    ]
    assert [bool(outcome.violation) for outcome in outcomes] == [False] * (detection.traces - 1) + [True]
    assert detection.steps == sum(outcome.steps for outcome in outcomes)
    assert outcomes[-1].violation
    assert detection.signature == outcomes[-1].violation.signature


def test_the_number_of_processes_changes_nothing_but_the_order(tmp_path: Path) -> None:
    def traces(jobs: int) -> dict[tuple[str, int], int]:
        runs = matrix(tmp_path, QUICK, OTHER, seeds=(1, 2), jobs=jobs).run()
        return {(run.mutant, run.seed): run.traces for run in runs}

    assert len(traces(1)) == 4
    assert traces(1) == traces(3)


def test_kept_traces_show_their_signature(tmp_path: Path) -> None:
    [detection] = matrix(tmp_path, OTHER).run()
    [path] = (tmp_path / "traces").iterdir()
    trace = load_trace(path)
    violation = run_trace(load_factory(f"hybrid:{OTHER}"), trace).violation
    assert violation
    assert path.stem == f"{OTHER}--{violation.signature}"
    assert detection.events == len(trace.events)


def test_what_is_correct_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm of the alarm: a "mutant" without a bug costs its whole budget."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]), prepend=os.pathsep)
    [detection] = matrix(tmp_path, "NOISY", target="python:fake_targets", seconds=1.0).run()
    assert not detection.found
    assert detection.seconds >= 1.0
    assert detection.traces > 5


def test_a_run_that_cannot_start_does_not_end_the_others(tmp_path: Path) -> None:
    runs = {run.mutant: run for run in matrix(tmp_path, "no-such-mutant", QUICK).run()}
    assert "no-such-mutant" in runs["no-such-mutant"].error
    assert not runs["no-such-mutant"].found
    assert runs[QUICK].found


def test_mutants_come_from_the_registry() -> None:
    assert QUICK in mutants_of("hybrid")
    assert list(chosen_mutants("hybrid", [OTHER, QUICK])) == [QUICK, OTHER]
    with pytest.raises(TargetError, match=f"did you mean {QUICK}"):
        chosen_mutants("hybrid", ["null-as-state-slit"])
    with pytest.raises(TargetError, match="has no mutants"):
        chosen_mutants("nothing", [])


def test_found_with_every_seed_is_clean(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = hybridfuzz("mutants", "--only", f"{QUICK},{OTHER}", "--seeds", 2, "--time", "5s", "-o", "out", "--json")
    assert ran.status == 0
    assert [row["mutant"] for row in ran.json["mutants"]] == [QUICK, OTHER]
    assert all(row["found"] == row["runs"] == 2 for row in ran.json["mutants"])
    assert ran.json["not_found"] == []
    assert json.loads((tmp_path / "out" / "matrix.json").read_text())["runs"] == ran.json["runs"]
    assert f"{QUICK}: 2/2 found" in ran.err

    again = hybridfuzz(
        "mutants", "--only", QUICK, "--seeds", 2, "--compare", "out/matrix.json", "--json", "--no-reduce"
    )
    assert again.json["comparison"]["traces"] == pytest.approx(1), "traces are exact"
    assert "1 same" in again.err


def test_one_that_is_out_of_reach_is_said_to_be_missed(hybridfuzz: Cli) -> None:
    slug, config = HIDDEN
    ran = hybridfuzz("mutants", "--only", slug, "--config", config, "--seeds", 1, "--time", "1s", "--json")
    assert ran.status == 1
    assert ran.json["not_found"] == [slug]
    assert ran.json["mutants"][0]["traces"] == {"median": None, "worst": None}
    assert f"{slug}: 0/1 found" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nonsense"], "has no mutant"),
        (["--target", "vllm"], "has no mutants"),
        (["--write-docs", "--only", QUICK], "--only exclude each other"),
        (["--write-docs"], "there is no folder docs"),
        (["--compare", "missing.json"], "cannot be read"),
    ],
)
def test_usage(hybridfuzz: Cli, arguments: list[str], words: str) -> None:
    ran = hybridfuzz("mutants", *arguments)
    assert ran.status == 2
    assert words in ran.error


@pytest.mark.exhaustive
def test_the_document_is_written_where_there_is_one(hybridfuzz: Cli, tmp_path: Path) -> None:
    (tmp_path / "docs/reference").mkdir(parents=True)
    ran = hybridfuzz("mutants", "--write-docs", "--seeds", 1, "--time", "0.2s", "--no-reduce")
    page = (tmp_path / "docs/reference/detection.md").read_text()
    assert ran.status in (0, 1)
    assert f"| {QUICK} | 1/1 |" in page


def test_interrupted_with_a_partial_table(environment: dict[str, str], tmp_path: Path) -> None:
    """The first is quick, the second never found: Ctrl-C keeps the first."""
    slug, config = HIDDEN
    words = ["mutants", "--only", f"{QUICK},{slug}", "--config", config, "--seeds", 1, "--jobs", 1, "--time", "60s"]
    process = subprocess.Popen(
        command(*words, "--json", "-o", "out"), env=environment, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(process, f"{QUICK}: 1/1 found")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    result = json.loads(out.splitlines()[-1])
    assert process.returncode == 5
    assert result["exit_reason"] == "interrupted"
    assert [run["mutant"] for run in result["runs"]] == [QUICK]
    assert result["not_found"] == [slug]
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("reason", "found", "errors", "expected"),
    [
        ("done", 2, [], CLEAN),
        ("done", 1, [], VIOLATION),
        ("interrupted", 2, [], INTERRUPTED),
        ("interrupted", 1, [], VIOLATION),
        ("interrupted", 1, ["out of memory"], INTERNAL),
    ],
)
def test_a_mutant_that_was_missed_counts_more_than_an_interruption(
    reason: str, found: int, errors: list[str], expected: int
) -> None:
    row = {"mutant": QUICK, "runs": 2, "found": found}
    assert status({"exit_reason": reason, "mutants": [row], "errors": errors}) == expected


def test_what_is_kept_can_be_shown_as_a_page(hybridfuzz: Cli, tmp_path: Path) -> None:
    only = ("--only", "null-as-state-slot", "--seeds", "1", "--time", "5s", "--jobs", "1", "--no-reduce")
    assert hybridfuzz("mutants", *only, "-o", "out").status == 0
    assert [row.mutant for row in load_folder(tmp_path / "out").rows] == ["null-as-state-slot"]
