"""Released transformers, through the same worker process as a campaign. Makes the environment if it is missing.

RELEASE--CAUSE--SIGNATURE.json in corpus/transformers is a short trace of a real defect, argued in
docs/explanation/transformers.md.
"""

import os
import shutil
import subprocess
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_process import Cli
from msgspec import structs
from support import of_release

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.face.commands.repro import by_packaged_trace, reported
from hybridfuzz.harness.group.known.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.tell.repro_folder import GIVEN, write_folder
from hybridfuzz.harness.tell.reproduce import Subject
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Step, Trace, TraceError
from hybridfuzz.targets.transformers.factory import capabilities, refusal
from hybridfuzz.targets.transformers.families import FAMILIES
from hybridfuzz.targets.transformers.repro import PROMISE, write_scripts

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

FOLDER = Path(__file__).parents[3] / "corpus" / "transformers"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
SILENT = Path(__file__).parent / "silent"
SILENT_FILES = sorted(path.name for path in SILENT.glob("*.json"))
"""RELEASE--WHAT.json: operations that work, and that nothing else here reaches for certain."""
LATEST = "5.23.0"
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "6"))
JAMBA = "5.23.0--jamba-later-chunk-forgets-the-state--S6-step-logprobs.json"
INSTALLED = """
import sys
from pathlib import Path
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
launch = prepare("transformers", print)
with WorkerClient("transformers", launch, trace_seconds=300) as worker:
    worker.start()
    print(launch.python == sys.executable, worker.run(load_trace(Path(sys.argv[1]))).violation is None)
"""
CONTINUOUS = """
from hybridfuzz.targets.transformers.families import FAMILIES
from transformers import AutoConfig
from transformers.generation.continuous_batching.cache import group_layers_by_attn_type
for name, family in FAMILIES.items():
    try:
        group_layers_by_attn_type(AutoConfig.for_model(family.model_type, **family.sizes))
        print(name)
    except ValueError:
        pass
"""
OFFLOADED_HALVES = """
import torch
from hybridfuzz.targets.base.protocol import EngineError
from hybridfuzz.targets.transformers.devices import simulated
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, STATIC_LAYER_TYPE_MAPPING, Cache
for mapping in (DYNAMIC_LAYER_TYPE_MAPPING, STATIC_LAYER_TYPE_MAPPING):
    for kind in ("hybrid", "hybrid_sliding"):
        sizes = {"max_cache_len": 8} if mapping is STATIC_LAYER_TYPE_MAPPING else {}
        layers = [mapping[kind](sliding_window=4, **sizes) for _ in range(2)]
        with simulated():
            cache = Cache(layers=layers, offloading=True, offload_only_non_sliding=False)
            try:
                for layer in (0, 1, 0, 1):
                    new = torch.ones(1, 1, 1, 2)
                    cache.update(new, new, layer)
                    cache.update_conv_state(torch.ones(1, 2, 4), layer)
                kinds = [type(one).__name__ for one in (layers[1].keys, layers[1].conv_states[0])]
                print(kind, *kinds)
            except (EngineError, ValueError) as error:
                print(kind, type(error).__name__)
"""
"""Prints where the keys and the states of a layer with both halves are after two forwards with an offloaded cache."""
POSITIONS = """
import inspect
from hybridfuzz.targets.transformers.families import FAMILIES
from transformers import AutoConfig, AutoModelForCausalLM
for name, family in FAMILIES.items():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family.model_type, **family.sizes))
    print(name, "position_ids" in inspect.signature(model.forward).parameters)
"""
SOUND_OPTIONS = {"chunks": "wide", "record": "no", "client": "generate", "offload": "no", "forward": "tags"}
SOUND = {"chunks": "wide", "record": "no", "client": "generate", "offload": "no", "max_model_len": 32}
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


