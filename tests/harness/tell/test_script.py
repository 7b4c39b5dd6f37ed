"""Reproducers run on their own, fail on the broken target and pass on the correct one, and say so when they do not."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from cli_process import Cli
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence
from hybridfuzz.harness.group.causes.evidence import Place as PlaceInSource
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.harness.tell.bug_report import ReproCase
from hybridfuzz.harness.tell.repro_folder import PYTEST, write_folder
from hybridfuzz.harness.tell.script import ScriptVerdict, failure_of, run_script
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import describe, load_factory, write_scripts
from hybridfuzz.targets.base.repro import DEVIATION, Place, Script

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


@pytest.mark.parametrize("name", [*one_for_each_oracle(), "session-close-leak--M1-abort-free.json"])
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


@pytest.mark.parametrize(
    ("text", "promised"),
    [
        ("error = KeyError('the thing')\nerror.add_note('while processing')\nraise error", True),
        ("import sys\ntry:\n    raise KeyError('the thing')\nexcept KeyError:\n    sys.exit('another thing')", False),
        ("def go(): raise TypeError('another')\ngo()  # KeyError: 'the thing'", False),
    ],
)
def test_the_promise_is_in_the_exception_with_its_notes(tmp_path: Path, text: str, promised: bool) -> None:
    """Only the last line of output was read: compiled engines add notes behind their exceptions."""
    path = tmp_path / "repro.py"
    path.write_text(text)
    assert run_script(path, Script(text, "KeyError: 'the thing'", "nothing"), LAUNCH).promised is promised


HERE = f"    {DEVIATION}\n    boom(2)\n"


@pytest.mark.parametrize(
    ("body", "place", "elsewhere"),
    [
        (f"    boom(1)\n{HERE}", Place(), "in line 4, before the call that the report is about (line 5)"),
        (f"    print(1)\n{HERE}", Place(), ""),
        (f"    print(1)\n{HERE}", Place(function="boom"), ""),
        (f"    print(1)\n{HERE}", Place(function="bang"), "in boom, not in bang"),
    ],
)
def test_a_script_that_fails_elsewhere_meets_another_defect(
    tmp_path: Path, body: str, place: Place, elsewhere: str
) -> None:
    """It was good: a script of transformers failed with the promised message at a defect that was there before."""
    text = f"def boom(number):\n    raise AssertionError('the thing')\ndef reproduce():\n{body}\nreproduce()\n"
    (tmp_path / "repro.py").write_text(text)
    verdict = run_script(tmp_path / "repro.py", Script(text, "the thing", "nothing", place=place), LAUNCH)
    assert (verdict.promised, verdict.elsewhere) == (not elsewhere, elsewhere)


@pytest.mark.parametrize(
    ("told", "elsewhere"),
    [
        ("r0 (since step 3)", ""),
        ("r0 (since step 5), r1 (since step 4)", ""),
        ("again 0 (since step 9)", ""),
        ("r0 (since step 3), r1 (since step 2)", "in step 2, with a token of r1; the report is about step 3"),
        ("r1 (since step 4)", "with tokens of r1; the report is about r0"),
    ],
)
def test_wrong_tokens_have_to_be_of_the_request_and_not_of_an_earlier_step(
    tmp_path: Path, told: str, elsewhere: str
) -> None:
    text = f"raise AssertionError('clients receive wrong tokens: {told}')\n"
    (tmp_path / "repro.py").write_text(text)
    script = Script(text, "clients receive wrong tokens", "nothing", place=Place(3, "r0"))
    verdict = run_script(tmp_path / "repro.py", script, LAUNCH)
    assert (verdict.promised, verdict.elsewhere) == (not elsewhere, elsewhere)


def test_a_traceback_is_whole_and_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    """Trackers ask for the whole one; its end had the address of an object and the folder of the tree."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "deep.py").write_text("def f(n):\n    return f(n - 1) if n else {}[f]\n")
    body = "import sys\nsys.path.insert(0, 'TREE')\nfrom engine.deep import f\n".replace("TREE", str(tmp_path))
    body += "\n".join(f"def g{n}():\n    return {f'g{n - 1}()' if n else 'f(0)'}" for n in range(30)) + "\ng29()\n"
    (tmp_path / "repro.py").write_text(body)
    launch = Launch(sys.executable, {}, tree=str(tmp_path))
    told = run_script(tmp_path / "repro.py", Script(body, "KeyError", "nothing"), launch).tail
    assert told.startswith("Traceback (most recent call last):") and told.endswith("KeyError: <function f>")
    assert 'File "engine/deep.py", line 2, in f' in told and str(tmp_path) not in told


