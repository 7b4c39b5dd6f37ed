"""`--shard` and `merge`: the same campaign in parts, whatever their order and however often they come."""

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_process import MUTANT, Cli
from msgspec import structs

from hybridfuzz.harness.campaign.trace_counts import Progress
from hybridfuzz.harness.campaign_summary import Finding, KnownBug, Summary
from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.harness.group.bug_history import load_bug_history
from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence
from hybridfuzz.harness.group.merge import merge_folders
from hybridfuzz.harness.units import Shard, shard
from hybridfuzz.targets.base.trace import Step, TraceError

NIGHT = ["fuzz", "--seed", "1", "--jobs", "1", "--reduce", "1s", "--no-canary", "--json"]
COUNTED = ("traces", "steps", "exercised", "reached", "never_exercised", "never_reached", "exit_reason")
PARTS = 3
SOME = load_trace(sorted((Path(__file__).parents[3] / "corpus").glob("*.json"))[0])


def counts(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what has to be the same as in one campaign."""
    seen = {**summary["seen"], "campaigns": 1}
    return {**{name: summary[name] for name in COUNTED}, "symptoms": symptoms(summary), "seen": seen}


def symptoms(summary: dict[str, Any]) -> Counter[str]:
    """Return the failing traces by signature. How many of them were sorted by cause depends on time."""
    total = Counter[str]()
    for finding in summary["findings"]:
        assert finding["count"] == sum(finding["symptoms"].values())
        total.update(finding["symptoms"])
    return total


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file but the page, which shows its folder's name."""
    return {
        str(path.relative_to(folder)): path.read_bytes().replace(folder.name.encode(), b"OUT")
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("report.html", ".lock")
    }


class TestShards:
    """Numbers of traces."""

    @pytest.mark.parametrize("traces", [1, 2, 7, 60])
    def test_shards_are_disjoint_and_complete(self, traces: int) -> None:
        numbers = []
        for number in (1, 2, 3):
            progress = Progress(None, Shard(number, 3))
            while batch := progress.allot(4, traces):
                numbers += [progress.shard.trace(position) for position in batch]
        assert sorted(numbers) == list(range(traces))

    def test_what_is_given_back_is_allotted_again(self) -> None:
        progress = Progress(None, Shard(2, 3))
        given = [progress.allot(4, 30), progress.allot(4, 30), progress.allot(4, 30)]
        assert [len(one) for one in given] == [4, 4, 2]
        assert not progress.allot(4, 30)
        progress.give_back([progress.shard.trace(position) for position in (5, 1, 2)])
        again = [progress.allot(8, 30) for _ in range(3)]
        assert again == [range(1, 3), range(5, 6), range(10, 10)]

    @pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "1/0", "-1/2", "a/b", "1/2/3", "1/99999999999"])
    def test_what_is_no_shard(self, text: str) -> None:
        with pytest.raises(ValueError):
            shard(text)


def history(folder: Path) -> dict[str, Any]:
    """Return the bug history without times, and without what depends on how far a reduction got."""
    bugs = json.loads((folder / "triage.json").read_text())
    total = Counter[str]()
    for bug in bugs.values():
        total.update(bug["counts"])
    return {"counts": total, "states": {bug["state"] for bug in bugs.values()}}


def test_shards_merged_are_one_campaign(hybridfuzz: Cli, tmp_path: Path) -> None:
    """In any order, in steps, twice: the same files; and the counts, findings and history of the whole campaign."""
    arguments = [*NIGHT, "--target", MUTANT, "--traces", "24"]
    whole = hybridfuzz(*arguments, "-o", "whole")
    shards = [f"shard-{number}" for number in range(1, PARTS + 1)]
    for number, folder in enumerate(shards, 1):
        assert hybridfuzz(*arguments, "--shard", f"{number}/{PARTS}", "-o", folder).json["shard"] == f"{number}/{PARTS}"

    merged = hybridfuzz("merge", *shards, "-o", "merged-1", "--json", "--junit", "junit.xml", "--sarif", "x.sarif")
    assert merged.status == whole.status == 1, merged.err
    assert counts(merged.json) == counts(whole.json)
    assert history(tmp_path / "merged-1") == history(tmp_path / "whole")
    assert (tmp_path / "junit.xml").exists() and (tmp_path / "x.sarif").exists()
    assert (tmp_path / "merged-1" / "report.html").exists()
    assert {node["name"] for node in merged.json["nodes"]} == {f"{MUTANT}#1:{number}/3" for number in (1, 2, 3)}
    for finding in merged.json["findings"]:
        assert hybridfuzz("replay", finding["trace"], "--target", MUTANT).status == 1
        assert finding["trace"] in (tmp_path / finding["trace"]).with_suffix(".txt").read_text()

    expected = files(tmp_path / "merged-1")
    hybridfuzz("merge", *reversed(shards), f"./{shards[0]}", "-o", "merged-2")
    assert files(tmp_path / "merged-2") == expected, "another order, and one folder twice"
    hybridfuzz("merge", shards[1], "-o", "merged-3")
    first = hybridfuzz("merge", shards[2], "-o", "merged-3")
    assert "warning: hybrid:null-as-state-slot#1:1/3 is missing" in first.out
    hybridfuzz("merge", "merged-3", shards[0], "-o", "merged-4")
    assert files(tmp_path / "merged-4") == expected, "in three steps"
    hybridfuzz("merge", "merged-4", "merged-1", *shards, "-o", "merged-1")
    assert files(tmp_path / "merged-1") == expected, "again, into itself"


