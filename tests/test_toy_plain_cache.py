"""The second example of docs/how-to/add-a-target.md, a target without a pool: it is sound, ends clean, and each way of
breaking it is found by the oracle that should."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.state_catalogue import missing_states, required_oracles, required_states
from hybridfuzz.targets.base.declarations import fault
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.trace import BATCH_EVENTS

SOURCE = Path(__file__).parents[1] / "docs/how-to/toy_plain_cache.py"
SELECT = "self.cache.select([order.index(source) for source, _ in batch.values()])"


def module_of(text: str, name: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def factory() -> TargetFactory:
    spec = importlib.util.spec_from_file_location("toy_plain_cache", SOURCE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: TargetFactory = module.FACTORY
    return found


def test_it_is_clean_and_not_vacuous(factory: TargetFactory) -> None:
    exercised: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for index in range(150):
        outcome = run_trace(factory, draw_trace(factory.capabilities, 1, index, {}, factory.supports))
        assert outcome.violation is None, outcome.violation.message
        exercised.update(outcome.exercised)
        reached.update(outcome.reached)
    assert not fault(factory.capabilities)
    assert all(exercised[oracle] for oracle in required_oracles(factory.capabilities))
    assert not missing_states(factory.capabilities, reached)
    assert exercised["S9"]
    batch = [state for state in required_states(factory.capabilities) if "batch" in state or "row" in state]
    assert len(batch) >= len(BATCH_EVENTS)


def test_the_pool_of_a_target_without_one_is_not_drawn(factory: TargetFactory) -> None:
    configs = [draw_trace(factory.capabilities, 1, index).config for index in range(30)]
    assert all(config.num_blocks == config.smallest_pool() for config in configs)


BREAKS = {
    "states are not reordered": (
        SELECT,
        f"before = self.cache.layers; {SELECT}; self.cache.layers = [old if group.kind == 'mamba' and "
        "len(old) == len(new) else new for group, old, new in zip(self.layout.groups, before, self.cache.layers)]",
        "S9-reorder-mamba-temporal",
    ),
    "rows are repeated as a whole, not one by one": (
        SELECT,
        "self.cache.select([i % len(order) for i in range(len(batch))] if len(batch) > len(order) else "
        "[order.index(source) for source, _ in batch.values()])",
        "S9-repeat-",
    ),
    "the order of a selection is lost": (
        "self.keep([rows.index(name) for name in selected(rows, names)])",
        "self.keep(sorted(rows.index(name) for name in selected(rows, names)))",
        "S9-select-order",
    ),
    "windows stay where they are": (
        "[[rows[index] for index in indices] for rows in self.layers]",
        "[[(rows[index][0], rows[i][1]) if group.kind == 'mamba' else rows[index] for i, index in enumerate(indices)]"
        " for group, rows in zip(self.groups, self.layers)]",
        "S9-reorder-mamba-conv",
    ),
    "crop leaves one position": ("row[:-tokens] for row", "row[: len(row) - tokens + 1] for row", "S9-crop-attention"),
    "crop does not touch states": (
        'return "a state cannot be rolled back"',
        "self.cache.crop = lambda tokens: None",
        "S9-crop-mamba-temporal",
    ),
    "reset leaves the caches": ("        self.cache.reset()\n", "", "S9-reset-attention-slot"),
    "a session keeps the first row": ("self.cache.taken(index))", "self.cache.taken(0))", "S9-step-"),
    "rejected drafts stay": (
        "computed = len(known) + max(len(sampled) - 1, 0)",
        "computed = len(known) + (row.drafts if sampled else 0)",
        "S9-step-",
    ),
    "a chunk starts with an empty window": (
        "window = rows[cache_row][1] if computed else",
        "window = rows[cache_row][1] if computed and count == 1 else",
        "S9-step-mamba-conv",
    ),
    "parked sessions share a cache": (
        "caches | {name: KEPT + index for index",
        "caches | {name: KEPT for index",
        "S9-",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_one_is_found(name: str) -> None:
    """Each break of one line is found within 60 traces, by S9."""
    old, new, expected = BREAKS[name]
    text = SOURCE.read_text()
    assert text.count(old) == 1
    broken = module_of(text.replace(old, new), "broken_toy").FACTORY
    found: set[str] = set()
    for index in range(60):
        violation = run_trace(broken, draw_trace(broken.capabilities, 5, index)).violation
        if violation:
            found.add(violation.signature)
    assert any(one.startswith(expected) for one in found), found
