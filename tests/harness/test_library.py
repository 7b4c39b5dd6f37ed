"""Property: from Python a campaign, a run, an explanation and a reduction give what the commands give."""

from pathlib import Path

import pytest

from hybridfuzz.harness.campaign_events import CampaignEnded, Found
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.library import Engine, fuzz
from hybridfuzz.targets.base.trace import TraceError

MUTANT = "hybrid:hit-before-commit"


def test_a_campaign_yields_its_events_and_leaves_its_findings(tmp_path: Path) -> None:
    events = list(fuzz(MUTANT, tmp_path / "out", traces=12, seed=2))
    assert any(isinstance(event, Found) for event in events)
    assert isinstance(events[-1], CampaignEnded)
    [finding, *_] = events[-1].summary.findings
    with Engine(MUTANT) as engine:
        trace = load_trace(Path(finding.trace))
        violation = engine.run(trace).violation
        assert violation and violation.signature == finding.signature
        assert violation.sentence.split(";")[0][:20] in engine.explain(trace)
    with pytest.raises(TraceError, match="holds a campaign"):
        next(fuzz(MUTANT, tmp_path / "out", traces=1))


def test_a_trace_is_drawn_and_reduced() -> None:
    with Engine(MUTANT) as engine:
        failing = next(trace for index in range(40) if engine.run(trace := engine.draw(3, index)).violation)
        small = engine.reduce(failing, seconds=5)
        assert len(small.events) < len(failing.events)
        assert engine.run(small).violation
    with Engine() as engine:
        assert engine.run(small).violation is None
        assert engine.explain(small) == ""
        with pytest.raises(TraceError, match="nothing to reduce"):
            engine.reduce(small)


def test_a_generator_that_is_closed_stops_the_campaign(tmp_path: Path) -> None:
    events = fuzz("hybrid", tmp_path / "out", seed=1)
    next(events)
    events.close()
    assert (tmp_path / "out").exists()
