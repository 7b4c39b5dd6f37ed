"""The target of a command: of the command line, else of the finding, the options file, or the built-in one."""

import json
from pathlib import Path

import pytest
from cli_process import MUTANT, Cli
from support import arrive, make_trace

from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.targets.base.trace import Step, Trace

TRACE = make_trace(arrive("r0", 3), Step())


def saved(path: Path, target: str) -> Path:
    save_trace(Trace(TRACE.config, TRACE.events, target=target), path)
    return path


def target_of(ran: object) -> str:
    return str(ran.json["target"])  # type: ignore[attr-defined]


def test_a_finding_names_its_target(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The file of its trace does, wherever it is; and the folder of its campaign."""
    found = hybridfuzz(
        "fuzz", "--target", MUTANT, "--traces", "20", "--seed", "8", "--no-canary", "-j", "1", "-o", "out"
    )
    assert found.status == 1, found.err
    [path, *_] = (tmp_path / "out/findings").glob("M*.json")
    assert load_trace(path).target == MUTANT
    elsewhere = path.rename(tmp_path / "elsewhere.json")
    for named in (elsewhere, "out"):
        ran = hybridfuzz("replay", named, "--json")
        assert (ran.status, target_of(ran)) == (1, MUTANT) if named is elsewhere else target_of(ran) == MUTANT
        assert f"target: {MUTANT}, as " in ran.err
    assert hybridfuzz("replay", elsewhere, "--target", "hybrid").status == 0


def test_a_folder_of_findings_lists_their_names(hybridfuzz: Cli) -> None:
    """For whoever leaves out --id, or mistypes it."""
    campaign = ("--traces", "2", "--seed", "1", "--no-canary", "-j", "1", "-o", "out", "--json")
    found = hybridfuzz("fuzz", "--target", MUTANT, *campaign).json["findings"]
    names = ", ".join(Path(one["trace"]).stem for one in found)
    assert names
    for command in (["known", "add", "out", "--reason", "x"], ["verify-fix", "out", "--fixed", "hybrid"]):
        assert f"name one of its findings with --id; there are: {names}" in hybridfuzz(*command).error
        assert f"there is no finding 'M0'; there are: {names}" in hybridfuzz(*command, "--id", "M0").error


def test_the_file_of_a_finding_wins_over_the_options_file(hybridfuzz: Cli, tmp_path: Path) -> None:
    (tmp_path / "hybridfuzz.toml").write_text('target = "hybrid:finished-row-not-cleared"\n')
    assert target_of(hybridfuzz("replay", saved(tmp_path / "a.json", MUTANT), "--json")) == MUTANT
    assert (
        target_of(hybridfuzz("replay", saved(tmp_path / "b.json", ""), "--json")) == "hybrid:finished-row-not-cleared"
    )


@pytest.mark.parametrize("target", ["python:evil:FACTORY", "vllm@./evil", "vllm@/tmp/evil"])
def test_a_file_cannot_have_code_of_its_own_run(hybridfuzz: Cli, tmp_path: Path, target: str) -> None:
    """A trace comes from a stranger, and may lie beside modules of his."""
    for name in ("evil.py", "evil/vllm/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    ran = hybridfuzz("replay", saved(tmp_path / "a.json", target))
    assert ran.status == 2
    assert "name it with --target, if it is yours" in ran.error
    assert not (tmp_path / "pwned").exists()


def test_several_targets_name_none(hybridfuzz: Cli, tmp_path: Path) -> None:
    files = [
        saved(tmp_path / f"{number}.json", target)
        for number, target in enumerate((MUTANT, "hybrid:finished-row-not-cleared"))
    ]
    assert target_of(hybridfuzz("replay", *files, "--json")) == "hybrid"


def test_a_finding_that_cannot_be_read_is_told_by_the_command(hybridfuzz: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "campaign.json").write_text(json.dumps([]))
    assert "a.json: not a trace" in hybridfuzz("repro", "a.json", "-o", "repro").error
