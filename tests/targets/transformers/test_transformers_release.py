"""Released transformers, through the same worker process as a campaign. Makes the environment if it is missing.

RELEASE--CAUSE--SIGNATURE.json in corpus/transformers is a short trace of a real defect, argued in
docs/explanation/transformers.md.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hybridfuzz.harness.generate.grammar import draw_trace
from hybridfuzz.harness.traces.files import load_trace
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.transformers.factory import capabilities, refusal
from hybridfuzz.targets.transformers.repro import PROMISE, write_scripts

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

FOLDER = Path(__file__).parents[3] / "corpus" / "transformers"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
SILENT = Path(__file__).parent / "silent"
SILENT_FILES = sorted(path.name for path in SILENT.glob("*.json"))
"""RELEASE--WHAT.json: operations that work, and that nothing else here reaches for certain."""
LATEST = "5.23.0"
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "6"))
SOUND = {"chunks": "wide", "record": "no", "client": "generate", "max_model_len": 32}
"""Configurations in which the sound families are silent: no known defect of 5.23.0 is reached."""


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerClient]:
    """One worker: importing transformers takes most of the time."""
    spec = f"transformers@{LATEST}"
    started = WorkerClient(spec, prepare(spec, print), trace_seconds=300)
    started.start()
    yield started
    started.__exit__()


@pytest.mark.parametrize("name", FILES)
def test_a_defect_of_a_release_shows_as_its_trace_says(worker: WorkerClient, name: str) -> None:
    _, _, signature = name.removesuffix(".json").split("--")
    violation = worker.run(load_trace(FOLDER / name)).violation
    assert violation is not None, "the release is silent"
    assert violation.signature == signature, violation.message


@pytest.mark.parametrize("name", SILENT_FILES)
def test_what_works_is_silent(worker: WorkerClient, name: str) -> None:
    violation = worker.run(load_trace(SILENT / name)).violation
    assert violation is None, violation.message


@pytest.mark.parametrize("family", ["qwen3-next", "lfm2", "granite-hybrid"])
def test_random_traces_are_silent(worker: WorkerClient, family: str) -> None:
    exercised: Counter[str] = Counter()
    overrides: dict[str, object] = {**SOUND, "family": family}
    for index in range(TRACES):
        trace = draw_trace(capabilities(), 7, index, overrides, refusal)
        outcome = worker.run(trace)
        assert outcome.violation is None, outcome.violation.message
        exercised.update(outcome.exercised)
    assert all(exercised[oracle] for oracle in ("S3", "S6", "S7", "S9"))


def test_a_script_of_public_api_shows_a_defect(tmp_path: Path) -> None:
    """The script runs where hybridfuzz cannot be imported."""
    trace = load_trace(FOLDER / "5.23.0--jamba-later-chunk-forgets-the-state--S6-step-logprobs.json")
    [script] = write_scripts("", trace, Failure("S6", "logprobs", "jamba", trace.events, 1))
    launch = prepare(f"transformers@{LATEST}", print)
    tree = launch.env["PYTHONPATH"].split(os.pathsep)[-1]
    (tmp_path / "script.py").write_text(script.text, encoding="utf-8")
    command = [launch.python, str(tmp_path / "script.py")]
    environment = {**os.environ, **launch.env, "PYTHONPATH": tree}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert PROMISE in ran.stderr.splitlines()[-1]
