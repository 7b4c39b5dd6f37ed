"""A campaign on a device that is too small: no finding, no trace that did not run, and one worker less.

On a device that processes share: a fault of one trace is no finding about those that ran beside it."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from test_campaign import state

from hybridfuzz.harness import cli
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.exit_status import CLEAN, USAGE, VACUOUS, VIOLATION
from hybridfuzz.targets.base import registry
from hybridfuzz.targets.base.launch import Launch, Service


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "device").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HYBRIDFUZZ_TEST_DEVICE", str(tmp_path / "device"))
    monkeypatch.setattr("hybridfuzz.harness.campaign.could_not_run.WAITS", (0.0,) * 5)
    monkeypatch.setattr("hybridfuzz.harness.workers.worker_client.RESTART_WAITS", (0.0,))


def fuzz(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    always = ("fuzz", "--seed", "1", "--reduce", "1s", "--no-canary", "--json", "--fresh", "-o", "out")
    status = cli.main([*always, "--target", f"python:fake_targets:{arguments[0]}", *arguments[1:]])
    printed = capsys.readouterr()
    return status, json.loads(printed.out.splitlines()[-1]), printed.err


def test_workers_are_given_up_until_the_device_carries_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its device carries two of four: each trace runs once, the other two workers end, and there is no finding."""
    status, result, said = fuzz(capsys, "SMALL_DEVICE", "--jobs", "4", "--traces", "40", "--events", "events")
    assert status in (CLEAN, VACUOUS), said
    assert result["findings"] == []
    assert (result["traces"], result["not_run"], result["given_up"]) == (40, {}, 2), said
    assert state(tmp_path / "out")["done"] == 40
    lines = re.findall(r"warning: worker \d ended, out of memory beside the others .*", said)
    assert [re.findall(r"goes on with (\d) worker", line) for line in lines] == [["3"], ["2"]]
    assert "CUDA out of memory. Tried to allocate" in lines[0]
    assert "2 workers given up" in said
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [one["left"] for one in events if one["event"] == "worker_given_up"] == [3, 2]
    assert "2 workers given up" in (tmp_path / "out/report.html").read_text()


def test_a_trace_that_needs_more_than_the_device_has_is_not_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried alone once, and gives up no worker; its number stays taken, also in the next process."""
    monkeypatch.setenv("HYBRIDFUZZ_TEST_ODD", "1")
    status, result, said = fuzz(capsys, "SMALL_DEVICE", "--jobs", "2", "--traces", "8", "--events", "events")
    assert status in (CLEAN, VACUOUS), said
    missing = result["not_run"]["out of memory"]
    assert 0 < missing < 8 == result["traces"] + missing
    assert (result["findings"], result["given_up"]) == ([], 0)
    assert said.count("was not run: out of memory, also alone: CUDA out of memory.") == missing
    assert f"({missing} more not run: out of memory)" in said
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert len({one["index"] for one in events if one["event"] == "not_run"}) == missing
    report = (tmp_path / "out/report.html").read_text()
    assert f"{missing} traces did not run: out of memory." in report
    assert "--traces 8" in report
    saved = state(tmp_path / "out")
    assert (saved["done"], saved["traces"]) == (8, 8 - missing)


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_campaign_of_which_nothing_can_run_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    """It does not loop for ever, has no finding and no trace, and says why."""
    monkeypatch.setenv("HYBRIDFUZZ_TEST_ROOM", "0")
    monkeypatch.setattr("hybridfuzz.harness.campaign.could_not_run.ALONE_MAX", 3)
    status, result, said = fuzz(capsys, "SMALL_DEVICE", "--jobs", jobs, "--time", "60s")
    assert status == USAGE
    assert (result["findings"], result["traces"], result["steps"]) == ([], 0, 0)
    assert "could not run alone on the machine: out of memory: CUDA out of memory." in said


def test_a_fault_on_a_shared_device_is_of_the_trace_that_makes_it_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that share the device all fail; only traces of guilty configurations become findings."""
    prepare, script = registry.prepare, 'touch "$PLACE/ready"; while read -r _; do :; done'

    def shared(spec: str, progress: Callable[[str], None]) -> Launch:
        return structs.replace(prepare(spec, progress), service=Service(("sh", "-c", script), ("PLACE",), "ready"))

    monkeypatch.setattr(registry, "prepare", shared)
    status, result, said = fuzz(capsys, "SHARED", "--jobs", "3", "--traces", "24")
    assert status == VIOLATION, said
    assert (result["traces"], result["not_run"], result["given_up"]) == (24, {}, 0), said
    found = [load_trace(path) for path in (tmp_path / "out/findings").glob("*.json")]
    assert found
    assert {trace.config.num_blocks % 2 for trace in found} == {0}
    faults = {path.name.endswith("-apart") for path in (tmp_path / "device").iterdir()}
    assert faults == {False, True}
