"""Traces drawn by Hypothesis: a pure function of seed and number, and a database that brings failing ones back."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import CLEAN

from hybridfuzz.harness.draw import hypothesis_traces
from hybridfuzz.harness.draw.avoid import Circumstances
from hybridfuzz.harness.draw.hypothesis_traces import HypothesisTraces
from hybridfuzz.targets.base.trace import Config, Trace, TraceError, check_config

ROUND = 12
SMALL = {"ROUND": ROUND, "EXAMPLES": 16, "RULES_MAX": 12}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Rounds of few and short traces: drawing takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(hypothesis_traces, name, value)
        yield


def source(folder: Path, seed: int = 5, **more: object) -> HypothesisTraces:
    made = HypothesisTraces(seed, {}, folder, **more)  # type: ignore[arg-type]
    made.capabilities = CLEAN.capabilities
    return made


@pytest.fixture(scope="module")
def first_round(tmp_path_factory: pytest.TempPathFactory) -> list[Trace]:
    traces = source(tmp_path_factory.mktemp("hypothesis"))
    return [traces.trace(index, CLEAN.supports) for index in range(ROUND)]


def test_a_number_is_the_same_trace_whatever_was_drawn_before(tmp_path: Path, first_round: list[Trace]) -> None:
    """Also after the database has learnt of failures: a resumed campaign draws what the first one did."""
    traces = source(tmp_path)
    later = traces.trace(ROUND + 3, CLEAN.supports)
    traces.keep(ROUND + 3, "S1-step-mamba-temporal", CLEAN.supports)
    assert traces.trace(7, CLEAN.supports) == first_round[7]
    assert source(tmp_path).trace(ROUND + 3, CLEAN.supports) == later
    assert later.origin == f"hypothesis, seed 5, trace {ROUND + 3}"


def test_traces_are_valid_and_differ(first_round: list[Trace]) -> None:
    for trace in first_round:
        check_config(trace.config)
        assert not CLEAN.supports(trace.config)
    assert len({repr((trace.config, trace.events)) for trace in first_round}) == ROUND
    assert sum(len(trace.events) for trace in first_round) > 8 * ROUND


def test_the_seed_matters(tmp_path: Path, first_round: list[Trace]) -> None:
    """The first example of every run is Hypothesis's simplest one."""
    assert source(tmp_path, seed=6).trace(9, CLEAN.supports) != first_round[9]


def test_other_imports_give_the_same_traces(tmp_path: Path, first_round: list[Trace]) -> None:
    """Hypothesis collects constants from the source of imported modules; here are many more of them."""
    (tmp_path / "constants.py").write_text(f"NUMBERS = {list(range(100))}\n")
    script = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import constants
from pathlib import Path
from hybridfuzz.harness.draw import hypothesis_traces
from hybridfuzz.targets.base.registry import load_factory
vars(hypothesis_traces).update({SMALL})
factory = load_factory("hybrid")
traces = hypothesis_traces.HypothesisTraces(5, {{}}, Path({str(tmp_path / "h")!r}))
traces.capabilities = factory.capabilities
print([traces.trace(index, factory.supports) for index in range({ROUND})])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{first_round!r}\n"


def test_kept_traces_come_back(tmp_path: Path) -> None:
    """Each kept trace, also several with one signature, and again and again although they did not fail meanwhile."""
    traces = source(tmp_path)
    wanted = {7: "S1-step-mamba-temporal", 9: "S1-step-mamba-temporal", ROUND + 1: "M4-step-mamba-dead-write"}
    assert traces.kept(CLEAN.supports) == []
    for index, signature in wanted.items():
        traces.keep(index, signature, CLEAN.supports)
    for _ in range(2):
        again = source(tmp_path, seed=8).kept(CLEAN.supports)
        assert {repr(trace.events) for trace in again} == {
            repr(traces.trace(index, CLEAN.supports).events) for index in wanted
        }


def test_circumstances_of_known_bugs_are_mostly_avoided(tmp_path: Path) -> None:
    """In six rounds without it some thirty traces have them; three are too few to tell half of them from chance."""
    limits = Circumstances(traits=["a step with a limit for a request"])
    met = []
    for avoid in ([], [limits]):
        traces = source(tmp_path / str(len(avoid)), avoid=avoid)
        drawn = [traces.trace(index, CLEAN.supports) for index in range(6 * ROUND)]
        met.append(sum(map(limits.apply_to, drawn)))
    assert 0 < met[1] < met[0] / 2


def test_an_error_of_the_target_is_raised_as_it_is(tmp_path: Path) -> None:
    """Not as a failing example, which Hypothesis would run again."""
    asked: list[Config] = []

    def gone(config: Config) -> str:
        asked.append(config)
        raise RuntimeError("the worker is gone")

    with pytest.raises(RuntimeError, match="the worker is gone"):
        source(tmp_path).trace(0, gone)
    assert len(asked) == 1


def test_an_error_while_a_failing_trace_is_kept(tmp_path: Path) -> None:
    """At every question: Hypothesis asks again when it replays the example that failed."""
    traces, asked = source(tmp_path), 0

    def gone(config: Config) -> str:
        nonlocal asked
        asked += 1
        if asked == last:
            raise RuntimeError("the worker is gone")
        return CLEAN.supports(config)

    traces.trace(0, CLEAN.supports)
    last = 0
    traces.keep(7, "S1-step-mamba-temporal", gone)
    for number in (1, asked // 2, asked - 1, asked):
        asked, last = 0, number
        with pytest.raises(RuntimeError, match="the worker is gone"):
            traces.keep(7, "S1-step-mamba-temporal", gone)


def test_no_configuration_fits(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no configuration fits the target and the overrides: never"):
        source(tmp_path).trace(0, lambda config: "never")


def test_hypothesis_writes_only_into_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    traces = source(tmp_path / "out")
    traces.trace(0, CLEAN.supports)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == []
