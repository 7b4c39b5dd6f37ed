"""What is recorded of a run: the path through each function, and the kinds of values that it holds at its end."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hybridfuzz.harness.record.executed import RETURN, Executed, LineTracer

ENGINE = """
def schedule(budget, running):
    rows = [row for row in running if row]
    short = len(rows) < budget
    if short:
        budget = 0
    return short


def fail(step):
    count = 3
    raise ValueError
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "recorded_engine").mkdir()
    (tmp_path / "recorded_engine" / "__init__.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("recorded_engine")
    del sys.modules["recorded_engine"]


def record(engine: ModuleType, *calls: tuple[int, list[int]]) -> Executed:
    tracer = LineTracer(["recorded_engine"])
    tracer.start()
    for budget, running in calls:
        engine.schedule(budget, running)
    tracer.stop()
    [found] = [each for each in tracer.executed() if each.function == "schedule"]
    return found


def test_local_variables_and_the_result_have_kinds_and_arguments_have_none(engine: ModuleType) -> None:
    found = record(engine, (1, [4, 5]))
    kinds = {value for value in found.values if ":" in value}
    assert kinds == {"rows: more", "short: False", "return: False"}
    assert found.file == "recorded_engine/__init__.py"


def test_an_engine_may_be_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recorded_file.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "recorded_file", raising=False)
    engine, tracer = importlib.import_module("recorded_file"), LineTracer(["recorded_file"])
    tracer.start()
    engine.schedule(1, [4, 5])
    tracer.stop()
    assert ("recorded_file.py", "schedule") in [(each.file, each.function) for each in tracer.executed()]


def test_numbers_are_compared_arguments_and_lengths_too(engine: ModuleType) -> None:
    assert {"#rows > budget", "#rows = #running"} <= set(record(engine, (1, [4, 5])).values)
    assert "#rows < #running" in record(engine, (1, [4, 0])).values


def test_values_are_those_of_all_calls(engine: ModuleType) -> None:
    both = record(engine, (1, [4, 5]), (9, []))
    assert {"short: False", "short: True", "rows: more", "rows: empty"} <= set(both.values)
    assert {arc[:2] for arc in both.arcs if arc[0] == RETURN} == {(RETURN, 2), (RETURN, 3)}


def test_a_call_that_raises_is_recorded(engine: ModuleType) -> None:
    tracer = LineTracer(["recorded_engine"])
    tracer.start()
    with pytest.raises(ValueError):
        engine.fail(1)
    tracer.stop()
    [found] = tracer.executed()
    assert {"count: larger", "count > step"} <= set(found.values)
