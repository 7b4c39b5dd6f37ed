"""`hybridfuzz coverage` and `fuzz --coverage`: lines of the built-in target, of all workers, also after a kill."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import MUTANT, Cli, command, wait_for

FUZZ = ["fuzz", "--coverage", "--target", "hybrid", "--seed", "3", "--no-canary"]


def lines(folder: Path) -> dict[str, Any]:
    """Return the content of lines.json."""
    return dict(json.loads((folder / "coverage/lines.json").read_text()))


@pytest.mark.exhaustive
def test_two_workers_reach_what_one_reaches(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The same traces, whoever runs them; each line is news once."""
    for jobs in (1, 2):
        ran = hybridfuzz(*FUZZ, "--traces", "8", "-j", jobs, "-o", f"out{jobs}", "--events", f"events{jobs}")
        assert ran.status in (0, 3), ran.err
    assert lines(tmp_path / "out1") == lines(tmp_path / "out2")
    assert lines(tmp_path / "out1")["traces"] == 8
    for jobs in (1, 2):
        news: dict[str, list[int]] = {}
        events = [json.loads(line) for line in (tmp_path / f"events{jobs}").read_text().splitlines()]
        for event in events:
            if event["event"] == "lines_reached":
                for module, found in event["lines"].items():
                    assert not set(found) & set(news.get(module, []))
                    news[module] = sorted(news.get(module, []) + found)
        assert news == lines(tmp_path / f"out{jobs}")["lines"]
        assert events[-1]["summary"]["lines"] == sum(map(len, news.values()))


def test_lines_survive_a_kill(hybridfuzz: Cli, environment: dict[str, str], tmp_path: Path) -> None:
    """A campaign that was killed and continued has the lines of one that was not."""
    night = [*FUZZ, "--target", MUTANT, "--traces", "12", "-j", "1", "--reduce", "1s", "--json"]
    whole = hybridfuzz(*night, "-o", "whole")
    assert whole.status == 1, whole.err
    with subprocess.Popen(
        command(*night, "-o", "out"),
        env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        wait_for(process, "FOUND")
        process.kill()
    state = json.loads((tmp_path / "out/campaign.json").read_text())
    assert state["exit_reason"] is None, "it was killed before its end"
    assert 0 < lines(tmp_path / "out")["traces"] < 12
    again = hybridfuzz(*night, "-o", "out")
    assert "continuing a campaign" in again.err
    assert again.json["traces"] == 12
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")


def test_coverage_reports_and_judges(hybridfuzz: Cli, tmp_path: Path) -> None:
    arguments = ["coverage", "--target", "hybrid", "--seed", "3", "-j", "1", "--traces", "4", "-o", "out"]
    ran = hybridfuzz(*arguments, "--fail-under", "99.5")
    assert ran.status == 3
    assert "below 99.5 %: " in ran.out
    assert "coverage: out/coverage/html/index.html" in ran.out
    report = json.loads((tmp_path / "out/coverage/coverage.json").read_text())
    assert report["traces"] == 4
    assert {path.name for path in (tmp_path / "out/coverage").iterdir()} == {
        "coverage.json", "coverage.lcov", "html", "lines.json",
    }  # fmt: skip


def test_json_stays_one_line_on_standard_output(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("coverage", "--target", "hybrid", "--seed", "3", "-j", "1", "--traces", "1", "-o", "out", "--json")
    assert len(ran.out.splitlines()) == 1
    assert ran.json["lines"] > 0
    assert "functions that never ran" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["coverage", "--target", "python:fake_targets:GOOD"], "declares no modules for coverage"),
        (["fuzz", "--coverage", "--cluster", "auto"], "without --cluster"),
        (["fuzz", "--coverage", "--against", "hybrid"], "not recorded with --against"),
    ],
)
def test_what_cannot_be_measured_is_refused(hybridfuzz: Cli, arguments: list[str], message: str) -> None:
    ran = hybridfuzz(*arguments, "--traces", "1")
    assert ran.status == 2
    assert message in ran.error


def test_without_the_option_nothing_is_recorded(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = hybridfuzz("fuzz", "--target", "hybrid", "--traces", "1", "-j", "1", "--no-canary", "-o", "out", "--json")
    assert ran.json["lines"] is None
    assert not (tmp_path / "out/coverage").exists()
