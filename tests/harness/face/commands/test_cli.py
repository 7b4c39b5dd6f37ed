"""The command line when all goes well."""

import json
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
from cli_process import Cli, command, wait_for
from support import arrive, make_trace

from hybridfuzz.harness import units
from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.face.commands.against import pair_of
from hybridfuzz.harness.face.commands.bisect import started
from hybridfuzz.harness.face.commands.common import trace_files
from hybridfuzz.harness.face.commands.fuzz import add_arguments, asked
from hybridfuzz.harness.workers.machine import memory_share
from hybridfuzz.harness.workers.messages import Ready
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import TargetError

MUTANT = "hybrid:null-as-state-slot"
LAUNCH = Launch(sys.executable, {})
SMALL = ["fuzz", "--seed", "7", "--traces", "12", "--no-canary", "--json"]


def test_same_seed_same_traces_whatever_the_jobs(hybridfuzz: Cli) -> None:
    one, two = (hybridfuzz(*SMALL, "--jobs", jobs).json for jobs in (1, 2))
    for name in ("traces", "steps", "exercised", "reached", "exit_reason"):
        assert one[name] == two[name]
    assert one["exit_reason"] == "traces"
    assert one["traces"] == 12


def test_short_campaign_is_vacuous(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--seed", "7", "--traces", "1", "--no-canary", "--json")
    assert ran.status == 3
    assert ran.json["never_reached"]
    assert "vacuous" in ran.err


def test_step_limit(hybridfuzz: Cli) -> None:
    result = hybridfuzz("fuzz", "--seed", "7", "--steps", "500", "--jobs", "1", "--no-canary", "--json").json
    assert result["exit_reason"] == "steps"
    assert 500 <= result["steps"] < 2000


def test_config_is_fixed(hybridfuzz: Cli) -> None:
    result = hybridfuzz(*SMALL, "--config", "num_speculative_tokens=0").json
    assert "draft rejected" not in result["reached"], "neither reached nor required"


def test_ranks(hybridfuzz: Cli) -> None:
    """Every target has them: the harness runs them."""
    one, two = (hybridfuzz(*SMALL, "--dp", ranks).json for ranks in (1, 2))
    assert two["exit_reason"] == "traces"
    assert two["steps"] > one["steps"]
    assert not two["findings"]


def test_find_reduce_replay(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = hybridfuzz("fuzz", "--target", MUTANT, "--seed", "1", "--traces", "2", "--no-canary", "-o", "out", "--json")
    assert ran.status == 1
    [finding, *_] = ran.json["findings"]
    assert finding["reduced"]
    assert finding["events"] <= 6
    saved = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert [each["signature"] for each in saved["findings"]] == [each["signature"] for each in ran.json["findings"]]

    again = hybridfuzz("replay", "out/findings", "--target", MUTANT, "--json")
    assert again.status == 1
    assert {each["signature"] for each in again.json["results"]} == {each["signature"] for each in ran.json["findings"]}
    assert hybridfuzz("replay", "out").status == 1, "on the campaign's target"
    assert hybridfuzz("replay", "out", "--target", "hybrid").status == 0

    small = hybridfuzz("reduce", finding["trace"], "--target", MUTANT, "-o", "small.json", "--json")
    assert small.status == 0
    assert small.json["signature"] == finding["signature"]
    assert len(load_trace(tmp_path / "small.json").events) == small.json["events"]


def test_a_trace_of_another_engine_is_ported_if_that_is_wanted(hybridfuzz: Cli) -> None:
    file = min((Path(__file__).parents[4] / "corpus" / "sglang").glob("*.json"))
    refused = hybridfuzz("replay", file)
    assert refused.status == 2
    assert "mamba_cache_mode=slots" in refused.error
    assert "--port" in refused.error
    ran = hybridfuzz("replay", file, "--port", "--json")
    assert ran.status == 0
    assert "mamba_cache_mode: slots -> align" in ran.json["results"][0]["changes"]


def test_a_refused_trace_is_named_and_the_others_run(hybridfuzz: Cli, tmp_path: Path) -> None:
    corpus = Path(__file__).parents[4] / "corpus"
    foreign, ours = min((corpus / "sglang").glob("*.json")), min(corpus.glob("*.json"))
    ran = hybridfuzz("replay", foreign, ours, "--json")
    assert ran.status == 2
    assert f"refused {foreign}" in ran.err
    assert "2 traces on hybrid: 0 failed, 1 clean, 1 refused" in ran.err
    assert ["refused" in result for result in ran.json["results"]] == [True, False]
    assert str(foreign) in hybridfuzz("replay", foreign).error


def test_a_trace_that_is_refused_when_it_is_opened_does_not_stop_the_others(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The failure of another one was lost from --json, and the status was 2."""
    for name, blocks in (("a", 60), ("b", 61), ("c", 60)):
        (tmp_path / f"{name}.json").write_bytes(encode_trace(make_trace(arrive("r0", 3, new=9), num_blocks=blocks)))
    target = ("--target", "python:fake_targets:LATE")
    ran = hybridfuzz("replay", "a.json", "b.json", "c.json", *target, "--json")
    assert ran.status == 1, ran
    assert [bool(result["signature"]) for result in ran.json["results"]] == [True, False, True]
    assert ran.json["results"][1]["refused"] == "pools of an odd size need a licence"
    assert hybridfuzz("replay", "b.json", *target).error.endswith("b.json: pools of an odd size need a licence")


def test_what_a_campaign_keeps_beside_its_traces_is_not_replayed(tmp_path: Path) -> None:
    """Lines that were measured, and the parts of a merged campaign; folders of other origin may have these names."""
    kept = ("campaign.json", "species.json", "coverage/coverage.json", "findings/a.json", "parts/one/findings/a.json")
    for name in kept:
        for folder in ("out", "mine/coverage", "mine/parts"):
            if folder == "out" or name == "findings/a.json":
                file = tmp_path / folder / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
    found = [str(file.relative_to(tmp_path)) for file in trace_files([str(tmp_path)])]
    assert found == ["mine/coverage/findings/a.json", "mine/parts/findings/a.json", "out/findings/a.json"]
    assert trace_files([str(tmp_path / "out/parts")]) == [tmp_path / "out/parts/one/findings/a.json"]


def test_targets(hybridfuzz: Cli) -> None:
    assert "hybrid has " in hybridfuzz("targets").out
    assert MUTANT in hybridfuzz("targets", "hybrid").out
    facts = hybridfuzz("targets", "hybrid", "--json").json
    assert "M1" in facts["oracles"]
    assert "align" in facts["modes"]


def test_the_table_of_the_workload_is_printed_and_changed(hybridfuzz: Cli, tmp_path: Path) -> None:
    table = hybridfuzz("targets", "--workload", "--json").json
    assert (table["preempt"], table["bursts"]) == ("12", "3/4/6/8/12/2/6/1")
    assert "preempt                12  " in hybridfuzz("targets", "--workload").out
    changes = {"conversations": "0", "preempt": "0", "abort": "90"}
    changed = ("--workload", "preempt=0,conversations=0", "--workload", "abort=90")
    summary = hybridfuzz(*SMALL, *changed, "-o", "out").json
    assert summary["workload"] == changes
    assert hybridfuzz(*SMALL, "-o", "usual").json["steps"] != summary["steps"]
    assert "--workload abort=90" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_doctor(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("doctor")
    assert ran.status == 0, ran.out
    assert "steps/s" in ran.out


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5s", 1.5), ("5m", 300), ("1h30m", 5400), ("2d", 172800)],
)
def test_duration(text: str, seconds: float) -> None:
    assert units.duration(text) == seconds


@pytest.mark.parametrize(("text", "number"), [("500", 500), ("10k", 10_000), ("1_000_000", 10**6)])
def test_count(text: str, number: int) -> None:
    assert units.count(text) == number


@pytest.mark.parametrize(("text", "size"), [("4GiB", 1 << 32), ("500MB", 500_000_000), ("1K", 1000)])
def test_size(text: str, size: int) -> None:
    assert units.size(text) == size


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "5x"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=text or ".*"):
        units.duration(text)


def test_two_targets_are_compared(hybridfuzz: Cli, tmp_path: Path) -> None:
    """A mutant differs from the sound target: the reduced trace is saved, and shows it when it is replayed."""
    ran = hybridfuzz("fuzz", "--against", MUTANT, "--traces", "6", "--seed", "3", "-o", tmp_path)
    assert ran.status == 1
    assert "seed 3" in ran.out
    file = min(tmp_path.glob("D1-*.json"))  # two workers may each find one, by different events
    assert hybridfuzz("replay", file, "--against", MUTANT).status == 1
    assert hybridfuzz("replay", file, "--against", "hybrid").status == 0


@pytest.mark.exhaustive
def test_a_comparison_goes_on_after_a_refusal(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The differences that were found before it were lost, and the status was 2."""
    late = ("--target", "hybrid", "--against", "python:fake_targets:LATE", "--json")
    for name, blocks in (("a", 60), ("b", 61)):
        (tmp_path / f"{name}.json").write_bytes(encode_trace(make_trace(arrive("r0", 3, new=9), num_blocks=blocks)))
    ran = hybridfuzz("replay", "a.json", "b.json", *late)
    assert ran.status == 1, ran
    differs, refused = ran.json["results"]
    assert differs["signature"].startswith("D1-")
    assert refused["refused"] == "pools of an odd size need a licence"
    assert hybridfuzz("replay", "b.json", *late).error.endswith("b.json: pools of an odd size need a licence")
    ran = hybridfuzz("fuzz", *late, "--seed", "1", "--traces", "8", "--reduce", "1s", "-o", "out")
    assert ran.status == 1, ran
    assert 0 < ran.json["refused"] < 8 == ran.json["traces"]
    assert "traces did not run, as the target refused them, most often because: pools of an odd size need" in ran.err


def test_an_interrupted_comparison_is_not_clean(environment: dict[str, str], tmp_path: Path) -> None:
    words = ("fuzz", "--against", "hybrid", "--time", "60s", "--seed", "1", "-o", "out", "--json")
    with subprocess.Popen(
        command(*words), env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(process, "comparing hybrid and hybrid")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 5
    assert json.loads(out.splitlines()[-1])["exit_reason"] == "interrupted"


def test_workers_share_the_memory_of_the_machine_unless_a_limit_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts them: a comparison, a bisection, the gate and the self-test had no limit."""
    whole = memory_share()
    assert 0 < memory_share(2) <= whole // 2
    assert WorkerClient("hybrid", LAUNCH).memory_limit == whole
    assert WorkerClient("hybrid", LAUNCH, memory_limit=0).memory_limit == 0
    for given, each in ((None, whole // 2), (0, 0), (1 << 30, 1 << 30)):
        options = Namespace(target="hybrid", against=MUTANT, timeout=1.0, memory=given)
        assert [worker.memory_limit for worker in pair_of(options).workers] == [each, each]
    limits: list[int] = []

    class Started(WorkerClient):
        def start(self) -> Ready:
            limits.append(self.memory_limit)
            raise TargetError("seen")

    monkeypatch.setattr("hybridfuzz.harness.workers.worker_client.WorkerClient", Started)
    monkeypatch.setattr("hybridfuzz.targets.base.registry.prepare", lambda *_: LAUNCH)
    options = Namespace(target="vllm", timeout=1.0, memory=None)
    with pytest.raises(TargetError, match="seen"), started(options, "1", None):
        pass
    assert limits == [whole]


def test_the_summary_has_the_options_that_chose_what_ran() -> None:
    """The page prints them in the command that runs the same traces again."""
    given = ["--fixes", "builtin", "--known", "k.toml", "--timeout", "5s", "--no-canary"]
    parser = ArgumentParser()
    add_arguments(parser)
    assert asked(parser.parse_args([*given, "--seed", "1"])) == given
    assert asked(parser.parse_args([])) == []


def test_a_list_whose_patches_are_applied_is_given_to_the_commands_that_run_a_finding_again(tmp_path: Path) -> None:
    """They have `--fixes` only, and ran the finding on the engine without the patches."""
    parser = ArgumentParser()
    add_arguments(parser)
    known = tmp_path / "known.toml"
    known.write_text(
        '[[known]]\nname = "slow"\ntarget = "vllm*"\nreason = "#1"\nsignature = ["M1-*"]\n', encoding="utf-8"
    )
    options = parser.parse_args(["--known", str(known)])
    assert asked(options, ["slow"]) == ["--fixes", str(known)]
    assert asked(options, ["other"]) == asked(options) == ["--known", str(known)]
