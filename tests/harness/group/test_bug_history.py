"""Bug history: one bug for all failures with one signature, counted once; only new ones make a campaign fail."""

import shutil
from pathlib import Path

import msgspec
import pytest
from cli_process import Cli
from msgspec import structs
from support import arrive, make_trace

from hybridfuzz.harness.campaign.retest import retest
from hybridfuzz.harness.campaign_summary import Finding, Summary
from hybridfuzz.harness.draw.trace_files import save_trace
from hybridfuzz.harness.group.bug_history import (
    Bug,
    BugHistory,
    bug_key,
    bugs_of,
    load_bug_history,
    merge,
    retried,
    save_bug_history,
    without,
)
from hybridfuzz.harness.group.causes.evidence import Condition
from hybridfuzz.harness.group.known.known_toml import Known, append_entry, load_known
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import Trace, TraceError

MUTANT = "hybrid:null-as-state-slot"
KNOWN = [Known(signature="S3-*", reason="vLLM #1", target="vllm@*")]


def finding(signature: str = "S3-step-mamba-temporal", count: int = 2, events: int = 5, **more: int) -> Finding:
    name = f"findings/{signature}.json"
    return Finding(signature, signature[:2], f"{signature[:2]}: broken", 1, 1, events, name, 7, count, **more)  # type: ignore[arg-type]


def summary(*findings: Finding, seed: int = 1, target: str = "vllm@1", version: str = "1") -> Summary:
    return Summary(target, version, seed, {}, "time", 10, 100, 1.0, findings, {}, {}, [], [])


def only(book: BugHistory) -> Bug:
    [bug] = book.values()
    return bug


def test_the_same_run_counts_once_and_two_runs_add_up() -> None:
    book = merge({}, summary(finding(count=2)), [], "day 1")
    book = merge(book, summary(finding(count=3)), [], "day 1")
    assert only(book).count == 3, "a resumed run says its own count again"
    book = merge(book, summary(finding(count=4), seed=2), [], "day 2")
    bug = only(book)
    assert bug.count == 7
    assert (bug.first_seen, bug.last_seen) == ("day 1", "day 2")


def test_a_finding_that_joined_another_one_is_counted_there_only() -> None:
    joined, other = finding("M4-step-x", count=1), finding("M4-open-x", count=5)
    book = merge({}, summary(joined, other), [], "day 1")
    assert without(book, summary(), "M4-step-x") == merge({}, summary(other), [], "day 1")
    again = merge(book, summary(joined, seed=2), [], "day 2")
    rest = without(again, summary(seed=2), "M4-step-x")
    assert rest[bug_key("vllm@1", "M4-step-x")].counts == {"vllm@1#1": 1}, "an earlier run's stays"
    assert without(rest, summary(), "M8-step-x") == rest


def test_the_shortest_trace_stays(tmp_path: Path) -> None:
    short = tmp_path / "short.json"
    short.touch()
    first = Finding("M1-x", "M1", "M1: short", 1, 1, 3, str(short), 0)
    book = merge({}, summary(first), [], "1")
    book = merge(book, summary(finding("M1-x", events=9), seed=2), [], "2")
    assert only(book).trace == str(short)
    assert only(book).message == "M1: short"
    short.unlink()
    book = merge(book, summary(finding("M1-x", events=9), seed=3), [], "3")
    assert only(book).events == 9, "a trace that is gone is no use"


def test_states() -> None:
    book = merge({}, summary(finding(shown=4, tried=4)), [], "1")
    assert only(book).state == "new"
    flaky = only(merge({}, summary(finding(shown=1, tried=3)), [], "1"))
    assert (flaky.state, flaky.shown, flaky.tried) == ("flaky", 1, 3)
    known = only(merge(book, summary(finding()), KNOWN, "2"))
    assert (known.state, known.reason) == ("known", "vLLM #1")
    gone = retried(only(book), shown=0, tried=3, known=[])
    assert gone.state == "fixed"
    assert retried(gone, shown=2, tried=3, known=[]).state == "flaky"


def test_a_fixed_bug_that_comes_back_is_new() -> None:
    fixed = retried(only(merge({}, summary(finding()), [], "1")), shown=0, tried=3, known=[])
    book = {bug_key(fixed.target, fixed.signature): fixed}
    assert only(merge(book, summary(seed=2), [], "2")).state == "fixed", "nobody looked"
    assert only(merge(book, summary(finding(), seed=2), [], "2")).state == "new"


def test_targets_are_apart_and_known_bugs_come_last() -> None:
    here = summary(finding("S3-a", count=9), finding("M1-b", count=1), target="vllm@1")
    book = merge(merge({}, here, KNOWN, "1"), summary(finding("S3-a"), target="hybrid"), KNOWN, "1")
    assert len(book) == 3
    assert [bug.signature for bug in bugs_of(book, here)] == ["M1-b", "S3-a"]


