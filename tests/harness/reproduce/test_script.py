"""Reproducers run on their own, fail on the broken target and pass on the correct one, and say so when they do not."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_process import Cli
from hybridfuzz.harness.explain.recorder import record_history
from hybridfuzz.harness.reproduce.folder import ReproCase, write_folder
from hybridfuzz.harness.reproduce.script import ScriptVerdict, failure_of, run_script
from hybridfuzz.harness.traces.files import encode_trace, load_trace
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import load_factory, write_scripts
from hybridfuzz.targets.base.repro import Script
from markdown_it import MarkdownIt
from msgspec import structs
from support import HOSTILE, arrive, make_trace, steps

CORPUS = Path(__file__).parents[3] / "corpus"
LAUNCH = Launch(sys.executable, {})


def one_for_each_oracle() -> list[str]:
    """Names of traces; all would only take longer (`benchmarks/repros.py` does)."""
    found: dict[str, str] = {}
    for path in sorted(CORPUS.glob("*.json")):
        found.setdefault(path.name.split("--")[1][:2], path.name)
    return sorted(found.values())


def scripts_of(name: str) -> tuple[str, list[Script]]:
    slug, trace = name.partition("--")[0], load_trace(CORPUS / name)
    outcome, history = record_history(load_factory(f"hybrid:{slug}"), trace)
    assert outcome.violation
    return slug, list(write_scripts(f"hybrid:{slug}", trace, failure_of(trace, history, outcome.violation)))


@pytest.mark.parametrize("name", one_for_each_oracle())
def test_fails_on_the_mutant_and_passes_on_the_correct_target(tmp_path: Path, name: str) -> None:
    slug, scripts = scripts_of(name)
    path = tmp_path / "repro.py"
    for script in scripts:
        path.write_text(script.text)
        verdict = run_script(path, script, LAUNCH)
        assert verdict.promised, verdict.tail
        path.write_text(script.text.replace(f"make_factory('{slug}')", "make_factory('')"))
        assert run_script(path, script, LAUNCH).status == 0


def test_plain_scripts_know_no_harness() -> None:
    plain = [scripts_of(name)[1][0].text for name in one_for_each_oracle() if "--M4-" in name or "--S1-" in name]
    assert len(plain) == 2
    assert not any("harness" in text for text in plain)


@pytest.mark.parametrize(
    ("text", "status"), [("pass", 0), ("assert False, 'another thing'", 1), ("import nothing_of_the_kind", 1)]
)
def test_another_end_is_no_reproduction(tmp_path: Path, text: str, status: int) -> None:
    path = tmp_path / "repro.py"
    path.write_text(text)
    verdict = run_script(path, Script(text, "AssertionError: the thing", "nothing"), LAUNCH)
    assert (verdict.promised, verdict.status) == (False, status)


def test_the_folder(hybridfuzz: Cli, tmp_path: Path) -> None:
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    ran = hybridfuzz("repro", file, "--target", "hybrid:finished-row-not-cleared", "-o", "out", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["exit_reason"] == "promised"
    folder = tmp_path / "out"
    names = {"repro.py", "test_repro.py", "REPORT.md", "timeline.svg", "trace.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert load_trace(folder / "trace.json") == load_trace(file)
    report = (folder / "REPORT.md").read_text()
    assert 'File "repro.py", line' in report, "no path of this machine"
    for part in ("## Environment", "## Steps to reproduce", "## Expected and observed", "## Why", "## Where to look"):
        assert part in report
    assert report.startswith("# Step 2: dummy row 0 writes Mamba state into block 1, last written by r0 in step 0\n")
    assert "policy=" not in report, "settings with their default are left out"
    assert "prefix hit" not in report, "symbols that do not occur are left out of the legend"
    assert "reproduces the failure within a second" in report or "reproduces the failure after" in report
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_repro.py")]
    ended = subprocess.run(tests, capture_output=True, text=True, cwd=folder, check=False)
    assert ended.returncode == 1
    assert "a padding or dummy row writes" in ended.stdout


def test_a_clean_trace_has_no_reproducer(hybridfuzz: Cli) -> None:
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    ran = hybridfuzz("repro", file, "-o", "out")
    assert ran.status == 2
    assert "nothing to reproduce" in ran.error


def test_a_target_without_scripts_gets_a_report(tmp_path: Path) -> None:
    name = one_for_each_oracle()[0]
    trace = load_trace(CORPUS / name)
    outcome, history = record_history(load_factory(f"hybrid:{name.partition('--')[0]}"), trace)
    assert outcome.violation
    with pytest.raises(TargetError, match="no stand-alone"):
        write_scripts("python:some:THING", trace, failure_of(trace, history, outcome.violation))
    write_folder(tmp_path, ReproCase("python:some:THING", LAUNCH, trace, history, outcome.violation))
    report = (tmp_path / "REPORT.md").read_text()
    assert "There is no stand-alone script" in report
    assert "hybridfuzz replay trace.json --target python:some:THING" in report
    assert not (tmp_path / "test_repro.py").exists()


def test_a_script_that_breaks_its_promise_is_called_so(tmp_path: Path) -> None:
    name = one_for_each_oracle()[0]
    trace = load_trace(CORPUS / name)
    outcome, history = record_history(load_factory(f"hybrid:{name.partition('--')[0]}"), trace)
    assert outcome.violation
    script, verdict = Script("pass\n", "AssertionError", "nothing"), ScriptVerdict(False, 0, 0.1, "passed")
    write_folder(tmp_path, ReproCase("hybrid", LAUNCH, trace, history, outcome.violation, script, verdict))
    assert "did not fail as promised" in (tmp_path / "REPORT.md").read_text()


def test_a_failure_without_a_script_is_no_internal_error(hybridfuzz: Cli, tmp_path: Path) -> None:
    """It ended with exit status 4."""
    (tmp_path / "t.json").write_bytes(encode_trace(make_trace(arrive("r0", 3), *steps(6))))
    ran = hybridfuzz("repro", "t.json", "--target", "python:fake_targets:RAISES", "-o", "out", "--json")
    assert ran.status == 2, ran
    assert ran.json["exit_reason"] == "no-script"
    assert "no stand-alone script" in ran.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"REPORT.md", "timeline.svg", "trace.json"}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_changes_neither_report_nor_drawing(tmp_path: Path, text: str) -> None:
    """REPORT.md gets no HTML, links or headings of it, timeline.svg stays well-formed, no file lies elsewhere."""
    name = one_for_each_oracle()[0]
    trace = load_trace(CORPUS / name)
    outcome, history = record_history(load_factory(f"hybrid:{name.partition('--')[0]}"), trace)
    assert outcome.violation
    hostile = structs.replace(
        outcome.violation, message=f"M4: {text}", expected=text, observed=text, request=text, field=text
    )
    marks = tuple(structs.replace(mark, who=text, content=text) for mark in history.marks)
    history = structs.replace(history, violation=hostile, marks=marks)
    script, verdict = Script("pass\n", text, text, (text,)), ScriptVerdict(False, 0, 0.1, text)
    folder = tmp_path / "folder"
    folder.mkdir()
    write_folder(
        folder, ReproCase(f"python:{text}", Launch("python", {}, text), trace, history, hostile, script, verdict)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    report = (folder / "REPORT.md").read_text()
    tokens = list(MarkdownIt("commonmark").parse(report))
    inline = [child for token in tokens for child in token.children or ()]
    assert not [one.content for one in [*tokens, *inline] if one.type in ("html_block", "html_inline")]
    assert {str(one.attrs["src"]) for one in inline if one.type == "image"} <= {"timeline.svg"}
    assert not [one.attrs for one in inline if one.type == "link_open"]
    heads = [after.content for one, after in pairwise(tokens) if one.type == "heading_open" and one.tag == "h2"]
    assert heads == [
        "Environment",
        "Steps to reproduce",
        "Expected and observed",
        "Why",
        "Where to look (a suggestion)",
    ]
    assert [one.tag for one in tokens if one.type == "heading_open"].count("h1") == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", report)
    ElementTree.fromstring((folder / "timeline.svg").read_bytes())
