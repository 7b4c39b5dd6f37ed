"""The table of the workload: every ratio has a name, is read and can be changed."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import json, structs
from support import CLEAN

from hybridfuzz.harness.draw import configurations, grammar
from hybridfuzz.harness.draw.avoid import Circumstances
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.workload import DEFAULT, RARE, Workload, differences, rows_of, with_ratios
from hybridfuzz.targets.base.declarations import EVENTS
from hybridfuzz.targets.base.trace import Preempt, Trace, TraceError

ASKED = CLEAN.capabilities.features | {
    "structured-output",
    "reasoning",
    "samples",
    "stop-strings",
    "drafts-past-length",
    "logprobs-from",
}
ALL = structs.replace(CLEAN.capabilities, events=EVENTS, attention_chunks=(2,), features=ASKED)
"""A target with every kind of event, to reach every ratio."""
WAITING = structs.replace(ALL, features=ALL.features | {"async-loads"})
PAUSED = structs.replace(ALL, events=EVENTS | {"pause"}, features=ALL.features | {"reset-when-idle"})
SWITCHED = structs.replace(ALL, events=EVENTS | {"switch_storage"}, features=ALL.features | {"storage"})
LOADING = structs.replace(ALL, features=ALL.features | {"loads-back"})
SHORT = structs.replace(ALL, pressure={name: values[:1] for name, values in ALL.options.items()})
WITH_IMAGES = structs.replace(
    ALL,
    features=ALL.features | {"images"},
    options={"inputs": ("images",)},
    documents={"inputs": {"images": ("image.b",)}},
)
TARGETS = (ALL, WAITING, SHORT, structs.replace(ALL, has_server=True), PAUSED, LOADING, SWITCHED, WITH_IMAGES)


def drawn(changes: Mapping[str, object], count: int = 40) -> list[Trace]:
    """Draw traces for all of them in turn, under circumstances that are avoided."""
    table, avoid = with_ratios(changes), (Circumstances(traits=("event preempt",)),)
    return [draw_trace(TARGETS[index % len(TARGETS)], 3, index, avoid=avoid, workload=table) for index in range(count)]


@pytest.fixture(scope="module")
def usual() -> list[Trace]:
    return drawn({}, 400)


@pytest.mark.parametrize("name", rows_of(DEFAULT))
def test_every_ratio_has_an_effect(usual: list[Trace], name: str) -> None:
    value, _ = rows_of(DEFAULT)[name]
    changed = ("7" if "/" in value else "0") if value != "0" else "100"
    for count in (20, 80, 400):
        if drawn({name: changed}, count) != usual[:count]:
            return
    pytest.fail(f"{name} is not read")


def test_every_ratio_has_a_line_and_a_name_of_its_own() -> None:
    assert not set(Workload.__struct_fields__) & set(RARE)
    lines = [line for _, line in rows_of(DEFAULT).values()]
    assert all(lines) and len(set(lines)) == len(lines)


@pytest.mark.parametrize("module", [grammar, configurations])
def test_no_ratio_is_a_bare_number(module: object) -> None:
    source = Path(str(module.__file__)).read_text(encoding="utf-8")  # type: ignore[attr-defined]
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    chances = [call for call in calls if re.search(r"\bchance$", ast.unparse(call.func))]
    assert chances
    assert not [ast.unparse(call) for call in chances if any(isinstance(one, ast.Constant) for one in ast.walk(call))]


def test_what_differs_from_the_usual_table_makes_it_again() -> None:
    assert differences(DEFAULT) == {}
    changes = {"preempt": "40", "speculation": "0", "bursts": "1/12"}
    table = with_ratios(changes)
    assert differences(table) == changes
    assert (table.rare["preempt"], table.speculation, table.bursts) == (40, 0, (1, 12))
    assert with_ratios(differences(table)) == table
    assert json.decode(json.encode(table), type=Workload) == table


def test_a_table_changes_what_is_drawn_as_it_says() -> None:
    none = [draw_trace(ALL, 1, index, workload=with_ratios({"preempt": 0, "speculation": 0})) for index in range(60)]
    assert not [event for trace in none for event in trace.events if isinstance(event, Preempt)]
    assert not [trace for trace in none if trace.config.num_speculative_tokens]
    often = [draw_trace(ALL, 1, 3, workload=with_ratios({"preempt": 100, "kind_used": 100})) for _ in range(2)]
    assert often[0] == often[1] and any(isinstance(event, Preempt) for event in often[0].events)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preemt": "3"}, "there is no 'preemt'; did you mean preempt?"),
        ({"zzz": "3"}, "there is no 'zzz'; `hybridfuzz targets --workload` lists what there is"),
        ({"rare": "3"}, "there is no 'rare'"),
        ({"forks": "101"}, "Expected `int` <= 100 - at `$.forks`"),
        ({"preempt": "-1"}, "Expected `int` >= 0"),
        ({"forks": "often"}, "Expected `int`"),
        ({"seats": "4/x"}, "Expected `int`"),
        ({"seats": "0"}, "Expected `int` >= 1"),
    ],
)
def test_what_is_not_in_the_table_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)):
        with_ratios(changes)