def test_the_summary_of_a_test_is_the_assertion_also_of_a_rank(tmp_path: Path) -> None:
    """PyTorch marks the lines of a rank, and warns behind them: the summary had the warning."""
    (tmp_path / "test_repro.py").write_text(PYTEST.format(package="json"))
    lines = ["[rank0]: AssertionError: it is wrong", "[rank0]:[W] destroy_process_group() was not called"]
    (tmp_path / "repro.py").write_text(f"raise SystemExit({chr(10).join(lines)!r})")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_repro.py"]
    env = {**os.environ, "COLUMNS": "200"}
    ended = subprocess.run(tests, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    summary = next(line for line in ended.stdout.splitlines() if line.startswith("FAILED"))
    assert summary.endswith("AssertionError: it is wrong")


def test_the_folder(hybridfuzz: Cli, tmp_path: Path) -> None:
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    ran = hybridfuzz("repro", file, "--target", "hybrid:finished-row-not-cleared", "-o", "out", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["exit_reason"] == "promised"
    folder = tmp_path / "out"
    names = {"repro.py", "test_repro.py", "REPORT.md", "timeline.svg", "trace.json"}
    assert {path.name for path in folder.iterdir()} == names
    again = load_trace(folder / "trace.json")
    assert (again.target, again.events) == ("hybrid:finished-row-not-cleared", load_trace(file).events)
    report = (folder / "REPORT.md").read_text()
    assert str(folder) not in report, "no path of this machine"
    for part in ("## Describe the bug", "## Reproduction", "## Expected behavior", "## Environment"):
        assert part in report
    title = "A padding or dummy row writes into cache memory in a data-parallel dummy run (hybrid model)"
    assert report.startswith(f"# {title}\n")
    assert "Where to look" not in report, "nothing is guessed"
    assert "policy=fcfs" not in report, "settings with their default are left out"
    assert "prefix hit" not in report, "symbols that do not occur are left out of the legend"
    assert "reproduces the failure within a second" in report or "reproduces the failure after" in report
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_repro.py")]
    env = {**os.environ, "COLUMNS": "200"}
    ended = subprocess.run(tests, capture_output=True, text=True, cwd=folder, env=env, check=False)
    assert ended.returncode == 1
    summary = next(line for line in ended.stdout.splitlines() if line.startswith("FAILED"))
    assert "a padding or dummy row writes" in summary, "not the first line of a traceback, which says little"


def test_without_the_engine_its_test_is_skipped(tmp_path: Path) -> None:
    """It failed, which looked like the bug."""
    (tmp_path / "test_repro.py").write_text(PYTEST.format(package="no_such_engine"))
    (tmp_path / "repro.py").write_text("import no_such_engine")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "test_repro.py"]
    ended = subprocess.run(tests, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, "1 skipped" in ended.stdout) == (0, True)


def test_places_come_from_the_evidence_beside_the_trace(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Without evidence there is no such section; evidence that cannot be read is named, and costs the section only."""
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    (tmp_path / "t.json").write_bytes(file.read_bytes())
    command = ("repro", "t.json", "--target", "hybrid:finished-row-not-cleared", "-o", "out")
    evidence = FindingEvidence([Evidence("M4", places=[PlaceInSource("engine/worker.py", "Worker.clear", 7, 0.75)])])
    (tmp_path / "t.evidence").write_bytes(msgspec.json.encode(evidence))
    assert hybridfuzz(*command).status == 0
    report = (tmp_path / "out/REPORT.md").read_text()
    assert "<summary>Where to look</summary>" in report
    assert "* `engine/worker.py:7` `Worker.clear`, 0.75\n" in report
    (tmp_path / "t.evidence").write_text("{")
    ran = hybridfuzz(*command)
    assert (ran.status, "t.evidence" in ran.err) == (0, True)
    assert "Where to look" not in (tmp_path / "out/REPORT.md").read_text()


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
    described = describe("python:some:THING", trace)
    write_folder(tmp_path, ReproCase("python:some:THING", LAUNCH, described, trace, history, outcome.violation))
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
    case = ReproCase("hybrid", LAUNCH, describe("hybrid", trace), trace, history, outcome.violation)
    write_folder(tmp_path, structs.replace(case, script=script, verdict=verdict))
    assert "did not fail as promised" in (tmp_path / "REPORT.md").read_text()


def test_a_failure_without_a_script_is_no_internal_error(hybridfuzz: Cli, tmp_path: Path) -> None:
    """It ended with exit status 4."""
    (tmp_path / "t.json").write_bytes(encode_trace(make_trace(arrive("r0", 3), *steps(6))))
    ran = hybridfuzz("repro", "t.json", "--target", "python:fake_targets:RAISES", "-o", "out", "--json")
    assert ran.status == 2, ran
    assert ran.json["exit_reason"] == "no-script"
    assert "no stand-alone script" in ran.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"REPORT.md", "timeline.svg", "trace.json"}
