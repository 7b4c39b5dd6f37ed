"""Whose crash is it: a malformed record, an exception of the adapter and one of the engine are three findings."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace
from support import ATTENTION, CLEAN, MAMBA, arrive, make_trace, steps

from hybridfuzz.harness.judge.malformed import Fault, fault_in_view
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.targets.base.observe import (
    Effect,
    Forward,
    Planned,
    SlotWrite,
    StateWrite,
)  # fmt: skip
from hybridfuzz.targets.base.protocol import Target
from hybridfuzz.targets.base.proxy import FactoryProxy, TargetProxy
from hybridfuzz.targets.base.trace import Config, Event

TRACE = make_trace(arrive("r0", 12), *steps(3), groups=(MAMBA, ATTENTION))


class Changed(FactoryProxy):
    """The built-in target, with each effect changed by a function."""

    def __init__(self, change: Callable[[Effect], Any]) -> None:
        super().__init__(CLEAN)
        self.change = change

    def open(self, config: Config) -> Target:
        change = self.change

        class Reports(TargetProxy):
            def apply(self, event: Event) -> Effect:
                effect: Effect = change(super().apply(event))
                return effect

        return Reports(super().open(config))


def with_record(kind: type, **changes: Any) -> Callable[[Effect], Effect]:
    """Change all records of a type."""
    return lambda effect: Effect(
        [replace(record, **changes) if isinstance(record, kind) else record for record in effect.records]
    )


def with_access(kind: type, **changes: Any) -> Callable[[Effect], Effect]:
    """Change all accesses of a type."""

    def changed(effect: Effect) -> Effect:
        records = []
        for record in effect.records:
            if isinstance(record, Forward):
                accesses = [replace(one, **changes) if isinstance(one, kind) else one for one in record.accesses]
                records.append(replace(record, accesses=accesses))
            else:
                records.append(record)
        return Effect(records)

    return changed


def with_view(**changes: Any) -> Callable[[Effect], Effect]:
    return lambda effect: Effect(
        [
            replace(record, view=replace(record.view, **changes)) if isinstance(record, Planned) else record
            for record in effect.records
        ]
    )


@pytest.mark.parametrize(
    ("change", "signature", "says"),
    [
        (lambda effect: None, "RECORD-arrive-Effect", "Effect = a NoneType, expected an Effect"),
        (lambda effect: Effect(None), "RECORD-arrive-Effect-records", "expected a sequence of records"),
        (lambda effect: Effect(["x"]), "RECORD-arrive-Record", "Record = a str"),
        (with_access(StateWrite, row=1), "RECORD-step-StateWrite-row", "= 1, expected 0 to 0"),
        (with_access(StateWrite, row=-1), "RECORD-step-StateWrite-row", "= -1, expected 0 to 0"),
        (with_access(StateWrite, group=-2), "RECORD-step-StateWrite-group", "= -2, expected 0 to 1"),
        (with_access(SlotWrite, group=2), "RECORD-step-SlotWrite-group", "= 2, expected 0 to 1"),
        (with_access(SlotWrite, slots=(0,)), "RECORD-step-SlotWrite-slots", "of the same length"),
        (with_access(SlotWrite, blocks="ab"), "RECORD-step-SlotWrite-blocks", "got `str`"),
        (with_record(Planned, rows=[("r0", 0)]), "RECORD-step-Planned-rows", "a tuple, expected PlannedRow"),
        (with_record(Forward, rows=None), "RECORD-step-Forward-rows", "expected a sequence"),
        (with_view(references=()), "RECORD-step-View-references", "0 counts"),
        (with_view(waiting=None), "RECORD-step-View-waiting", "got `null`"),
    ],
)
def test_a_malformed_record_names_its_field(change: Callable[[Effect], Any], signature: str, says: str) -> None:
    """The explanation of the finding has the same signature: there the records pass through a recorder."""
    violation = run_trace(Changed(change), TRACE).violation
    assert violation is not None
    assert violation.signature == signature
    assert says in violation.message
    assert "hybridfuzz.targets.hybrid" in violation.message, "the module that reported it"
    outcome, _ = record_history(Changed(change), TRACE)
    assert outcome.violation is not None
    assert outcome.violation.signature == signature


def test_a_view_without_the_tables_of_a_pool_names_them() -> None:
    """Where M1 does not find it first."""
    target = CLEAN.open(TRACE.config)
    view = target.view()
    assert fault_in_view(view, target.layout) is None
    assert fault_in_view(view, target.layout, ["r0"]) == Fault(
        "View.tables", "no table of r0", "a table of each planned request"
    )
    one = fault_in_view(replace(view, tables={"r0": [[1]]}), target.layout)
    assert one is not None
    assert one.observed == "1 rows of columns for r0"


ENGINE = """
def schedule(fail):
    if fail:
        raise ValueError("the engine's own")
    return callback()