def test_the_history_is_kept(tmp_path: Path) -> None:
    book = merge({}, summary(finding()), KNOWN, "1")
    save_bug_history(tmp_path, book)
    loaded = load_bug_history(tmp_path)
    assert only(loaded).trace == str(tmp_path / "findings" / "S3-step-mamba-temporal.json"), "wherever it was written"
    assert msgspec.structs.replace(only(loaded), trace=only(book).trace) == only(book)
    assert load_bug_history(tmp_path / "elsewhere") == {}
    (tmp_path / "triage.json").write_text("{")
    with pytest.raises(TraceError, match=r"triage\.json: .* new bug history"):
        load_bug_history(tmp_path)


@pytest.mark.parametrize(
    "signature", ["M2-*", "M2*", "[M]2-?tep-*", "CRASH-*", "C*H-open-*", "DETERMINISM", "S3-[!a]*"]
)
def test_a_pattern_of_one_oracle(tmp_path: Path, signature: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f"[[known]]\nsignature='{signature}'\nreason='y'")
    assert load_known(file)[0].signatures == (signature,)


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace, file = tmp_path / "trace.json", tmp_path / "known.toml"
    save_trace(make_trace(arrive("r0", 4)), trace)
    condition = Condition({"policy": ["fcfs", "priority"]}, ['a "fact"'], ["a trait"])
    entry = Known(
        name="it", reason="issue 1", signature=("M2-step-x",), traces=("known/it-1.json",), condition=condition
    )
    append_entry(file, entry, patch=None, traces=[trace])
    [read] = load_known(file)
    assert structs.replace(read, folder="") == entry


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[known]]\nsignature = 3\nreason = 'x'", "str"),
        ("[[known]]\nsignature = 'x'", "reason"),
        ("[[known", "array declaration"),
        ("[[known]]\nsignature='x'\nreason='y'\nsince=1", "since"),
        ("[[known]]\nsignature='x'\nreason=' '", "entry 1: signature 'x' has no reason"),
        ("[[known]]\nsignature='*'\nreason='y'", "covers every bug"),
        ("[[known]]\nsignature='?*'\nreason='y'", "covers every bug"),
        ("[[known]]\nsignature=''\nreason='y'", "covers every bug"),
        ("[[known]]\nsignature='x'\nreason='y'\ntarget=''", "target is empty"),
        (
            "[[known]]\nsignature='[A-Z]*'\nreason='y'",
            r"entry 1: signature '\[A-Z\]\*' covers bugs of ADAPTER, CRASH, ",
        ),
        ("[[known]]\nsignature='?[0-9A-Z]*'\nreason='y'", "covers bugs of ADAPTER"),
        ("[[known]]\nsignature='[!a]*'\nreason='y'", "covers bugs of ADAPTER"),
        ("[[known]]\nsignature=['M2-*', '*-step-*']\nreason='y'", "covers bugs of ADAPTER"),
        ("[[known]]\nsignature='[*M][]1-9]-*'\nreason='y'", "covers bugs of M1, M2, M3, M4, ..."),
        ("[[known]]\nsignature='M[12]-step-x'\nreason='y'", "covers bugs of M1, M2; write one for each oracle"),
        ("[[known]]\nsignature='M2-*'\nreason='y'\ncondition={facts=['x']}", "a condition but no traces"),
        ("[[known]]\nsignature='x'\nreason='y'\ntext='../x.md'", "'../x.md' does not stay below the folder"),
        (f"[[known]]\nsignature='{'x' * 600}'\nreason='y'", "longer than 500"),
        ("x = " + "[" * 5_000, "recursion|nest|depth"),
        ("x = 1" + "0" * 10_000, "digits|known"),
        ("#" * (1 << 21), "too large"),
    ],
)
def test_a_broken_list_says_where(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(TraceError, match=rf"known\.toml: .*{complaint}"):
        load_known(file)


def test_only_new_findings_make_a_campaign_fail(hybridfuzz: Cli, tmp_path: Path) -> None:
    command = ["fuzz", "--target", MUTANT, "--seed", "1", "--traces", "2", "--jobs", "1", "--no-canary", "--json"]
    red = hybridfuzz(*command, "-o", "out")
    assert red.status == 1
    assert {bug["state"] for bug in red.json["bugs"]} == {"new"}
    assert all(bug["shown"] == bug["tried"] >= 3 for bug in red.json["bugs"])

    (tmp_path / "out" / "known.toml").write_text('[[known]]\nsignature = "M4-*"\nreason = "vLLM #33937"\n')
    known = hybridfuzz(*command, "-o", "out")
    assert known.status == 3, "all known, but two traces exercise next to nothing"
    assert {bug["state"] for bug in known.json["bugs"]} == {"known"}
    assert f"known: {red.json['findings'][0]['signature']} (vLLM #33937)" in known.err
    assert "no new findings: all are known" in known.err
    assert known.json["bugs"][0]["counts"] == red.json["bugs"][0]["counts"], "the same run"

    assert hybridfuzz("replay", "out", "--target", MUTANT).status == 1, "the bug history is no trace"
    assert hybridfuzz(*command, "--known", "nowhere.toml").status == 2


def test_what_a_campaign_did_not_meet_is_tested_again(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The trace of a mutant's bug runs clean on the correct target: there the bug is fixed."""
    [trace] = (Path(__file__).parents[3] / "corpus").glob("null-as-state-slot--*.json")
    out = tmp_path / "out"
    out.mkdir()
    (out / "findings").mkdir()
    copy = shutil.copy(trace, out / "findings" / "M4-step-mamba-dead-write.json")
    old = Finding("M4-step-mamba-dead-write", "M4", "M4: was broken", 1, 1, 1, str(copy), 0)
    save_bug_history(out, merge({}, summary(old, target="hybrid"), [], "1"))
    command = ["fuzz", "--seed", "3", "--traces", "1", "--jobs", "1", "--no-canary", "-o", "out"]
    ran = hybridfuzz(*command)
    assert ran.status == 3
    assert "fixed: M4-step-mamba-dead-write" in ran.out
    assert only(load_bug_history(out)).state == "fixed"
    bug = only(load_bug_history(out))
    assert (bug.shown, bug.tried) == (0, 3)
    assert "their traces run clean now" in (out / "report.html").read_text()
    assert "fixed:" not in hybridfuzz(*command, "--fresh").out, "reported once"


def test_an_old_bug_whose_trace_fails_in_another_way_is_not_fixed_and_the_failure_is_a_finding(
    hybridfuzz: Cli, tmp_path: Path
) -> None:
    """It was reported as fixed, and the failure was dropped."""
    [trace] = (Path(__file__).parents[3] / "corpus").glob("null-as-state-slot--*.json")
    out = tmp_path / "out"
    (out / "findings").mkdir(parents=True)
    copy = shutil.copy(trace, out / "findings" / "S3-step-other.json")
    old = Finding("S3-step-other", "S3", "S3: was broken", 1, 1, 1, str(copy), 0)
    save_bug_history(out, merge({}, summary(old, target=MUTANT), [], "1"))
    command = ["fuzz", "--target", MUTANT, "--seed", "2", "--traces", "1", "--jobs", "1", "--no-canary", "-o", "out"]
    ran = hybridfuzz(*command, "--json")
    assert ran.status == 1, ran
    assert "fixed:" not in ran.err
    [found] = ran.json["findings"]
    assert found["signature"].startswith("M4-")
    assert found["reduced"]
    assert found["shown"] == found["tried"] > 0
    bug = load_bug_history(out)[bug_key(MUTANT, "S3-step-other")]
    assert (bug.state, bug.shown, bug.tried) == ("new", 3, 3)
    assert "their traces run clean now" not in (out / "report.html").read_text()


class Answers:
    """A worker that gives one violation after the other."""

    def __init__(self, *fields: str) -> None:
        self.left = iter(fields)

    def start(self) -> None:
        pass

    def run(self, trace: Trace) -> Outcome:
        field = next(self.left, None)
        if field is None:
            raise TargetError("it does not start")
        return Outcome(Violation("S3", field, "") if field else None, 1, 1, {}, {}, 0)


@pytest.mark.parametrize(
    ("fields", "shown", "others"),
    [
        (("", "", ""), 0, ()),
        (("x", "x", "x"), 3, ()),
        (("x", "", "y"), 2, ("S3-y",)),
        (("y", "z", "y"), 3, ("S3-y", "S3-z")),
    ],
)
def test_every_run_of_an_old_trace_counts(
    fields: tuple[str, ...], shown: int, others: tuple[str, ...], tmp_path: Path
) -> None:
    save_trace(make_trace(arrive("r0", 3)), tmp_path / "trace.json")
    old = structs.replace(finding("S3-x"), trace=str(tmp_path / "trace.json"))
    bugs = [*merge({}, summary(old), [], "1").values()]
    [rerun] = retest(bugs, Answers(*fields))  # type: ignore[arg-type]
    assert (rerun.event.shown, rerun.event.tried) == (shown, 3)
    assert rerun.event.fixed == (not any(fields))
    assert tuple(one.signature for one in rerun.others) == others


def test_a_crash_after_which_nothing_starts_counts(tmp_path: Path) -> None:
    save_trace(make_trace(arrive("r0", 3)), tmp_path / "trace.json")
    old = structs.replace(finding("S3-x"), trace=str(tmp_path / "trace.json"))
    reruns = retest([*merge({}, summary(old), [], "1").values()], Answers("y"))  # type: ignore[arg-type]
    rerun = next(reruns)
    assert (rerun.event.shown, rerun.event.tried, len(rerun.others)) == (1, 1, 1)
    with pytest.raises(TargetError, match="does not start"):
        next(reruns)
