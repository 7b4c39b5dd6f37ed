"""Packaged known bugs are taken over by a command; whoever asks for fixes and gets none is told."""

import json
from pathlib import Path

import pytest
from cli_process import Cli

from hybridfuzz.harness.group.known.fixes import BUILTIN, packaged_for, read_fixes
from hybridfuzz.harness.group.known.known_toml import load_known

TARGET = "vllm@0.33.0"


def test_packaged_bugs_are_taken_over_with_their_files(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = hybridfuzz("known", "export", "--target", TARGET, "-o", "own/known.toml")
    assert ran.status == 0, ran.error
    packaged = packaged_for(TARGET, "0.33.0")
    own = load_known(tmp_path / "own/known.toml")
    assert [entry.title for entry in own] == [entry.title for entry in packaged] and len(own) > 20
    for mine, theirs in zip(own, packaged, strict=True):
        assert (mine.signatures, mine.condition, mine.releases) == (theirs.signatures, theirs.condition, ())
        assert mine.read_traces() == theirs.read_traces()
        assert not theirs.patch or mine.read_patch() == theirs.read_patch()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--target", "hybrid"], "hybridfuzz has no known bugs of hybrid"),
        (["--target", "vllm@0.17.1"], "no known bug of vllm@0.17.1 is packaged"),
        (["--target", TARGET, "-o", "there.toml"], "there is such a file"),
        (["builtin", "--target", TARGET], "name the file with -o"),
    ],
)
def test_what_cannot_be_exported(hybridfuzz: Cli, tmp_path: Path, given: list[str], words: str) -> None:
    (tmp_path / "there.toml").write_text("")
    ran = hybridfuzz("known", "export", *given)
    assert ran.status == 2 and words in ran.error
    assert not (tmp_path / "known.toml").exists()


def test_lists_of_what_is_packaged(hybridfuzz: Cli) -> None:
    """`known list builtin`, as documented, was refused for want of a target."""
    titles = [entry.title for entry in packaged_for(TARGET, "0.33.0")]
    one = hybridfuzz("known", "list", "--target", TARGET)
    assert [line.split()[0] for line in one.out.splitlines()[1:]] == titles
    everything = hybridfuzz("known", "list", "builtin")
    assert everything.status == 0
    assert set(titles) < {line.split()[0] for line in everything.out.splitlines()[1:]}
    engine = hybridfuzz("known", "list", "builtin", "--target", "vllm")
    assert len(engine.out.splitlines()) == 1 + len(read_fixes(BUILTIN, "vllm"))


@pytest.mark.parametrize(
    "verb",
    [["fuzz", "--time", "1s"], ["verify-fix", "t.json", "--patch", "t.patch"], ["explore"], ["replay", "t.json"]],
)
def test_fixes_for_another_release_are_none(hybridfuzz: Cli, tmp_path: Path, verb: list[str]) -> None:
    """A campaign ran without a word, and met the known bugs."""
    (tmp_path / "list.toml").write_text(
        '[[known]]\nreason = "r"\nsignature = "M2-*"\ntarget = "vllm*"\nreleases = ["0.33.0"]\n'
    )
    corpus = Path(__file__).parents[4] / "corpus"
    (tmp_path / "t.json").write_bytes(next(corpus.glob("null-as*.json")).read_bytes())
    (tmp_path / "t.patch").write_text("")
    ran = hybridfuzz(*verb, "--fixes", "list.toml", "--target", "hybrid:null-as-state-slot")
    assert ran.status == 2, ran.out
    assert (
        "--fixes list.toml: no known bug there is one of hybrid:null-as-state-slot; it has some of 0.33.0" in ran.error
    )


@pytest.mark.parametrize("target", ["vllm@0.33", "sglang@0.5", "transformers@5"])
def test_a_release_without_a_patch_may_be_any(hybridfuzz: Cli, target: str) -> None:
    ran = hybridfuzz("fuzz", "--target", target, "--time", "1s")
    assert ran.status == 2
    assert ("may be any patch" in ran.error and f"such as {target}." in ran.error) or "nor a folder" in ran.error


def test_severity_is_measured_on_the_traces_of_each_entry(hybridfuzz: Cli, tmp_path: Path) -> None:
    """An entry of which no trace fails here gets none. A cause has the severity of its worst trace. What is measured
    of some entries leaves the others as they are."""
    trace = "null-as-state-slot--M4-step-mamba-dead-write.json"
    (tmp_path / trace).write_bytes((Path(__file__).parents[4] / "corpus" / trace).read_bytes())
    entry = '[[known]]\nname = "{}"\nreason = "r"\ntarget = "hybrid*"\nsignature = "M4-*"\ntraces = [{}]\n'
    (tmp_path / "known.toml").write_text(entry.format("mine", f'"{trace}", "{trace}"') + entry.format("none", ""))
    command = ("known", "severity", "known.toml", "--target", "hybrid:null-as-state-slot")
    refused = hybridfuzz(*command)
    assert refused.status == 2 and "FOLDER-OF-THE-PATCHES/severity.json" in refused.error
    done = hybridfuzz(*command, "-o", "severity.json", "--json")
    assert done.status == 0
    written = json.loads((tmp_path / "severity.json").read_text())
    assert written == done.json["entries"] and list(written) == ["mine"]
    assert written["mine"]["effect"] == "corrupt cache" and written["mine"]["reach"]["is_complete"]
    assert "none" in done.err and "no trace of it fails" in done.err
    kept = {**written, "mine": {**written["mine"], "level": "P3"}}
    (tmp_path / "severity.json").write_text(json.dumps(kept))
    assert hybridfuzz(*command, "-o", "severity.json", "--id", "non*").status == 0
    assert json.loads((tmp_path / "severity.json").read_text()) == kept
    assert hybridfuzz(*command, "-o", "severity.json", "--id", "mine").status == 0
    assert json.loads((tmp_path / "severity.json").read_text()) == written
    refused = hybridfuzz(*command, "-o", "severity.json", "--id", "other")
    assert refused.status == 2 and "there is no entry 'other'" in refused.error
