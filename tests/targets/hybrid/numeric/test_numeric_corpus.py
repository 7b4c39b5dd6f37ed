"""Reduced traces of corpus/numeric: each shows its mutant by its bytes alone, and is clean without it.

MUTANT--SIGNATURE.json, as in the corpus of the symbolic run.
"""

from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.registry import load_factory

FOLDER = Path(__file__).parents[4] / "corpus" / "numeric"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))


@pytest.fixture(params=FILES)
def path(request: pytest.FixtureRequest) -> Path:
    return FOLDER / str(request.param)


def test_it_is_written_as_we_write(path: Path) -> None:
    assert path.read_bytes() == encode_trace(load_trace(path)), "write it with save_trace"


def test_it_shows_what_its_name_says(path: Path) -> None:
    slug, _, signature = path.stem.partition("--")
    violation = run_trace(load_factory(f"hybrid:{slug}@cpu-bytes"), load_trace(path)).violation
    assert violation is not None, "nobody noticed"
    assert violation.signature == signature, violation.message


def test_it_is_clean_without_the_mutant(path: Path) -> None:
    outcome = run_trace(load_factory("hybrid@cpu"), load_trace(path))
    assert outcome.violation is None, outcome.violation.message


def test_it_is_short(path: Path) -> None:
    assert len(load_trace(path).events) <= 8
