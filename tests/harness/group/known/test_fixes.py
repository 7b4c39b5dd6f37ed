"""Known bugs with a patch: campaigns run with them fixed, and each run tests whether they are still there.

The target is a user's module with two planted bugs of the same signature: the first is known and has a patch.
"""

import datetime
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_process import Cli, Ran, command
from support import arrive, make_trace, steps

from hybridfuzz.harness.campaign.known_bugs import KnownBugs, differs
from hybridfuzz.harness.campaign_summary import Finding, KnownBug, Summary
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.face.outputs.console import notes
from hybridfuzz.harness.group.known.fixes import (
    Fixes,
    apply_fixes,
    fixes_in,
    once,
    packaged_traces,
    read_fixes,
    verdict_on,
)
from hybridfuzz.harness.group.known.known_toml import Known, fitting, load_known
from hybridfuzz.harness.group.known.verification import FIXED, OPEN, Silenced, Verifier, kind_of
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.results import Ran as Result
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.base.trace import Trace, TraceError

CORPUS = Path(__file__).parents[4] / "corpus"
FIRST, SECOND = "null-as-state-slot", "padding-skipped-at-batch-1"
SIGNATURE = "M4-step-mamba-dead-write"
ENGINE = """\
from hybridfuzz.targets.base.proxy import FactoryProxy
from hybridfuzz.targets.base.registry import load_factory

FIRST = True
# between
SECOND = {second}
# behind
SLUG = ":null-as-state-slot" if FIRST else ":padding-skipped-at-batch-1" if SECOND else ""
FACTORY = load_factory(f"hybrid{{SLUG}}")
"""
SLOW_UNPATCHED = """
if FIRST:
    import time

    class Slow(FactoryProxy):
        def open(self, config):
            time.sleep(100)

    FACTORY = Slow(FACTORY)
"""
PATCH = """\
--- a/mine.py
+++ b/mine.py
@@ -4,2 +4,2 @@
-FIRST = True
+FIRST = False
 # between
"""
KNOWN = """\
[[known]]
name = "first"
reason = "issue 1"
patch = "first.patch"
traces = ["first.json"]
signature = "M4-*-mamba-dead-write"
"""
TARGET = "python:mine:FACTORY"
TODAY = datetime.date(2026, 12, 1)
ARGUMENTS = ("--seed", "1", "--jobs", "1", "--no-canary", "--reduce", "1s", "--json")


@pytest.fixture
def fuzz(tmp_path: Path, environment: dict[str, str]) -> Callable[..., Ran]:
    """A folder with mine.py and fixes/, and a campaign on it."""
    (tmp_path / "mine.py").write_text(ENGINE.format(second=False))
    (tmp_path / "fixes").mkdir()
    (tmp_path / "fixes" / "known.toml").write_text(KNOWN)
    (tmp_path / "fixes" / "first.patch").write_text(PATCH)
    [trace] = CORPUS.glob(f"{FIRST}--*.json")
    (tmp_path / "fixes" / "first.json").write_bytes(trace.read_bytes())

    def run(*arguments: object, action: str = "fuzz") -> Ran:
        env = {**environment, "HYBRIDFUZZ_CACHE": str(tmp_path / "cache")}
        line = command(action, *(ARGUMENTS if action == "fuzz" else ()), *arguments)
        ran = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return run


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


