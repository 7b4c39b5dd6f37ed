"""The corpus: every trace says in its name what it shows, shows it, and is clean where nothing is wrong.

MUTANT--SIGNATURE.json; corpus/vllm is for tests/targets/vllm/test_release.py.
"""

from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import check_config
from hybridfuzz.targets.hybrid.mutants import MUTANTS

FOLDER = Path(__file__).parents[1] / "corpus"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
EVENTS_MAX = 8


@pytest.fixture(params=FILES)
def path(request: pytest.FixtureRequest) -> Path:
    return FOLDER / str(request.param)


def test_it_loads(path: Path) -> None:
    trace = load_trace(path)
    check_config(trace.config)
    assert path.read_bytes() == encode_trace(trace), "write it with save_trace"


def test_its_name_says_what_happens_on_its_mutant(path: Path) -> None:
    slug, _, signature = path.stem.partition("--")
    violation = run_trace(load_factory(f"hybrid:{slug}"), load_trace(path)).violation
    assert violation is not None, f"{slug} shows nothing"
    assert violation.signature == signature


def test_it_is_clean_on_the_correct_target(path: Path) -> None:
    outcome = run_trace(load_factory("hybrid"), load_trace(path))
    assert outcome.violation is None, outcome.violation.message


def test_it_is_reduced(path: Path) -> None:
    assert len(load_trace(path).events) <= EVENTS_MAX


def test_every_mutant_has_a_trace() -> None:
    assert {name.partition("--")[0] for name in FILES} == MUTANTS.keys()