def callback():
    return None

def calls_back(function):
    function()
"""
ADAPTER = """
import some_engine
from hybridfuzz.targets.base.protocol import EngineError, EngineStalled
from hybridfuzz.targets.base.proxy import TargetProxy
from hybridfuzz.targets.base.trace import Step

MODE = ""

def parse():
    int("x")

def stand_in():
    if MODE == "bounds":
        raise EngineError("store out of bounds")
    raise TypeError("the stand-in's own")

class Adapter(TargetProxy):
    def apply(self, event):
        if isinstance(event, Step):
            if MODE == "engine":
                some_engine.schedule(True)
            if MODE == "adapter":
                raise KeyError("the adapter's own")
            if MODE in ("stand-in", "bounds"):
                some_engine.calls_back(stand_in)
            if MODE == "stalls":
                raise EngineStalled("the pause did not end within 9 steps")
            if MODE == "library":
                some_engine.calls_back(parse)
            if MODE == "engine-library":
                some_engine.calls_back(iter([]).__next__)
        return super().apply(event)
"""


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An adapter and its engine, as two modules."""
    (tmp_path / "some_engine.py").write_text(ENGINE)
    (tmp_path / "some_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    import some_adapter  # type: ignore[import-not-found]

    yield some_adapter
    for name in ("some_engine", "some_adapter"):
        del sys.modules[name]


def violation_of(adapter: ModuleType, mode: str, engine: tuple[str, ...] = ("some_engine",)) -> Violation:
    class Factory(FactoryProxy):
        def open(self, config: Config) -> Target:
            target: Target = adapter.Adapter(super().open(config))
            return target

    adapter.MODE = mode  # type: ignore[attr-defined]
    factory = Factory(CLEAN)
    factory.capabilities = replace(CLEAN.capabilities, engine=engine)
    violation = run_trace(factory, TRACE).violation
    assert violation is not None
    return violation


@pytest.mark.parametrize(
    ("mode", "signature", "says"),
    [
        ("engine", "CRASH-step-ValueError-schedule", "the engine (some_engine) raised ValueError"),
        ("adapter", "ADAPTER-step-KeyError-apply", "the adapter (some_adapter) raised KeyError"),
        ("stand-in", "ADAPTER-step-TypeError-stand_in", "the adapter (some_adapter) raised TypeError"),
        ("library", "ADAPTER-step-ValueError-parse", "the adapter (some_adapter) raised ValueError"),
        ("stalls", "HANG-step-no-progress", "HANG: the pause did not end within 9 steps (event"),
        ("bounds", "CRASH-step-EngineError-stand_in", "CRASH: store out of bounds (event"),
        ("engine-library", "CRASH-step-StopIteration-calls_back", "the engine (some_engine) raised StopIteration"),
    ],
)
def test_the_innermost_frame_of_engine_and_adapter_decides(
    adapter: ModuleType, mode: str, signature: str, says: str
) -> None:
    """A stand-in that the engine calls is the adapter's, unless it reports a fault of the engine's own code."""
    violation = violation_of(adapter, mode)
    assert violation.signature == signature
    assert says in violation.message


def test_without_a_declared_engine_the_two_are_one(adapter: ModuleType) -> None:
    violation = violation_of(adapter, "adapter", ())
    assert violation.signature == "CRASH-step-KeyError-apply"
    assert "the target raised KeyError" in violation.message