class TestCampaign:
    """`hybridfuzz fuzz --fixes DIR`."""

    def only(self, ran: Ran) -> dict[str, Any]:
        [bug] = ran.json["known_bugs"]
        return dict(bug)

    def test_behind_a_known_bug_it_is_clean(self, fuzz: Callable[..., Ran]) -> None:
        without = fuzz("--target", TARGET, "--traces", "12", "-o", "without")
        assert without.status == 1 and SIGNATURE in {one["signature"] for one in without.json["findings"]}
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--traces", "12", "-o", "out")
        assert ran.json["findings"] == []
        assert ran.json["version"] == "1 fix"
        assert self.only(ran) | {"detail": ""} == {
            "name": "first", "reason": "issue 1", "verdict": "still there", "detail": "", "patched": True, "failed": 1,
            "traces": 1, "covered": 0, "warning": "",
        }  # fmt: skip
        assert "ran with 1 known bug fixed" in ran.err and "known bugs: 1 still there" in ran.err

    def test_a_trace_is_replayed_behind_fixes(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        trace = ("fixes/first.json", "--target", TARGET)
        assert fuzz(*trace, "--fixes", "fixes", action="replay").status == 0
        refused = fuzz(*trace, "--fixes", "fixes", "--against", "hybrid", action="replay")
        assert refused.status == 2 and "it has no --fixes" in refused.error
        (tmp_path / "hybridfuzz.toml").write_text('fixes = ["fixes"]\n')
        assert fuzz(*trace, action="replay").status == 0, "those of the options file"
        assert fuzz(*trace, "--fixes", "none", action="replay").status == 1

    def test_the_check_of_known_bugs_ends_with_the_time(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        """On a GPU it went on for minutes: each trace compiles kernels."""
        (tmp_path / "mine.py").write_text(ENGINE.format(second=False) + SLOW_UNPATCHED)
        began = time.monotonic()
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--time", "3s", "-o", "out")
        assert time.monotonic() - began < 50
        assert self.only(ran)["verdict"] == "not tested"

    def test_a_new_bug_with_the_signature_of_the_known_one_is_new(
        self, fuzz: Callable[..., Ran], tmp_path: Path
    ) -> None:
        """A list of signatures takes it for the known bug."""
        change(tmp_path / "mine.py", "SECOND = False", "SECOND = True")
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--traces", "20", "-o", "out")
        [found] = [one for one in ran.json["findings"] if one["signature"] == SIGNATURE]
        assert (ran.status, found["known"]) == (1, "")
        again = f"hybridfuzz replay {found['trace']} --target {TARGET} --fixes fixes"
        assert again in ran.err and again in Path(tmp_path, found["trace"]).with_suffix(".txt").read_text()
        (tmp_path / "bare.toml").write_text('[[known]]\nsignature = "M4-*"\nreason = "issue 1"\n')
        change(tmp_path / "mine.py", "FIRST = True", "FIRST = False")
        hidden = fuzz("--target", TARGET, "--known", "bare.toml", "--traces", "20", "-o", "hidden")
        assert all(one["known"] for one in hidden.json["findings"])
        bug = self.only(hidden)
        assert bug["covered"] == sum(one["count"] for one in hidden.json["findings"]) > 0
        assert "hides other bugs" in bug["warning"] and "covered" in hidden.err

    def test_a_bug_that_is_fixed_upstream_is_reported(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        change(tmp_path / "mine.py", "FIRST = True", "FIRST = False")
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--traces", "400", "-o", "out")
        bug = self.only(ran)
        assert (bug["verdict"], bug["patched"]) == ("fixed upstream", False)
        assert "remove the entry" in bug["detail"] and "known bug first: fixed upstream" in ran.err
        assert ran.status == 3

    def test_a_patch_that_no_longer_applies_is_left_out(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        """The entry then goes by its signature."""
        change(tmp_path / "mine.py", "# between", "# moved")
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--traces", "12", "-o", "out")
        bug = self.only(ran)
        assert (bug["verdict"], bug["patched"]) == ("patch no longer applies", False)
        assert bug["covered"] > 0 and all(one["known"] for one in ran.json["findings"])
        assert ran.status == 3
        [line] = [line for line in ran.err.splitlines() if "the campaign runs without this patch" in line]
        assert "mine.py: hunk 1" in line

    def test_a_broken_patch_is_one_line_before_anything_runs(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        change(tmp_path / "fixes" / "first.patch", "b/mine.py", "b/../mine.py")
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--traces", "12", "-o", "out")
        assert ran.status == 2 and "'../mine.py' is no relative path" in ran.error
        assert not (tmp_path / "out").exists()

    def test_bugs_met_without_the_fixes_are_not_called_fixed(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        """The history of a folder in which campaigns ran without and with fixes."""
        fuzz("--target", TARGET, "--traces", "12", "-o", "out")
        ran = fuzz("--target", TARGET, "--fixes", "fixes", "--traces", "12", "-o", "out", "--seed", "2")
        assert ran.json["findings"] == []
        history = json.loads((tmp_path / "out" / "triage.json").read_text())
        assert {bug["state"] for bug in history.values()} == {"new"}


class TestCommands:
    """`hybridfuzz known`, `verify-fix`, and what takes a finding of a campaign behind fixes."""

    @pytest.fixture
    def behind(self, tmp_path: Path) -> str:
        """A trace that shows the second bug, which is there once the first is fixed."""
        change(tmp_path / "mine.py", f":{SECOND}", ":hit-before-commit")
        change(tmp_path / "mine.py", "SECOND = False", "SECOND = True")
        [trace] = CORPUS.glob("hit-before-commit--*.json")
        (tmp_path / "new.json").write_bytes(trace.read_bytes())
        return "new.json"

    def test_a_report_has_the_fixes_that_the_failure_needs(
        self, fuzz: Callable[..., Ran], tmp_path: Path, behind: str
    ) -> None:
        assert "runs clean" in fuzz(behind, "--target", TARGET, "-o", "bare", action="repro").error
        for _ in range(2):  # the second time into the same folder
            ran = fuzz(behind, "--target", TARGET, "--fixes", "fixes", "-o", "repro", action="repro")
            assert "it needs first" in ran.err and "\nS5-" in f"\n{ran.out}"
            assert ran.status == 2, "a module of one's own has no script"
        report = (tmp_path / "repro" / "REPORT.md").read_text()
        assert "Run with patches" in report and "`first.patch`: issue 1" in report
        assert f"hybridfuzz replay trace.json --target {TARGET} --fixes fixes" in report
        again = fuzz("repro/trace.json", "--target", TARGET, "--fixes", "repro/fixes", action="replay")
        assert again.status == 1 and "S5-" in again.out

    def test_a_report_without_need_of_fixes_is_about_the_engine_as_it_is(
        self, fuzz: Callable[..., Ran], tmp_path: Path, behind: str
    ) -> None:
        change(tmp_path / "mine.py", "FIRST = True", "FIRST = bool(0)")
        change(tmp_path / "fixes" / "first.patch", "FIRST = True", "FIRST = bool(0)")
        ran = fuzz(behind, "--target", TARGET, "--fixes", "fixes", "-o", "repro", action="repro")
        assert "it needs none" in ran.err
        assert "Run with patches" not in (tmp_path / "repro" / "REPORT.md").read_text()
        assert not (tmp_path / "repro" / "fixes").exists()

    def test_a_trace_is_reduced_behind_fixes(self, fuzz: Callable[..., Ran], behind: str) -> None:
        line = (behind, "--target", TARGET, "-o", "small.json")
        assert "runs clean" in fuzz(*line, action="reduce").error
        wrong = fuzz("fixes/first.json", *line[1:], "--fixes", "fixes", action="reduce")
        assert "runs clean on python:mine:FACTORY with the fixes" in wrong.error and "--fixes none" in wrong.error
        ran = fuzz(*line, "--fixes", "fixes", action="reduce")
        assert ran.status == 0 and ran.out.startswith("S5-")
        assert f"hybridfuzz replay small.json --target {TARGET} --fixes fixes" in ran.out

    def test_add_list_and_check(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        found = fuzz("--target", TARGET, "--traces", "12", "-o", "out").json["findings"]
        name = found[0]["name"] or found[0]["signature"]
        patch = tmp_path / "fixes" / "first.patch"
        line = ["add", "out", "--id", name, "--reason", "issue 1", "--target", TARGET, "-o", "mine/known.toml"]
        added = fuzz(*line, "--patch", patch, action="known")
        assert added.status == 0, added
        for how in ("without", "with"):  # each run of an engine takes long
            assert f"starting {TARGET}, {how} the patch\ntrace 1 of " in added.err, "what goes on is said at once"
        [entry] = load_known(tmp_path / "mine" / "known.toml")
        assert (entry.reason, entry.signatures, bool(entry.read_patch())) == ("issue 1", (found[0]["signature"],), True)
        assert len(entry.read_traces()) >= 1
        again = fuzz(*line, action="known")
        assert again.status == 2 and "already" in again.error
        listed = fuzz("list", "mine", "--target", TARGET, action="known")
        assert "issue 1" in listed.out and " patch " in listed.out
        checked = fuzz("check", "mine", "--target", TARGET, "--json", action="known")
        assert (checked.status, [one["verdict"] for one in checked.json["entries"]]) == (0, ["still there"])
        change(tmp_path / "mine" / "known" / f"{name}.patch", "+FIRST = False", "+FIRST = 1")
        checked = fuzz("check", "mine", "--target", TARGET, action="known")
        assert checked.status == 1 and "not fixed by its patch" in checked.out

    def test_add_refuses_what_is_not_shown(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        trace = tmp_path / "fixes" / "first.json"
        line = ["add", trace, "--target", TARGET]
        assert "--reason is missing" in fuzz(*line, action="known").error
        clean = fuzz(*line[:2], "--reason", "r", "--target", "hybrid", action="known")
        assert clean.status == 2 and "runs clean" in clean.error
        wrong = tmp_path / "wrong.patch"
        wrong.write_text(PATCH.replace("+FIRST = False", "+FIRST = 1"))
        ran = fuzz(*line, "--reason", "r", "--patch", wrong, action="known")
        assert ran.status == 2 and "fails with the patch, too" in ran.error
        assert not (tmp_path / "known.toml").exists()

    def test_a_right_patch(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        line = [tmp_path / "fixes" / "first.json", "--target", TARGET, "--neighbours", "40", "--steps", "300", "--json"]
        ran = fuzz(*line, "--patch", tmp_path / "fixes" / "first.patch", action="verify-fix")
        assert (ran.status, ran.json["verdict"], ran.json["failures"]) == (0, "fixes it", [])
        own, around, campaign = ran.json["rows"]
        assert own["before"] == {SIGNATURE: 1} and around["before"][SIGNATURE] > 1
        assert own["after"] == around["after"] == campaign["after"] == {}
        assert around["traces"] >= 30 and campaign["steps"] >= 300

    def test_other_findings_that_the_patch_silences_are_listed(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        """Here a campaign has taken one cause for two findings."""
        fuzz("--target", TARGET, "--traces", "12", "-o", "out")
        state = tmp_path / "out" / "campaign.json"
        content = json.loads(state.read_text())
        one = content["findings"][0]
        twin = tmp_path / "out" / "findings" / "twin.json"
        twin.write_bytes((tmp_path / "fixes" / "first.json").read_bytes())
        broken = {**one, "name": "broken", "trace": "findings/broken.json"}
        twin.with_name("broken.json").write_text("{")
        content["findings"] = [one, {**one, "name": "twin", "trace": f"findings/{twin.name}"}, broken]
        state.write_text(json.dumps(content))
        line = ["out", "--id", one["name"] or one["signature"], "--target", TARGET, "--neighbours", "5", "--json"]
        ran = fuzz(*line, "--patch", tmp_path / "fixes" / "first.patch", "--steps", "50", action="verify-fix")
        assert (ran.status, ran.json["silenced"]) == (0, [{"finding": "twin", "failing": 1, "silent": 1}])
        assert "passes or gets further with it: twin, 1 of 1 failing trace" in ran.err
        assert "broken is left out: " in ran.err

    def test_a_patch_that_does_nothing(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        (tmp_path / "wrong.patch").write_text(PATCH.replace("+FIRST = False", "+FIRST = 1"))
        trace = tmp_path / "fixes" / "first.json"
        ran = fuzz(trace, "--target", TARGET, "--patch", "wrong.patch", "--json", action="verify-fix")
        assert (ran.status, ran.json["verdict"]) == (1, "does not fix it")
        [failure] = ran.json["failures"]
        assert failure["signature"] == SIGNATURE and (tmp_path / failure["trace"]).exists()

    def test_a_patch_that_breaks_something_else(self, fuzz: Callable[..., Ran], tmp_path: Path) -> None:
        """It exchanges the first bug for another one, which the trace of the finding does not show."""
        broken = PATCH.replace("+FIRST = False", "+FIRST, SECOND = False, True").replace(",2 +4,2", ",3 +4,2")
        (tmp_path / "broken.patch").write_text(f"{broken}-SECOND = False\n")
        change(tmp_path / "mine.py", SECOND, "hit-before-commit")
        line = ["--target", TARGET, "--patch", "broken.patch", "--neighbours", "60", "--json"]
        ran = fuzz(tmp_path / "fixes" / "first.json", *line, action="verify-fix")
        assert (ran.status, ran.json["verdict"]) == (1, "fixes it, but breaks something else"), ran
        failure = ran.json["failures"][0]
        assert failure["kind"] == "broken"
        assert len(json.loads((tmp_path / failure["trace"]).read_text())["events"]) == failure["events"] < 12

    def test_a_target_with_the_fix_instead_of_a_patch(self, hybridfuzz: Cli) -> None:
        [trace] = CORPUS.glob(f"{FIRST}--*.json")
        line = [trace, "--target", f"hybrid:{FIRST}", "--neighbours", "20", "--steps", "100"]
        ran = hybridfuzz("verify-fix", *line, "--fixed", "hybrid")
        assert ran.status == 0 and "hybrid: fixes it" in ran.out
        ran = hybridfuzz("verify-fix", *line, "--fixed", f"hybrid:{SECOND}")
        assert ran.status in (0, 1)
        nothing = hybridfuzz("verify-fix", trace, "--target", "hybrid", "--fixed", "hybrid")
        assert nothing.status == 2 and "nothing to verify" in nothing.error


def violation(oracle: str, event: int) -> Violation:
    return Violation(oracle=oracle, field="", told=oracle, event=event)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(2, None, "clean"), (None, 2, "broken"), (2, 1, "broken"), (2, 3, "later"), (2, 2, "remains")],
)
def test_kinds_of_failures(before: int | None, after: int | None, kind: str) -> None:
    one, other = (None if event is None else violation("S6", event) for event in (before, after))
    assert kind_of(one, other, {"S6"}) == kind


def test_a_verdict_is_open_if_traces_fail_in_other_ways(tmp_path: Path) -> None:
    """A patch for one of the cases of vLLM's prompt-as-decode was said to fix it, while 69 of 300 neighbours still
    failed with signatures that the finding does not have."""
    trace = make_trace(arrive("r0", 3), *steps(3))

    class Before:
        def run(self, trace: Trace) -> Outcome:
            return Outcome(violation("S6", 1), 1, 1, {}, {}, 0)

    class After:
        def run(self, other: Trace) -> Outcome:
            return Outcome(None if other == trace else violation("S3", 2), 1, 1, {}, {}, 0)

        def fuzz(self, request: Fuzz) -> list[Result]:
            return [Result(index, Outcome(None, 100, 1, {}, {}, 0)) for index in request.indexes]

    capabilities = load_factory("hybrid").capabilities
    verifier = Verifier(Before(), After(), capabilities, tmp_path)  # type: ignore[arg-type]
    result = verifier.verify([trace], count=20, steps=100, seed=0)
    assert (result.verdict, result.fixes) == (OPEN, False)
    assert [(failure.kind, failure.signature) for failure in result.failures] == [("later", "S3")]
    assert load_trace(Path(result.failures[0].trace)) != trace


def test_a_finding_that_fails_with_the_patch_is_not_taken_for_the_same_cause(tmp_path: Path) -> None:
    own, twin, later, stranger, clean = (make_trace(arrive(f"r{number}", 3), *steps(3)) for number in range(5))
    events = [(later, 2), (stranger, 1)]

    class Before:
        def run(self, trace: Trace) -> Outcome:
            return Outcome(None if trace == clean else violation("S6", 1), 1, 1, {}, {}, 0)

    class After:
        def run(self, trace: Trace) -> Outcome:
            found = next((violation("S6", event) for one, event in events if one == trace), None)
            return Outcome(found, 1, 1, {}, {}, 0)

        def fuzz(self, request: Fuzz) -> list[Result]:
            return [Result(index, Outcome(None, 100, 1, {}, {}, 0)) for index in request.indexes]

    verifier = Verifier(Before(), After(), load_factory("hybrid").capabilities, tmp_path)  # type: ignore[arg-type]
    others = {"same": [twin, later, stranger, clean], "another": [stranger], "gone": [clean]}
    result = verifier.verify([own], count=0, steps=0, seed=0, others=others)
    assert (result.verdict, result.silenced) == (FIXED, (Silenced("same", failing=3, silent=2),))


def entry(**more: Any) -> Known:
    return Known(**{"reason": "r", "signature": "M2-*", "name": "one", **more})


@pytest.mark.parametrize(
    ("verdict", "problem", "failed", "ran"),
    [
        ("still there", "", 1, 2),
        ("fixed upstream", "", 0, 2),
        ("fixed upstream", "does not apply", 0, 2),
        ("patch no longer applies", "does not apply", 1, 2),
        ("patch no longer applies", "does not apply", 0, 0),
        ("not tested", "", 0, 0),
    ],
)
def test_verdicts(verdict: str, problem: str, failed: int, ran: int) -> None:
    bug = verdict_on(entry(patch="p"), problem, failed=failed, ran=ran)
    assert (bug.verdict, bug.patched) == (verdict, not problem)
    assert bug.outdated == (verdict in ("fixed upstream", "patch no longer applies"))


def test_entries_for_a_release_and_for_a_checkout() -> None:
    """A checkout gets the entries of the newest release in the file."""
    known = [
        entry(name="old", releases=("0.9.0",)),
        entry(name="new", releases=("0.10.0",)),
        entry(name="all"),
        entry(name="other", target="sglang*", releases=("9.0",)),
        entry(name="past", expires=TODAY),
    ]
    fits = {version: [one.name for one in fitting(known, "vllm@x", version, TODAY)] for version in ("0.9.0", "/a/tree")}
    assert fits == {"0.9.0": ["old", "all"], "/a/tree": ["new", "all"]}
    assert [one.name for one in fitting(known, "vllm@x", "0.10.0 + 2 fixes", TODAY)] == ["new", "all"]
    for newer in ("0.10.1", "0.11.0", "1.0.0"):
        assert [one.name for one in fitting(known, "vllm@x", newer, TODAY)] == ["new", "all"]
    assert [one.name for one in fitting(known, "vllm@x", "0.9.5", TODAY)] == ["all"]


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.29.2", ["all"]),
        ("0.30.0", ["range", "all"]),
        ("0.32.5.post1", ["range", "open", "all"]),
        ("0.33.0 + 2 fixes", ["open", "stars", "all"]),
        ("0.33.4", ["open", "stars", "all"]),
        ("0.34.0", ["open", "all"]),
        ("/a/tree", ["open", "stars", "all"]),
    ],
)
def test_an_entry_is_for_a_range_of_releases(version: str, names: list[str]) -> None:
    """A release that is newer than all that are named gets the entries of the newest; others decide."""
    known = [
        entry(name="range", releases=(">=0.30,<0.33",)),
        entry(name="open", releases=(">0.32",)),
        entry(name="stars", releases=("0.33.*",)),
        entry(name="all"),
    ]
    assert [one.name for one in fitting(known, "vllm@x", version, TODAY)] == names


def test_a_range_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text('[[known]]\nreason = "r"\nsignature = "M2-*"\nreleases = [">=new"]\n')
    with pytest.raises(TraceError, match=r"entry 1: releases '>=new': write a release, a range such as"):
        load_known(tmp_path / "known.toml")


def test_a_file_that_two_settings_name_counts_once(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, again = entry(name="a", folder=str(tmp_path)), entry(name="a", folder=str(tmp_path / "other" / ".."))
    elsewhere, other = entry(name="a", folder=str(tmp_path / "other")), entry(name="b", folder=str(tmp_path))
    assert once([first, again, elsewhere, other]) == [first, elsewhere, other]


def test_shares_differ_only_if_the_difference_is_large_and_certain() -> None:
    assert differs(10, 1000, 60, 1000) and differs(60, 1000, 10, 1000)
    assert differs(0, 1000, 30, 1000)
    assert not differs(10, 1000, 15, 1000), "noise"
    assert not differs(1, 10, 4, 10), "too few"
    assert not differs(400, 1000, 500, 1000), "certain, but not twice as many"
    assert not differs(0, 0, 5, 10)


def test_the_report_says_how_much_a_bare_signature_covers_and_that_its_share_changed() -> None:
    known = (entry(expires=datetime.date(2027, 1, 31)),)
    launch = Launch("python", {})
    last = Summary(
        "t", "1", 1, {}, "time", 1000, 1, 1.0, [], {}, {}, [], [], known_bugs=[KnownBug("one", "r", covered=5)]
    )
    bugs = KnownBugs(Fixes(launch, launch, known), last)
    finding = Finding("M2-step-mamba-key", "M2", "M2: x", 1, 1, 5, "findings/M2-step-mamba-key.json", 7, 80, known="r")
    [bug] = bugs.reports([finding], 1000)
    assert bug.covered == 80 and "5 of 1,000 traces last time, 80 of 1,000 traces now" in bug.warning
    summary = Summary("t", "1", 1, {}, "time", 1000, 1, 1.0, [finding], {}, {}, [], [], known_bugs=[bug])
    assert any("covered 80 failing traces" in line for line in notes(summary))


def test_verdicts_hold_only_for_the_same_fixes() -> None:
    assert (
        fixes_in("0.33.0 + 9 fixes")
        == fixes_in("9 fixes")
        == "9 fixes"
        != fixes_in("0.33.0")
        == fixes_in("0.34.0")
        == ""
    )


def test_each_engine_has_its_own_packaged_traces() -> None:
    """No other engine takes the configuration of one of the built-in target's."""
    for engine in ("vllm", "sglang", "transformers", "llamacpp"):
        assert {path.parent.name for path in packaged_traces(f"{engine}@.")} == {engine}
    ours = packaged_traces("hybrid:null-as-state-slot")
    assert {path.parent.resolve() for path in ours} == {CORPUS}
    assert packaged_traces("python:somewhere:FACTORY") == ours, "which may take them"


def test_packaged_fixes_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries name files that exist; a trace is of a release in which the packaged cause was found."""
    for engine in ("llamacpp", "sglang", "transformers", "vllm"):
        entries = read_fixes("builtin", f"{engine}@1.0")
        for known in entries:
            if known.patch:
                assert known.title in known.read_patch().about
            assert known.read_traces() or known.patch
            found = {release for one in entries if one.title == known.title for release in one.releases}
            assert {Path(trace).name.split("--")[0] for trace in known.traces} <= found
    with pytest.raises(TraceError, match="no known bugs of hybrid"):
        read_fixes("builtin", "hybrid")


def test_a_target_without_a_tree_takes_known_bugs_but_no_patches(tmp_path: Path) -> None:
    launch = prepare("hybrid", print)
    assert apply_fixes(launch, [entry()], "hybrid", TODAY).launch == launch
    assert os.environ