@pytest.mark.parametrize(("drafts", "record"), [(0, "no"), (2, "yes")])
def test_stop_tokens_are_held_back_by_the_library(worker: WorkerClient, drafts: int, record: str) -> None:
    options = {**SOUND_OPTIONS, "family": "lfm2", "record": record}
    config = Config(
        64, (Group("mamba", 8), Group("attention", 1)), mamba_cache_mode="none", enable_prefix_caching=False,
        max_num_batched_tokens=64, max_model_len=32, num_speculative_tokens=drafts, options=options,
    )  # fmt: skip
    requests = [
        Arrive(f"r{index}", ((name, 5 + index),), 9, stop_at=2, min_tokens=least)
        for index, (name, least) in enumerate([("a", 4), ("b", 1), ("c", 9)][: 1 if drafts else 3])
    ]
    outcome = worker.run(Trace(config, (*requests, *[Step(drafts=drafts, right=drafts)] * 12)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["stop token held back"]


def test_a_library_that_lets_stop_tokens_come_too_early_is_caught(tmp_path: Path) -> None:
    tree = Path(prepare(f"transformers@{LATEST}", print).tree)
    shutil.copytree(tree / "transformers", tmp_path / "src" / "transformers")
    processors = tmp_path / "src" / "transformers" / "generation" / "logits_process.py"
    text = processors.read_text(encoding="utf-8")
    changed = text.replace("if new_tokens_length < self.min_new_tokens:", "if new_tokens_length < 0:")
    assert text != changed
    processors.write_text(changed, encoding="utf-8")
    config = Config(
        64, (Group("mamba", 8), Group("attention", 1)), mamba_cache_mode="none", enable_prefix_caching=False,
        max_model_len=32, options={**SOUND_OPTIONS, "family": "lfm2"},
    )  # fmt: skip
    trace = Trace(config, (Arrive("r0", (("a", 5),), 9, stop_at=2, min_tokens=4), *[Step()] * 4))
    spec = f"transformers@{tmp_path}"
    with WorkerClient(spec, prepare(spec, print), trace_seconds=300) as checkout:
        checkout.start()
        violation = checkout.run(trace).violation
    assert violation is not None and violation.signature == "S6-step-sampled"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("release", "states"), [("5.15.1", True), ("5.12.1", False)])
def test_an_older_release_runs_as_far_as_its_cache_allows(release: str, states: bool) -> None:
    """Before 5.14 there are no state layers that all families share, and so no tags."""
    with WorkerClient(f"transformers@{release}", prepare(f"transformers@{release}", print), trace_seconds=300) as old:
        assert ("caches" in old.start().capabilities.observes) == states
        assert old.run(load_trace(FOLDER / JAMBA)).violation is not None
        assert old.run(load_trace(SILENT / "5.23.0--static-sessions.json")).violation is None
        tags = load_trace(FOLDER / "5.23.0--qwen3-next-crop-keeps-the-state--S9-crop-mamba-temporal.json")
        if states:
            assert old.run(tags).violation is not None
        else:
            with pytest.raises(TraceError, match="does not record past states"):
                old.run(tags)


def test_a_release_without_state_layers_is_refused() -> None:
    launch = prepare("transformers@5.4.0", print)
    with WorkerClient("transformers@5.4.0", launch) as old, pytest.raises(TargetError, match=r"use 5\.5 or later"):
        old.start()


def test_a_checkout_is_its_own_source(tmp_path: Path) -> None:
    """A changed line in it changes the verdict."""
    tree = Path(prepare(f"transformers@{LATEST}", print).tree)
    shutil.copytree(tree / "transformers", tmp_path / "src" / "transformers")
    model = tmp_path / "src" / "transformers" / "models" / "qwen3_next" / "modeling_qwen3_next.py"
    text = model.read_text(encoding="utf-8")
    changed = text.replace("cache_params.update_recurrent_state(last_recurrent_state, self.layer_idx)", "pass")
    assert text != changed
    for source, fails in ((text, False), (changed, True)):
        model.write_text(source, encoding="utf-8")
        spec = f"transformers@{tmp_path}"
        with WorkerClient(spec, prepare(spec, print), trace_seconds=300) as checkout:
            checkout.start()
            trace = load_trace(SILENT / "5.23.0--static-sessions.json")
            assert (checkout.run(trace).violation is not None) == fails


def test_what_is_installed_runs_without_an_environment_of_its_own() -> None:
    """In an interpreter that can import transformers, `--target transformers` needs nothing else."""
    launch = prepare(f"transformers@{LATEST}", print)
    ran = subprocess.run(
        [launch.python, "-c", INSTALLED, str(SILENT / "5.23.0--static-sessions.json")],
        env={**os.environ, **launch.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == ["True", "True"], ran.stderr


@pytest.mark.exhaustive
def test_bisect_finds_the_releases_of_a_cause(hybridfuzz: Cli) -> None:
    name = "5.23.0--minimax-reset-keeps-the-states--S2-step-mamba-phantom-state.json"
    releases = ["--target", "transformers", "--versions", "5.12.1,5.15.1,5.19.0,5.23.0", "--all", "--json"]
    ran = hybridfuzz("bisect", FOLDER / name, *releases, env={"HYBRIDFUZZ_CACHE": str(cache_folder())})
    states = {one["release"]: one["state"] for one in ran.json["tried"]}
    assert states == {"5.12.1": "not applicable", "5.15.1": "other", "5.19.0": "bad", "5.23.0": "bad"}


def test_continuous_batching_takes_no_family() -> None:
    """docs/explanation/transformers.md says so: its paged cache has no state layers."""
    launch = prepare(f"transformers@{LATEST}", print)
    ran = subprocess.run(
        [launch.python, "-c", CONTINUOUS], env={**os.environ, **launch.env}, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == [], ran.stderr
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("release", "refused"),
    [
        of_release("transformers", "5.23.0", "5.23.0", ["EngineError", *["ValueError"] * 3]),
        ("5.24.0", ["EngineError"] * 4),
    ],
)
def test_the_states_of_every_layer_with_both_halves_stay(release: str, refused: list[str]) -> None:
    """The patch left out layers with a window, which offload their states alone."""
    spec, kinds = f"transformers@{release}", ["hybrid", "hybrid_sliding"] * 2
    launch = prepare(spec, print)
    fixes = [one.read_patch() for one in read_fixes(BUILTIN, spec) if one.patch and release in one.releases]

    def told(by: Launch) -> list[str]:
        environment = {**os.environ, **by.env}
        command = [by.python, "-c", OFFLOADED_HALVES]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    assert told(launch) == [f"{kind} {error}" for kind, error in zip(kinds, refused, strict=True)]
    assert told(patched(launch, fixes)) == [f"{kind} OnHost Tensor" for kind in kinds]


@pytest.mark.parametrize("release", [of_release("transformers", "5.23.0", "5.23.0"), "5.24.0"])
def test_a_family_takes_positions_if_its_forward_does(release: str) -> None:
    launch = prepare(f"transformers@{release}", print)
    environment = {**os.environ, **launch.env}
    command = [launch.python, "-c", POSITIONS]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == [f"{name} {family.positions}" for name, family in FAMILIES.items()]


def test_a_script_of_public_api_shows_a_defect(tmp_path: Path) -> None:
    """The script runs where hybridfuzz cannot be imported."""
    trace = load_trace(FOLDER / JAMBA)
    [script] = write_scripts("", trace, Failure("S6", "logprobs", "jamba", trace.events, 1))
    launch = prepare(f"transformers@{LATEST}", print)
    tree = launch.env["PYTHONPATH"].split(os.pathsep)[-1]
    (tmp_path / "script.py").write_text(script.text, encoding="utf-8")
    command = [launch.python, str(tmp_path / "script.py")]
    environment = {**os.environ, **launch.env, "PYTHONPATH": tree}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert PROMISE in ran.stderr.splitlines()[-1]


def test_a_finding_is_reported_by_the_packaged_trace_of_its_cause(tmp_path: Path) -> None:
    """Of ten reports three told the cause of one defect beside a run that showed another one first."""
    spec = f"transformers@{LATEST}"
    [path] = FOLDER.glob("5.23.0--minimax-repeat-past-the-states--*.json")
    packaged = load_trace(path)
    given = structs.replace(packaged, events=(*packaged.events, Step()))
    subject = Subject(spec, prepare(spec, print), 60, 16 << 30, known="minimax-select-repeat")
    options = Namespace(target=spec, own_trace=False, patch=None, fixes=[])
    found = by_packaged_trace(options, Path("finding.json"), given, subject, path.stem.rpartition("--")[2], tmp_path)
    assert found and found.given == given and found.case.verdict and found.case.verdict.promised
    assert found.trace.events == packaged.events
    assert load_trace(tmp_path / GIVEN).events == given.events
    write_folder(tmp_path, found.case)
    assert not (tmp_path / GIVEN).exists(), "of an earlier run"
    taken = by_packaged_trace(options, Path("again.json"), given, subject, "", tmp_path, reported([found]))
    assert taken is None, "a further finding of this cause keeps its trace"
    own = Namespace(**{**vars(options), "own_trace": True})
    assert by_packaged_trace(own, Path("finding.json"), given, subject, "", tmp_path) is None
    assert by_packaged_trace(options, path, packaged, subject, "", tmp_path) is None, "it is packaged itself"
