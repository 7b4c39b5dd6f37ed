"""The target on the memory of sequences: it is clean and not vacuous, and each mutant of the memory is found."""

import re
from collections import Counter
from inspect import isfunction
from pathlib import Path

import pytest

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.state_catalogue import missing_states, required_oracles
from hybridfuzz.targets.base.declarations import fault
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.sequences.factory import CAPABILITIES
from hybridfuzz.targets.sequences.memory import Memory
from hybridfuzz.targets.sequences.mutants import PARTS, titles

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "corpus/sequences").glob("*.json"))


def test_the_correct_one_is_clean_and_not_vacuous() -> None:
    factory = load_factory("sequences")
    exercised: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for index in range(200):
        outcome = run_trace(factory, draw_trace(CAPABILITIES, 3, index, {}, factory.supports))
        assert outcome.violation is None, outcome.violation.message
        exercised.update(outcome.exercised)
        reached.update(outcome.reached)
    assert not fault(CAPABILITIES)
    assert all(exercised[oracle] for oracle in required_oracles(CAPABILITIES))
    assert not missing_states(CAPABILITIES, reached)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_trace_shows_its_mutant_and_nothing_on_the_correct_memory(path: Path) -> None:
    slug, _, signature = path.stem.partition("--")
    violation = run_trace(load_factory(f"sequences:{slug}"), load_trace(path)).violation
    assert violation is not None
    assert violation.signature == signature
    assert run_trace(load_factory("sequences"), load_trace(path)).violation is None


def test_every_mutant_has_a_trace_and_a_row() -> None:
    assert {path.stem.partition("--")[0] for path in FILES} == PARTS.keys()
    page = (ROOT / "docs/reference/mutants.md").read_text(encoding="utf-8").partition("\n## Of the memory")[2]
    shown = dict(re.findall(r"^\| ([\w-]+) \| [^|]* \| ([^|]*) \|", page.partition("\n## ")[0], flags=re.MULTILINE))
    assert {slug: shown[slug] for slug in PARTS} == titles()


@pytest.mark.parametrize("slug", PARTS)
def test_a_mutant_overrides_one_method_and_names_its_bug(slug: str) -> None:
    methods = [name for name, member in vars(PARTS[slug]).items() if isfunction(member)]
    assert len(methods) == 1
    assert hasattr(Memory, methods[0])
    assert re.search(r"#\d+|no public issue known", PARTS[slug].__doc__ or "")
