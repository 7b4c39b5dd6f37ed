"""`hybridfuzz new-target` writes a target that runs clean, and lists what to fill in."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs

from hybridfuzz.harness.cli import main
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.state_catalogue import missing_states, required_oracles
from hybridfuzz.targets.base.registry import load_factory


def test_the_skeleton_runs_clean_and_is_not_vacuous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["new-target", "some_new_engine"]) == 0
    printed = capsys.readouterr().out
    assert "hybridfuzz fuzz --target python:some_new_engine.factory:FACTORY" in printed
    for number in range(1, 8):
        assert f"\n  {number}. some_new_engine/" in printed
    try:
        factory = load_factory("python:some_new_engine.factory:FACTORY")
        assert factory.name == "some_new_engine"
        assert factory.capabilities.engine == ("some_new_engine.engine",)
        assert run_trace(factory, load_trace(tmp_path / "some_new_engine/first.json")).violation is None
        exercised: Counter[str] = Counter()
        reached: Counter[str] = Counter()
        for index in range(80):
            outcome = run_trace(factory, draw_trace(factory.capabilities, 1, index))
            assert outcome.violation is None, outcome.violation.message
            exercised.update(outcome.exercised)
            reached.update(outcome.reached)
        # Its layout ignores the trace's groups: a trace without one of them would describe another engine.
        config = load_trace(tmp_path / "some_new_engine/first.json").config
        assert factory.supports(config) == ""
        assert "one group of states" in factory.supports(structs.replace(config, groups=config.groups[1:]))
        assert all(exercised[oracle] for oracle in required_oracles(factory.capabilities))
        assert not missing_states(factory.capabilities, reached)
        assert importlib.import_module("some_new_engine.factory").make_factory("").name == "some_new_engine"
    finally:
        for name in [name for name in sys.modules if name.startswith("some_new_engine")]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("My-Engine", "must be a Python identifier in lower case"),
        ("class", "must be a Python identifier in lower case"),
        ("hybrid", "hybridfuzz has a target of this name"),
        ("there", "exists already"),
    ],
)
def test_a_name_that_cannot_be_is_one_line(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    assert main(["new-target", name, "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["new-target", "my_engine", "-o", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"cannot write to {tmp_path}/file/my_engine: Not a directory; choose another folder with -o" in error
