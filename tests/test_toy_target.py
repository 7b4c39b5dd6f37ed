"""The example of docs/how-to/add-a-target.md is a sound target, and one that is broken is found."""

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import decode_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.state_catalogue import missing_states, required_oracles

DOCS = Path(__file__).parents[1] / "docs/how-to"


@pytest.fixture(scope="module")
def toy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy_target", DOCS / "toy_target.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_clean_and_not_vacuous(toy: ModuleType) -> None:
    exercised: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for index in range(100):
        outcome = run_trace(toy.FACTORY, draw_trace(toy.FACTORY.capabilities, 1, index, {}, toy.FACTORY.supports))
        assert outcome.violation is None, outcome.violation.message
        exercised.update(outcome.exercised)
        reached.update(outcome.reached)
    assert all(exercised[oracle] for oracle in required_oracles(toy.FACTORY.capabilities))
    assert not missing_states(toy.FACTORY.capabilities, reached)


@pytest.mark.parametrize(
    ("method", "broken", "oracle"),
    [
        ("_release", lambda self, request: setattr(request, "table", []), "M1"),
        (
            "_missing",
            lambda self, request, count: [] if request.computed else [0, 1, 2][: len(self.layout.groups)],
            "CRASH",
        ),
    ],
)
def test_a_broken_one_is_found(
    toy: ModuleType, monkeypatch: pytest.MonkeyPatch, method: str, broken: object, oracle: str
) -> None:
    monkeypatch.setattr(toy.Toy, method, broken)
    traces = (draw_trace(toy.FACTORY.capabilities, 1, index, {}, toy.FACTORY.supports) for index in range(20))
    violations = [violation for trace in traces if (violation := run_trace(toy.FACTORY, trace).violation)]
    assert oracle in {violation.oracle for violation in violations}


def test_the_first_trace_of_the_page(toy: ModuleType) -> None:
    page = (DOCS / "add-a-target.md").read_text()
    text = page.partition("```json\n")[2].partition("```")[0]
    trace = decode_trace(text.encode(), "page")
    outcome = run_trace(toy.FACTORY, trace)
    assert outcome.violation is None
    assert outcome.steps > 2, "two of them, and what is left"
    assert msgspec.json.decode(text)["events"][1] == {"event": "step"}


def reached_by(toy: ModuleType, factory: Any) -> tuple[Any, Counter[str]]:
    reached: Counter[str] = Counter()
    for index in range(20):
        reached.update(run_trace(factory, draw_trace(toy.FACTORY.capabilities, 1, index)).reached)
    return factory.capabilities, reached


def test_a_declared_observation_that_is_never_delivered_is_missing(toy: ModuleType) -> None:
    """The toy has no labels; the campaign that declares them is vacuous and names the word."""
    factory = toy.ToyFactory()
    factory.capabilities = msgspec.structs.replace(
        factory.capabilities, observes=factory.capabilities.observes | {"labels"}
    )
    assert [one for one in missing_states(*reached_by(toy, factory)) if "observed" in one] == ["observed: labels"]


def test_content_that_is_constant_is_not_delivered(toy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Toy, "read", lambda self, group, layer, block: toy.SlotContent((1, 2)))
    missing = missing_states(*reached_by(toy, toy.FACTORY))
    assert [one for one in missing if "observed" in one] == ["observed: content"]
