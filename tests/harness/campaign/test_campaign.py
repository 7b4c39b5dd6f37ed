"""A night's drills: whatever dies, fills up or breaks, nothing found is lost or counted twice, and it goes on."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from cli_process import MUTANT, Cli, children, command, command_line_in, ended, environment_in, wait_for

from hybridfuzz.harness.campaign.refusals import UNSTARTED_MAX
from hybridfuzz.harness.group.bug_history import load_bug_history

NIGHT = ["fuzz", "--seed", "1", "--jobs", "2", "--reduce", "1s", "--no-canary", "--json"]
COUNTED = ("traces", "steps", "exercised", "reached", "done", "beyond", "seen")


def counts(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what has to be the same however often a campaign was cut off.

    A worker that is killed is a flaky finding of its own, which an undisturbed campaign does not have.
    """
    steady = [finding for finding in summary["findings"] if finding["reproduced"]]
    findings = {finding["signature"]: finding["count"] for finding in steady}
    return {**{name: summary[name] for name in COUNTED}, "findings": findings}


def state(folder: Path) -> dict[str, Any]:
    """The state on disk."""
    return dict(json.loads((folder / "campaign.json").read_text()))


def start(environment: dict[str, str], folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*NIGHT, *more), env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class TestCutOff:
    """The same command continues a campaign that did not end."""

    ARGUMENTS = ("--target", MUTANT, "--traces", "30")
    KILLS = 1

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
        """The campaign as it is when nothing happens."""
        folder = tmp_path_factory.mktemp("whole")
        hybridfuzz = command_line_in(folder, environment_in(folder))
        return counts(hybridfuzz(*NIGHT, *cls.ARGUMENTS, "-o", "whole").json)

    def test_coordinator_killed(
        self, environment: dict[str, str], tmp_path: Path, hybridfuzz: Cli, whole: dict[str, Any]
    ) -> None:
        """With findings made and reductions under way."""
        for _ in range(self.KILLS):
            with start(environment, tmp_path, *self.ARGUMENTS, "-o", "out") as process:
                wait_for(process, "FOUND" if not (tmp_path / "out" / "campaign.json").exists() else "continuing")
                time.sleep(0.1)
                workers = children(process.pid)
                process.kill()
            assert all(map(ended, workers))
            cut_off = state(tmp_path / "out")
            assert cut_off["exit_reason"] is None
            assert cut_off["findings"], "on disk before anybody hears of it"
        again = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out")
        assert again.status == 1
        assert "continuing a campaign that did not end" in again.err
        assert counts(again.json) == whole
        assert all(finding["reduced"] for finding in again.json["findings"]), "reductions are taken up again"

    def test_interrupted(
        self, environment: dict[str, str], tmp_path: Path, hybridfuzz: Cli, whole: dict[str, Any]
    ) -> None:
        with start(environment, tmp_path, *self.ARGUMENTS, "-o", "out") as process:
            wait_for(process, "FOUND")
            process.send_signal(signal.SIGINT)
            output = process.communicate()
        assert process.returncode == 1, output
        assert state(tmp_path / "out")["exit_reason"] == "interrupted"
        again = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out")
        assert again.json["exit_reason"] == "traces"
        assert counts(again.json) == whole

    def test_full_disk(self, tmp_path: Path, hybridfuzz: Cli, whole: dict[str, Any]) -> None:
        """Files cannot grow: the finding is named, not counted, and found again when there is room."""

        def no_room() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        full = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out", preexec_fn=no_room)
        assert full.status == 2
        assert "cannot write" in full.error
        assert "seed 1, trace" in full.error
        again = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out")
        assert again.status == 1
        assert counts(again.json) == whole

    def test_full_file_system(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """A real one, of 64 KiB: an honest line, and what had been found is still there and replays."""
        folder = tmp_path / "small"
        folder.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True, check=False
        )
        if mounted.returncode:
            pytest.skip("mounting a file system needs privileges")
        try:
            (folder / "ballast").write_bytes(bytes(34 << 10))
            full = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "small/out")
            assert full.status == 2
            assert "No space left" in full.error
            saved = list((folder / "out" / "findings").glob("*.json"))
            assert all(hybridfuzz("replay", trace, "--target", MUTANT).status == 1 for trace in saved)
            (folder / "ballast").unlink()
            subprocess.run(["mount", "-o", "remount,size=4m", str(folder)], check=True)
            again = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "small/out")
            assert again.status == 1
            assert again.json["traces"] == int(self.ARGUMENTS[3])
        finally:
            subprocess.run(["umount", str(folder)], check=True)

    def test_worker_killed(self, environment: dict[str, str], tmp_path: Path, whole: dict[str, Any]) -> None:
        """Its traces are run by the next one."""
        with start(environment, tmp_path, *self.ARGUMENTS, "-o", "out", "--jobs", "1") as process:
            wait_for(process, "fuzzing hybrid")
            [worker] = children(process.pid)
            os.kill(worker, signal.SIGKILL)
            out, err = process.communicate()
        assert process.returncode == 1, err
        assert counts(json.loads(out.splitlines()[-1])) == whole

    def test_another_seed_is_another_campaign(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        hybridfuzz(*NIGHT, "--traces", "3", "-o", "out")
        file = tmp_path / "out" / "campaign.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "exit_reason": None}))
        assert "continuing" in hybridfuzz(*NIGHT, "--traces", "4", "-o", "out").err
        file.write_text(json.dumps({**json.loads(file.read_text()), "exit_reason": None}))
        assert "continuing" not in hybridfuzz(*NIGHT, "--seed", "2", "--traces", "4", "-o", "out").err

    def test_fresh(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """A new campaign, though the last one did not end; what that one found is in the book."""
        hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out")
        file = tmp_path / "out" / "campaign.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "exit_reason": None}))
        (tmp_path / "out" / "triage.json").unlink()
        ran = hybridfuzz(*NIGHT, "--target", "hybrid", "--traces", "2", "-o", "out", "--fresh")
        assert "continuing" not in ran.err
        assert ran.json["traces"] == 2
        assert MUTANT in (tmp_path / "out" / "triage.json").read_text()

    def test_one_campaign_in_a_folder(self, environment: dict[str, str], tmp_path: Path, hybridfuzz: Cli) -> None:
        """A second one, which is refused, emptied the event file of the first."""
        with start(environment, tmp_path, "--time", "60s", "-o", "out", "--events", "events") as process:
            wait_for(process, "fuzzing hybrid")
            deadline = time.monotonic() + 20
            while not (before := (tmp_path / "events").read_bytes()) and time.monotonic() < deadline:
                time.sleep(0.05)
            second = hybridfuzz(*NIGHT, "--traces", "1", "-o", "out", "--events", "events", "--fresh", "--seed", "2")
            process.kill()
        assert second.status == 2
        assert "another campaign is at work in out" in second.error
        assert before.startswith(b'{"event":')
        assert (tmp_path / "events").read_bytes().startswith(before)


def test_a_finding_gets_its_severity_also_after_a_kill(tmp_path: Path, hybridfuzz: Cli) -> None:
    night = (*NIGHT, "--target", MUTANT, "--traces", "20", "-o", "out")
    first = hybridfuzz(*night)
    assert first.json["findings"] and first.json["effort"]["severity"] > 0
    for finding in first.json["findings"]:
        reach = finding["severity"]["reach"]
        assert finding["severity"]["level"] in ("P0", "P1", "P2", "P3") and 0 < reach["runs"] <= 60, finding
        text = (tmp_path / "out" / "findings" / f"{finding['signature']}.txt").read_text()
        assert f"Severity: {finding['severity']['level']}, {finding['severity']['effect']}" in text
    killed = state(tmp_path / "out") | {"exit_reason": None}
    for finding in killed["findings"]:
        del finding["severity"]  # as an older version, or a kill before it was found out, leaves it
    (tmp_path / "out" / "campaign.json").write_text(json.dumps(killed))
    again = hybridfuzz(*night)
    assert "continuing" in again.err
    assert [one["severity"] for one in again.json["findings"]] == [one["severity"] for one in first.json["findings"]]


HYPOTHESIS = ("--target", MUTANT, "--traces", "12", "--source", "hypothesis")


class TestHypothesis:
    """Hypothesis's state machine as the source of traces."""

    @pytest.mark.exhaustive
    def test_another_source_is_another_campaign(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """A seeded campaign that was cut off is not continued, and its bug history counts apart."""
        hybridfuzz(*NIGHT, "--target", MUTANT, "--traces", "8", "-o", "out")
        file = tmp_path / "out" / "campaign.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "exit_reason": None}))
        ran = hybridfuzz(*NIGHT, "--target", MUTANT, "--traces", "8", "--source", "hypothesis", "-o", "out")
        assert "continuing" not in ran.err
        assert state(tmp_path / "out")["source"] == "hypothesis"
        history = load_bug_history(tmp_path / "out")
        runs = {run for bug in history.values() for run in bug.counts}
        assert runs == {f"{MUTANT}#1", f"{MUTANT}#1:hypothesis"}

    def test_a_later_campaign_runs_what_failed(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """From Hypothesis's database, before new traces, and without counting it."""
        first = hybridfuzz(*NIGHT, *HYPOTHESIS, "-o", "out")
        assert list((tmp_path / "out" / "hypothesis" / "examples").iterdir())
        for folder in ("corpus", "findings"):
            shutil.rmtree(tmp_path / "out" / folder)
        more = ("--source", "hypothesis", "--traces", "1", "--seed", "2")
        again = hybridfuzz(*NIGHT, "--target", MUTANT, *more, "-o", "out").json
        assert again["traces"] == 1
        # A finding has the signature of one of its traces: which one is a matter of time.
        found = {symptom for finding in first.json["findings"] for symptom in finding["symptoms"]}
        assert found & {one for finding in again["findings"] if finding["index"] == -1 for one in finding["symptoms"]}


@pytest.mark.exhaustive
class TestCutOffTwice(TestCutOff):
    """Killed once more while it continues, with more traces."""

    ARGUMENTS = ("--target", MUTANT, "--traces", "60")
    KILLS = 2


@pytest.mark.exhaustive
class TestHypothesisCutOff(TestCutOff):
    """The same drills with the other source of traces."""

    ARGUMENTS = HYPOTHESIS
    KILLS = 2

    def test_full_disk(self, tmp_path: Path, hybridfuzz: Cli, whole: dict[str, Any]) -> None:
        """Hypothesis's database cannot be written either, and that ends nothing."""

        def no_room() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        full = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out", preexec_fn=no_room)
        assert full.status == 2
        assert "cannot write" in full.error
        # Short examples fit: those would run, and count, as trace -1.
        shutil.rmtree(tmp_path / "out" / "hypothesis", ignore_errors=True)
        again = hybridfuzz(*NIGHT, *self.ARGUMENTS, "-o", "out")
        assert counts(again.json) == whole


class TestCorpus:
    """Traces that reach rare states are kept, and run first the next time."""

    FEW = ("--traces", "40", "-o", "out")

    def test_small_and_enough(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """Two traces or so for each state; a second campaign finds nothing to add for the states that are covered."""
        reached = {state for state, times in hybridfuzz(*NIGHT, *self.FEW).json["reached"].items() if times}
        first = set((tmp_path / "out" / "corpus").iterdir())
        assert 2 <= len(first) <= 2 * len(reached)
        hybridfuzz(*NIGHT, *self.FEW)
        second = set((tmp_path / "out" / "corpus").iterdir())
        assert len(second) <= len(first), "distilled, not piled up"
        alone = hybridfuzz("replay", "out/corpus")
        assert alone.status == 0

    def test_broken_file(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """It is named and put aside; the night goes on."""
        hybridfuzz(*NIGHT, *self.FEW)
        [broken, *_] = sorted((tmp_path / "out" / "corpus").iterdir())
        broken.write_bytes(broken.read_bytes()[:50])
        again = hybridfuzz(*NIGHT, *self.FEW)
        assert again.status in (0, 3)
        assert f"warning: out/corpus/{broken.name}: not a trace" in again.err
        assert broken.with_suffix(".broken").exists()
        assert again.json["traces"] == 40

    def test_what_it_finds_is_a_finding(self, hybridfuzz: Cli) -> None:
        """A corpus of the correct target meets a broken one: no new trace is needed."""
        hybridfuzz(*NIGHT, *self.FEW)
        ran = hybridfuzz(*NIGHT, "--target", MUTANT, "--traces", "1", "-o", "out")
        assert ran.status == 1
        assert {finding["index"] for finding in ran.json["findings"]} >= {-1}

    def test_broken_state(self, tmp_path: Path, hybridfuzz: Cli) -> None:
        """A state that cannot be read is refused before the first trace, and left as it is."""
        hybridfuzz(*NIGHT, *self.FEW)
        for name in ("campaign.json", "triage.json"):
            file = tmp_path / "out" / name
            before = file.read_text() if file.exists() else "{}"
            file.write_text('{"traces": ')
            ran = hybridfuzz(*NIGHT, *self.FEW, "--junit", "junit.xml")
            assert ran.status == 2
            assert name in ran.error and "move it away" in ran.error
            assert "fuzzing" not in ran.err
            assert file.read_text() == '{"traces": '
            file.write_text(before)


OUTPUTS = ("--junit", "junit.xml", "--sarif", "x.sarif", "--events", "events.ndjson")


class TestSignals:
    """Every exit but SIGKILL leaves report, JUnit, SARIF and history, and is never called clean."""

    @pytest.mark.parametrize(
        "signals",
        [
            [signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP], [signal.SIGTERM, signal.SIGTERM],
            [signal.SIGINT, signal.SIGHUP, signal.SIGTERM],
        ],
        ids=lambda signals: "+".join(one.name for one in signals),
    )  # fmt: skip
    @pytest.mark.parametrize("target", ["hybrid", MUTANT])
    def test_outputs(
        self, environment: dict[str, str], tmp_path: Path, target: str, signals: list[signal.Signals]
    ) -> None:
        with start(environment, tmp_path, "--time", "60s", "--target", target, "-o", "out", *OUTPUTS) as process:
            wait_for(process, "fuzzing hybrid" if target == "hybrid" else "FOUND")
            for number in signals:
                process.send_signal(number)
            out, err = process.communicate(timeout=20)
        summary = json.loads(out.splitlines()[-1])
        assert process.returncode == (5 if target == "hybrid" else 1), err
        assert summary["exit_reason"] == state(tmp_path / "out")["exit_reason"] == "interrupted"
        assert "clean" not in err
        assert "report: out/report.html" in err
        assert (tmp_path / "out" / "report.html").exists()
        [cut_off] = [case for case in ET.parse(tmp_path / "junit.xml").getroot() if case.get("name") == "traces"]
        failure = cut_off.find("failure")
        assert failure is not None and "interrupted" in str(failure.get("message"))
        results = json.loads((tmp_path / "x.sarif").read_text())["runs"][0]["results"]
        assert len(results) == len(summary["findings"]) == (0 if target == "hybrid" else len(results))
        assert (tmp_path / "out" / "triage.json").exists() == (target == MUTANT)
        last = (tmp_path / "events.ndjson").read_text().splitlines()[-1]
        assert json.loads(last)["event"] == "campaign_ended"

    def test_a_killed_campaign_has_a_bug_history(self, environment: dict[str, str], tmp_path: Path) -> None:
        with start(environment, tmp_path, "--time", "60s", "--target", MUTANT, "-o", "out") as process:
            line = wait_for(process, "reduced to")
            time.sleep(1)
            process.kill()
        bugs = json.loads((tmp_path / "out" / "triage.json").read_text())
        findings = {
            finding["name"] or finding["signature"]: finding["signature"]
            for finding in state(tmp_path / "out")["findings"]
        }
        # The history follows the events: what was claimed or merged just before the kill may not have reached it.
        [announced] = [signature for name, signature in findings.items() if f"({name})" in line]
        assert announced in {bug["signature"] for bug in bugs.values()}

    def test_an_interrupted_retest_is_an_interrupted_campaign(
        self, environment: dict[str, str], tmp_path: Path, hybridfuzz: Cli
    ) -> None:
        """Signals count until the last event: here while the bugs of earlier campaigns run again."""
        hybridfuzz(*NIGHT, "--target", MUTANT, "--traces", "2", "-o", "out")
        file = tmp_path / "out" / "triage.json"
        [bug, *_] = json.loads(file.read_text()).values()
        slow = {**bug, "target": "python:fake_targets:HANG"}
        file.write_text(json.dumps({f"{slow['target']} {slow['signature']}": slow}))
        arguments = ("--target", slow["target"], "--seed", "2", "--traces", "1", "--timeout", "30s", "-o", "out")
        with start(environment, tmp_path, *arguments) as process:
            wait_for(process, "fuzzing")
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=20)
        assert json.loads(out.splitlines()[-1])["exit_reason"] == "interrupted"


class TestLostOutputs:
    """An output that is lost is a warning; the campaign's own result counts."""

    @pytest.mark.parametrize("reader", ["none", "leaves"])
    def test_fifo(self, environment: dict[str, str], tmp_path: Path, reader: str) -> None:
        os.mkfifo(tmp_path / "fifo")
        began = time.monotonic()
        with start(environment, tmp_path, "--target", MUTANT, "--traces", "3", "--events", "fifo") as process:
            if reader == "leaves":
                os.close(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
            out, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert "warning: --events ended early: cannot write events to fifo" in err
        assert json.loads(out.splitlines()[-1])["exit_reason"] == "traces"
        assert time.monotonic() - began < 60

    def test_standard_output_that_nobody_reads(self, environment: dict[str, str], tmp_path: Path) -> None:
        """`hybridfuzz fuzz | head -1`."""
        words = [word for word in NIGHT if word != "--json"]
        with subprocess.Popen(
            command(*words, "--target", MUTANT, "--traces", "3", "-o", "out", "--junit", "junit.xml"),
            env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout and process.stderr
            process.stdout.readline()
            process.stdout.close()
            err = process.stderr.read()
            assert process.wait(60) == 1
        assert "internal error" not in err and "Traceback" not in err
        assert (tmp_path / "junit.xml").exists()
        assert state(tmp_path / "out")["exit_reason"] == "traces"


def test_findings_that_turn_out_to_be_one_keep_the_name_that_was_announced_first(
    hybridfuzz: Cli, tmp_path: Path
) -> None:
    """Two workers meet one cause before either knows it; whichever is done first, the other one joins the older."""
    hybridfuzz("fuzz", "--target", "hybrid:finished-row-not-cleared", "--traces", "20", "--seed", "3", "-o", "out")
    assert (tmp_path / "out" / "findings" / "M4-dummy_run-mamba-dead-write.json").exists()


def test_a_hang_that_does_not_happen_again_is_a_flaky_finding(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Every third engine hangs: the traces run clean in a new worker, but the campaign is not clean."""
    arguments = ("--target", "python:fake_targets:SOMETIMES_HANGS", "--timeout", "1s", "--traces", "7", "--jobs", "1")
    ran = hybridfuzz(*NIGHT, *arguments, "--junit", "junit.xml")
    assert ran.status == 1
    [finding] = ran.json["findings"]
    assert (finding["signature"], finding["reproduced"]) == ("HANG-time-limit", False)
    assert ran.json["traces"] == 7
    assert "flaky: HANG-time-limit" in ran.err
    names = {
        case.get("name") for case in ET.parse(tmp_path / "junit.xml").getroot() if case.find("failure") is not None
    }
    assert "HANG-time-limit" in names
    assert {bug["state"] for bug in ran.json["bugs"]} == {"flaky"}


def test_leaking_target(hybridfuzz: Cli) -> None:
    """Its process is replaced at the limit, with a warning; every trace counts."""
    ran = hybridfuzz(
        *NIGHT, "--target", "python:fake_targets:LEAKING", "--memory", "400MiB", "--traces", "30", "--jobs", "1"
    )
    assert ran.status in (0, 3), ran.err
    assert ran.json["traces"] == 30
    assert ran.json["lost_workers"] >= 2
    assert "MiB of memory" in ran.err


def test_hanging_target(hybridfuzz: Cli) -> None:
    """Each hang is one count of one finding."""
    limits = ("--timeout", "0.5s", "--traces", "2", "--jobs", "1", "--seed", "4")
    arguments = ("--target", "python:fake_targets:HANG", *limits)
    ran = hybridfuzz(*NIGHT, *arguments)
    assert ran.status == 1
    [finding] = ran.json["findings"]
    assert finding["signature"] == "HANG-step-time-limit"
    assert finding["count"] == ran.json["traces"] == 2


def test_a_worker_that_does_not_start_at_once_is_tried_again(hybridfuzz: Cli, tmp_path: Path) -> None:
    """A machine that is short of memory for a moment does not end the night."""
    flag = str(tmp_path / "flag")
    ran = hybridfuzz(
        *NIGHT, "--target", "python:slow_starter:FACTORY", "--traces", "4", "--jobs", "1",
        env={"HYBRIDFUZZ_TEST_FLAG": flag},
    )  # fmt: skip
    assert ran.json["traces"] == 4, ran.err


def test_a_configuration_that_is_refused_late_does_not_end_the_campaign(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The traces that ran are judged, those that did not are counted and shown, also after a continuation."""
    target = ("--target", "python:fake_targets:LATE", "--jobs", "1", "-o", "out")
    ran = hybridfuzz(*NIGHT, *target, "--traces", "12")
    assert ran.status == 1, ran
    assert 0 < ran.json["refused"] < 12 == ran.json["traces"] + ran.json["refused"]
    [finding] = ran.json["findings"]
    assert finding["signature"] == "CRASH-step-IndexError-raise_error"
    assert finding["count"] <= ran.json["traces"]
    reason = "pools of an odd size need a licence"
    assert ran.err.count(f"did not run, as the target refuses its configuration: {reason}") == 1
    refused = f"{ran.json['refused']} of 12 traces did not run, as the target refused them"
    assert f"warning: {refused}, most often because: {reason}" in ran.err
    assert (
        f"{ran.json['refused']} traces did not run: the target refused them."
        in (tmp_path / "out/report.html").read_text()
    )


def test_traces_that_were_refused_stay_counted(hybridfuzz: Cli, tmp_path: Path) -> None:
    target = ("--target", "python:fake_targets:LATE_CLEAN", "-o", "out", "--traces", "12")
    before = hybridfuzz(*NIGHT, *target).json
    saved = state(tmp_path / "out") | {"exit_reason": "interrupted"}
    (tmp_path / "out/campaign.json").write_text(json.dumps(saved))
    again = hybridfuzz(*NIGHT, *target).json
    assert again["traces"] == before["traces"] == 12 - before["refused"]
    assert again["refused"] == before["refused"] > 0


def test_a_state_that_counts_refused_traces_among_the_traces_is_put_right(hybridfuzz: Cli, tmp_path: Path) -> None:
    """As versions did that called a trace a trace although it was not opened."""
    target = ("--target", "python:fake_targets:LATE_CLEAN", "-o", "out", "--traces", "12")
    before = hybridfuzz(*NIGHT, *target).json
    saved = state(tmp_path / "out") | {"exit_reason": "interrupted", "traces": 12}
    (tmp_path / "out/campaign.json").write_text(json.dumps(saved))
    assert hybridfuzz(*NIGHT, *target).json["traces"] == before["traces"] < 12


@pytest.mark.parametrize("limit", [("--traces", "3"), ("--steps", "10k")])
def test_a_target_that_refuses_everything_is_not_clean(hybridfuzz: Cli, limit: tuple[str, str]) -> None:
    """Without a trace that runs no number of steps is ever reached."""
    ran = hybridfuzz(*NIGHT, "--target", "python:fake_targets:REFUSING", *limit)
    assert ran.status == 2
    assert "most often because: this engine needs a licence: ask for one" in ran.error
    assert ran.json["exit_reason"] == "error"
    assert ran.json["refused"] > 0 == ran.json["traces"]


def test_a_target_that_fails_before_each_first_step_ends_the_campaign(hybridfuzz: Cli) -> None:
    """No number of steps was ever reached: `--steps 300` ran until it was stopped."""
    ran = hybridfuzz(*NIGHT, "--target", "python:fake_targets:NEVER_STARTS", "--steps", "300")
    assert ran.status == 1
    # The other worker may end one more before the campaign stops.
    [ended] = re.findall(r"the campaign ended early: none of (\d+) traces reached its first step", ran.err)
    assert UNSTARTED_MAX <= int(ended) < UNSTARTED_MAX + 2
    assert (ran.json["exit_reason"], ran.json["steps"]) == ("error", 0)
    [finding] = ran.json["findings"]
    assert finding["count"] >= UNSTARTED_MAX - 1


def test_events_and_junit(tmp_path: Path, hybridfuzz: Cli) -> None:
    """Machines can follow a night, and its result fits any CI service."""
    files = ("--events", "events.ndjson", "--junit", "junit.xml")
    ran = hybridfuzz(*NIGHT, "--target", MUTANT, "--traces", "8", "-o", "out", *files)
    events = [json.loads(line) for line in (tmp_path / "events.ndjson").read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "campaign_started"
    assert kinds[-1] == "campaign_ended"
    assert {event["finding"]["signature"] for event in events if event["event"] == "found"} == {
        finding["signature"] for finding in ran.json["findings"]
    }
    assert all(event["signature"] for event in events if event["event"] == "trace_done")
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert failed >= {finding["signature"] for finding in ran.json["findings"]}
    assert int(suite.get("failures", "0")) == len(failed)


def test_nothing_runs_before_the_target_has_accepted_the_configuration(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Only the worker knows the switches of an engine; the self-test waits for its answer."""
    words = [word for word in NIGHT if word != "--no-canary"]
    ran = hybridfuzz(*words, "--config", "nonsense=1", "--events", "events.ndjson", "--traces", "1")
    assert ran.status == 2
    assert "nonsense" in ran.error
    events = [json.loads(line)["event"] for line in (tmp_path / "events.ndjson").read_text().splitlines()]
    assert set(events) <= {"campaign_ended", "tick"}


def test_events_that_cannot_be_written(hybridfuzz: Cli) -> None:
    ran = hybridfuzz(*NIGHT, "--traces", "1", "--events", "no/such/folder/e")
    assert ran.status == 2
    assert "cannot write events" in ran.error


def test_jobs_auto(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--jobs", "auto", "--traces", "4", "--no-canary", "--seed", "1")
    cores = len(os.sched_getaffinity(0))
    assert f", {cores} worker" in ran.out