def test_refusals(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Campaigns whose totals cannot be added up give one line; nothing is written."""
    few = [*NIGHT, "--traces", "2"]
    hybridfuzz(*few, "-o", "a")
    hybridfuzz(*few, "--shard", "1/2", "-o", "half")
    hybridfuzz(*few, "--config", "num_speculative_tokens=0", "-o", "fixed")
    assert "no campaign ran in this folder" in hybridfuzz("merge", "nowhere", "-o", "merged-1").error
    assert "they ran the same traces" in hybridfuzz("merge", "a", "half", "-o", "merged-1").error
    assert "cannot be merged: overrides" in hybridfuzz("merge", "a", "fixed", "-o", "merged-1").error
    hybridfuzz(*few, "--workload", "preempt=0", "-o", "other")
    assert "cannot be merged: workload" in hybridfuzz("merge", "a", "other", "-o", "merged-1").error
    assert "a campaign ran in this folder" in hybridfuzz("merge", "half", "-o", "a").error
    assert not (tmp_path / "merged-1" / "campaign.json").exists()
    assert "--shard needs --seed" in hybridfuzz("fuzz", "--shard", "1/2", "--traces", "1").error
    alone = hybridfuzz("merge", "half", "-o", "merged-1")
    assert alone.status == 5, "a shard is missing: that is not clean"
    shutil.rmtree(tmp_path / "merged-1")


def test_a_resumed_shard_counts_as_one(hybridfuzz: Cli, tmp_path: Path) -> None:
    """A state that was cut off and its continuation are the same campaign, and the further one counts."""
    few = [*NIGHT, "--target", MUTANT, "--traces", "12", "--shard", "2/2"]
    hybridfuzz(*few, "-o", "end")
    shutil.copytree(tmp_path / "end", tmp_path / "cut")
    file = tmp_path / "cut" / "campaign.json"
    state = json.loads(file.read_text())
    file.write_text(json.dumps({**state, "exit_reason": None, "traces": 3, "done": 3}))
    for order in itertools.permutations(("end", "cut")):
        out = "-".join(order)
        assert hybridfuzz("merge", *order, "-o", out, "--json").json["traces"] == 6
    again = hybridfuzz(*few, "-o", "cut")
    assert "continuing a campaign" in again.err, "the same command resumes a shard"


def evidence(*lines: str, signature: str = "S3-x") -> FindingEvidence:
    """Return the evidence of one trace whose run parts from its neighbours on these arcs."""
    return FindingEvidence([Evidence(signature=signature, votes=dict.fromkeys(lines, 1.0), facts=lines, switches={})])


def part(folder: Path, seed: int, findings: dict[str, tuple[str, FindingEvidence | None]]) -> Path:
    """Write the folder of a campaign with findings: name -> signature and evidence."""
    (folder / "findings").mkdir(parents=True)
    listed = []
    for number, (name, (signature, known)) in enumerate(findings.items()):
        trace = folder / "findings" / f"{name}.json"
        events = [Step()] * (number + seed)
        save_trace(structs.replace(SOME, events=tuple(events), origin=f"{seed} {name}"), trace)
        if known:
            trace.with_suffix(".evidence").write_bytes(msgspec.json.encode(known))
        listed.append(
            Finding(
                signature, signature[:2], "broken", 1, 1, len(events), str(trace), number, 2, reduced=True, name=name,
                symptoms={signature: 2},
            )
        )  # fmt: skip
    summary = Summary("hybrid", "", seed, {}, "time", 10, 100, 1.0, listed, {}, {}, [], [])
    (folder / "campaign.json").write_bytes(msgspec.json.encode(summary))
    return folder


def test_findings_are_grouped_by_cause(tmp_path: Path) -> None:
    """One cause under two names is one finding; two causes under one signature, and name, are two."""
    first = part(tmp_path / "1", 1, {"S3-x": ("S3-x", evidence("a", "b")), "M1-y": ("M1-y", None)})
    second = part(
        tmp_path / "2",
        2,
        {"S3-x": ("S3-x", evidence("c", "d")), "S3-x.2": ("S3-x", evidence("a", "b")), "M1-y": ("M1-y", None)},
    )
    third = part(tmp_path / "3", 3, {"M2-z": ("M2-z", evidence("c", "d", signature="M2-z"))})
    results = []
    for number, order in enumerate(itertools.permutations((first, second, third))):
        merged = merge_folders(order, tmp_path / f"all-{number}", (), "now")
        results.append({one.name: (one.count, dict(one.symptoms), one.events) for one in merged.summary.findings})
        history = load_bug_history(tmp_path / f"all-{number}")
        assert {bug.id: bug.count for bug in history.values()} == {name: one[0] for name, one in results[-1].items()}
    assert results == [results[0]] * len(results)
    assert results[0] == {
        "S3-x": (4, {"S3-x": 4}, 1),
        "S3-x.2": (4, {"M2-z": 2, "S3-x": 2}, 2),
        "M1-y": (4, {"M1-y": 4}, 2),
    }


class TestDamagedCopies:
    """A finding was lost in silence if one copy of its campaign had lost its trace: `cp -r`, `rm`, `merge`."""

    DAMAGE: Mapping[str, Callable[[Path], object]] = {
        "gone": Path.unlink,
        "cut": lambda trace: trace.write_bytes(trace.read_bytes()[:40]),
        "a folder": lambda trace: (trace.unlink(), trace.mkdir()),
        "a link to nothing": lambda trace: (trace.unlink(), trace.symlink_to("nothing")),
        "a FIFO": lambda trace: (trace.unlink(), os.mkfifo(trace)),
    }

    @pytest.mark.parametrize("how", DAMAGE)
    def test_the_intact_copy_wins(self, tmp_path: Path, how: str) -> None:
        intact = part(tmp_path / "1", 1, {"S3-x": ("S3-x", evidence("a")), "M1-y": ("M1-y", None)})
        alone = merge_folders([intact], tmp_path / "alone", (), "now")
        copy = shutil.copytree(intact, tmp_path / "2")
        self.DAMAGE[how](copy / "findings" / "M1-y.json")
        for number, order in enumerate(itertools.permutations((intact, copy))):
            merged = merge_folders(order, tmp_path / f"{how}-{number}", (), "now")
            assert [one.id for one in merged.summary.findings] == [one.id for one in alone.summary.findings]
            assert not merged.damaged
            assert load_trace(merged.summary.findings[1].trace)

    def test_each_copy_gives_what_it_has(self, tmp_path: Path) -> None:
        """Also if the copy that is ahead is the damaged one."""
        intact = part(tmp_path / "1", 1, {"S3-x": ("S3-x", None), "M1-y": ("M1-y", None)})
        copies = [shutil.copytree(intact, tmp_path / name) for name in ("2", "3")]
        (copies[0] / "findings" / "M1-y.json").unlink()
        change(copies[0], traces=20)
        (copies[1] / "findings" / "S3-x.json").unlink()
        for number, order in enumerate(itertools.permutations(copies)):
            merged = merge_folders(order, tmp_path / f"all-{number}", (), "now")
            assert [one.id for one in merged.summary.findings] == ["S3-x", "M1-y"]
            assert not merged.damaged
            assert merged.summary.traces == 20

    @pytest.mark.parametrize("how", DAMAGE)
    def test_a_finding_without_a_trace_is_listed_as_damaged(self, tmp_path: Path, how: str) -> None:
        only = part(tmp_path / "1", 1, {"S3-x": ("S3-x", None), "M1-y": ("M1-y", None)})
        self.DAMAGE[how](only / "findings" / "M1-y.json")
        merged = merge_folders([only], tmp_path / "all", (), "now")
        for result in (merged, merge_folders([], tmp_path / "all", (), "now")):
            assert [(one.id, one.damaged) for one in result.summary.findings] == [("S3-x", False), ("M1-y", True)]
            [line] = result.damaged
            assert "hybrid#1: finding M1-y is damaged: " in line

    def test_the_command_says_so_and_fails(self, hybridfuzz: Cli, tmp_path: Path) -> None:
        only = part(tmp_path / "1", 1, {"M1-y": ("M1-y", None)})
        (only / "findings" / "M1-y.json").unlink()
        outputs = ("--json", "--junit", "j.xml", "--sarif", "s.json")
        ran = hybridfuzz("merge", only, "-o", "all", *outputs)
        assert ran.status == 1, ran.err
        assert "warning: hybrid#1: finding M1-y is damaged: " in ran.err
        assert "damaged: its trace is lost" in ran.err
        assert ran.json["findings"][0]["damaged"] is True
        mended = part(tmp_path / "2", 1, {"M1-y": ("M1-y", None)})
        ran = hybridfuzz("merge", mended, "-o", "all", *outputs)
        assert ran.status == 1, ran.err
        assert "damaged" not in ran.err
        assert ran.json["findings"][0]["damaged"] is False

    @pytest.mark.parametrize("data", [b'{"evidence": "\xff"}', b"[" * 300_000, b"{}x", None])
    def test_evidence_that_cannot_be_read(self, tmp_path: Path, data: bytes | None) -> None:
        """An internal error; the finding stays, without evidence."""
        only = part(tmp_path / "1", 1, {"S3-x": ("S3-x", evidence("a"))})
        file = only / "findings" / "S3-x.evidence"
        file.unlink()
        if data is None:
            os.mkfifo(file)
        else:
            file.write_bytes(data)
        merged = merge_folders([only], tmp_path / "all", (), "now")
        assert [(one.id, one.damaged) for one in merged.summary.findings] == [("S3-x", False)]
        [line] = merged.damaged
        assert "S3-x.evidence: " in line


class TestFilesOfOthers:
    """A merge removes what an earlier one wrote, and nothing else."""

    def test_findings_that_no_merge_has_listed(self, tmp_path: Path) -> None:
        """All files in DIR/findings were removed, although nothing had ever been merged into DIR."""
        one = part(tmp_path / "1", 1, {"S3-x": ("S3-x", None)})
        notes = tmp_path / "all" / "findings" / "my-notes.md"
        notes.parent.mkdir(parents=True)
        notes.write_text("mine")
        with pytest.raises(TraceError, match="all/findings: there are files that no merge has listed; move them away"):
            merge_folders([one], tmp_path / "all", (), "now")
        assert [path.name for path in (tmp_path / "all").rglob("*")] == ["findings", "my-notes.md"]

    def test_files_beside_those_of_an_earlier_merge(self, tmp_path: Path) -> None:
        out = tmp_path / "all"
        one = part(tmp_path / "1", 1, {"S3-x": ("S3-x", evidence("a")), "M1-y": ("M1-y", None)})
        merge_folders([one], out, (), "now")
        copy = next((out / "parts").iterdir())
        for folder in (out, copy):
            (folder / "findings" / "my-notes.txt").write_text("mine")
        further = part(tmp_path / "2", 1, {"S3-x": ("S3-x", None)})
        state = json.loads((further / "campaign.json").read_text())
        (further / "campaign.json").write_text(json.dumps({**state, "traces": 99}))
        merge_folders([further], out, (), "now")
        for folder in (out, copy):
            kept = {path.name for path in (folder / "findings").iterdir()}
            assert {"my-notes.txt", "S3-x.json"} <= kept
            assert not kept & {"M1-y.json", "M1-y.txt", "S3-x.evidence"}, "of the earlier state of that campaign"


def change(folder: Path, **fields: object) -> Path:
    """Replace fields in the state of a campaign."""
    file = folder / "campaign.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return folder


def test_long_names_are_folders_of_their_own(tmp_path: Path) -> None:
    """Seeds of a target with a long path had one folder: extending the result lost a campaign."""
    target = f"vllm@/{'p' * 128}"
    campaigns = [change(part(tmp_path / str(seed), seed, {}), target=target) for seed in (1, 2, 3)]
    merge_folders(campaigns[:2], tmp_path / "all", (), "now")
    merged = merge_folders(campaigns[2:], tmp_path / "all", (), "now")
    assert merged.summary.traces == 30
    assert len(list((tmp_path / "all" / "parts").iterdir())) == 3


def test_what_every_campaign_knew_is_known(tmp_path: Path) -> None:
    """A bug that goes by its condition became new: merge has no engine to learn the condition from."""
    several = []
    for seed, reasons in ((1, ("#1", "#1")), (2, ("#1", ""))):
        one = part(tmp_path / str(seed), seed, {"S3-x": ("S3-x", None), "M1-y": ("M1-y", None)})
        findings = json.loads((one / "campaign.json").read_text())["findings"]
        found = [{**finding, "known": reason} for finding, reason in zip(findings, reasons, strict=True)]
        several.append(change(one, findings=found))
    for order in itertools.permutations(several):
        merged = merge_folders(order, tmp_path / order[0].name / "all", (), "now")
        assert {one.name: one.known for one in merged.summary.findings} == {"S3-x": "#1", "M1-y": ""}


def test_verdicts_on_known_bugs_are_kept(tmp_path: Path) -> None:
    """An outdated entry (exit status 3) was no longer one after a merge."""
    bugs = [
        [KnownBug("a", "#1", "still there", covered=2), KnownBug("b", "#2", "still there", covered=1, warning="w")],
        [KnownBug("a", "#1", "fixed upstream", "gone", covered=3), KnownBug("b", "#2", covered=1, warning="w")],
        [],
    ]
    several = [
        change(part(tmp_path / str(seed), seed, {}), known_bugs=msgspec.to_builtins(listed))
        for seed, listed in enumerate(bugs)
    ]
    for order in itertools.permutations(several):
        merged = merge_folders(order, tmp_path / "all", (), "now").summary
        assert list(merged.known_bugs) == [
            KnownBug("a", "#1", "fixed upstream", "gone", covered=5),
            KnownBug("b", "#2", "still there", covered=2, warning="w"),
        ]
        assert [bug.name for bug in merged.outdated] == ["a"]


def test_what_known_bugs_explain_is_one_finding_for_each(tmp_path: Path) -> None:
    """By signature alone a new bug, and another known one, went into the finding of a known one."""
    shown = [("S3-x", "four"), ("S3-x", "five"), ("M1-y", "four"), ("S3-x", ""), ("S3-x", None)]
    several = []
    for seed, (signature, cause) in enumerate(shown):
        one = part(tmp_path / str(seed), seed, {"one": (signature, None)})
        [finding] = json.loads((one / "campaign.json").read_text())["findings"]
        named = None if cause is None else {"name": cause}
        several.append(change(one, findings=[{**finding, "index": seed, "cause": named}]))
    for order in (several, several[::-1]):
        merged = merge_folders(order, tmp_path / order[0].name / "all", (), "now").summary
        found = {one.name: (one.cause and one.cause.name, dict(one.symptoms)) for one in merged.findings}
        assert found == {
            "S3-x": ("four", {"M1-y": 2, "S3-x": 2}),
            "S3-x.2": ("five", {"S3-x": 2}),
            "S3-x.3": ("", {"S3-x": 2}),
            "S3-x.4": (None, {"S3-x": 2}),
        }


def test_what_was_not_looked_into_is_still_listed(tmp_path: Path) -> None:
    waiting = [{"seed": 1, "index": 7, "finding": "S3-x", "signature": "S3-x"}]
    effort, share = {"fuzzing": 7.0, "reducing": 2.0}, 0.3
    one = change(part(tmp_path / "1", 1, {}), effort=effort, triage_share=share, waiting=waiting)
    other = change(part(tmp_path / "2", 2, {}), effort={"fuzzing": 1.0}, triage_share=share)
    merged = merge_folders([one, other], tmp_path / "all", (), "now").summary
    assert (merged.effort, merged.triage_share) == ({"fuzzing": 8.0, "reducing": 2.0}, share)
    assert msgspec.to_builtins(merged.waiting) == waiting


@pytest.mark.parametrize(
    "parts, words",
    [(None, "parts: cannot be read: No such file"), ([], "parts: it is empty"), (["x"], "parts/x: not the campaign")],
)
def test_a_merged_folder_without_its_parts(tmp_path: Path, parts: list[str] | None, words: str) -> None:
    """A state that claims to be merged is refused in one line, also one whose parts are merged themselves."""
    merged = change(part(tmp_path / "1", 1, {}), merged=["hybrid#1"])
    if parts is not None:
        (merged / "parts").mkdir()
    for name in parts or ():
        (merged / "parts" / name).symlink_to(merged)
    with pytest.raises(TraceError, match=words):
        merge_folders([merged], tmp_path / "all", (), "now")
    assert not (tmp_path / "all").exists()
