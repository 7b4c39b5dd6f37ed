"""A released llama.cpp, through the same worker process as a campaign. Makes the environment if it is missing.

RELEASE--CAUSE--SIGNATURE.json in corpus/llamacpp is a short trace of a real defect, argued in
docs/explanation/llamacpp.md.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cli_process import Cli

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.causes.investigate import Investigation
from hybridfuzz.harness.group.causes.same_cause import known_cause
from hybridfuzz.harness.group.known.conditions import evidence_of
from hybridfuzz.harness.group.known.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Abort, Arrive, Config, Reorder, Step, Trace
from hybridfuzz.targets.llamacpp.factory import capabilities, server_capabilities
from hybridfuzz.targets.llamacpp.families import FAMILIES
from hybridfuzz.targets.llamacpp.kit_limits import refusal
from hybridfuzz.targets.llamacpp.library import LIBRARY
from hybridfuzz.targets.llamacpp.repro import WRONG_LOGITS, write_scripts
from hybridfuzz.targets.sequences.client_events import EVENTS

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

FOLDER = Path(__file__).parents[3] / "corpus" / "llamacpp"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
LATEST = "2026.10.11549"
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "6"))
SPLIT = "2026.10.11549--snapshots-left-behind-in-a-split-batch--S9-step-mamba-temporal.json"
SOUND = {"planes": "0", "kv": "unified"}
"""Configurations that no known defect of the release needs, but for that of a window: any trace may meet it."""
COPYING = {"fork", "repeat", "reorder"}
SERVER = FOLDER / "server"
DATA = Path(__file__).parents[2] / "data"
MTP = """
from pathlib import Path
from tempfile import mkdtemp
from hybridfuzz.targets.llamacpp.families import FAMILIES
from hybridfuzz.targets.llamacpp.gguf_file import write_gguf
from hybridfuzz.targets.llamacpp.server import ALONE, Server
from hybridfuzz.targets.llamacpp.server_process import ServerProcess
folder = Path(mkdtemp())
write_gguf(folder / "tiny.gguf", FAMILIES["qwen3-5"], spelled=True)
found = []
for draft in ("none", "mtp"):
    options = {**ALONE, "draft": draft}
    server = Server(ServerProcess(folder / "tiny.gguf", folder / "none.gguf", folder, options), folder, options)
    found.append(server.ask({0: [5, 6, 7, 8, 9]}, 12)[0])
    server.close()
print(found[0].tokens == found[1].tokens, all(found[1].known))
"""
CAN_SHIFT = """
from hybridfuzz.targets.llamacpp.context import Context
from hybridfuzz.targets.llamacpp.context_sizes import Sizes
from hybridfuzz.targets.llamacpp.families import FAMILIES
from hybridfuzz.targets.llamacpp.library import Library, find_library
from hybridfuzz.targets.llamacpp.model import Models
models = Models(Library(find_library()))
for name in FAMILIES:
    model = models.get(name)
    context = Context(model.library, model.handle, Sizes(1024, 512, 512, 4, 0, True, "window" not in name))
    print(name, context.shift(0, 3))
"""
"""Which families can move positions, by what the library says."""
WRONG_TOKEN = """
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.llamacpp.factory import make_factory
from hybridfuzz.targets.llamacpp.server import Server
factory, ask = make_factory("server"), Server.ask
Server.ask = lambda server, prompts, count, leaving: ask(
    server, {client: [prompt[0] ^ 1, *prompt[1:]] for client, prompt in prompts.items()}, count, leaving
)
for arrivals in ("together", "apart"):
    trace = draw_trace(factory.capabilities, 7, 0, {"arrivals": arrivals}, factory.supports)
    print(run_trace(factory, trace).violation.signature)
"""
"""The server gets other prompts than the client's: the first token is another one."""
WINDOW = """
from hybridfuzz.targets.llamacpp.library import Library, find_library
from hybridfuzz.targets.llamacpp.model import Models
models = Models(Library(find_library()))
plain, window = (models.get(name).alone(tuple(range(20))).states[0] for name in ("lfm2", "lfm2-window"))
print((plain[-len(window):] == window).all(), len(plain) - len(window))
"""
"""The state after one token: the first layer's, with a window or without, is that of the token's embedding."""
REFUSED = """
import ctypes, sys
from hybridfuzz.targets.llamacpp import library
library._ADDED = library._ADDED[:-1]
library.Library(library.find_library())
"""


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerClient]:
    """One worker for all traces."""
    spec = f"llamacpp@{LATEST}"
    started = WorkerClient(spec, prepare(spec, print), trace_seconds=120)
    started.start()
    yield started
    started.__exit__()


def supported(config: Config) -> str:
    return refusal("library", config)


@pytest.mark.parametrize("name", FILES)
def test_a_defect_of_a_release_shows_as_its_trace_says(worker: WorkerClient, name: str) -> None:
    _, _, signature = name.removesuffix(".json").split("--")
    violation = worker.run(load_trace(FOLDER / name)).violation
    assert violation is not None, "the release is silent"
    assert violation.signature == signature, violation.message


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "lfm2-window"])
def test_random_traces_are_silent(worker: WorkerClient, family: str) -> None:
    """Shifts and copies are drawn apart: a shift of a copy is a known defect."""
    exercised: Counter[str] = Counter()
    for index in range(TRACES):
        without = {"shift"} if index % 2 else COPYING
        drawn = msgspec.structs.replace(capabilities(), events=EVENTS - without)
        outcome = worker.run(draw_trace(drawn, 7, index, {**SOUND, "family": family}, supported))
        assert outcome.violation is None, outcome.violation.message
        exercised.update(outcome.exercised)
    assert all(exercised[oracle] for oracle in ("S4", "S6", "S7", "S9", "M9"))


@pytest.mark.parametrize(("release", "planes"), [("2026.4.8672.1", False), ("2026.5.9294", True)])
def test_an_older_release_runs_as_far_as_its_memory_allows(release: str, planes: bool) -> None:
    """Snapshots came with build 9294. Before 10068 each part of a batch had one sequence, so none was moved."""
    with WorkerClient(f"llamacpp@{release}", prepare(f"llamacpp@{release}", print), trace_seconds=120) as old:
        found = old.start().capabilities
        assert (found.options["planes"] != ("0",)) == planes
        keep = next(name for name in FILES if "keep-of-other-streams" in name)
        assert old.run(load_trace(FOLDER / keep)).violation is not None
        trace = draw_trace(found, 7, 0, {**SOUND, "family": "qwen3-5"}, supported)
        assert old.run(trace).violation is None
        if planes:
            assert old.run(load_trace(FOLDER / SPLIT)).violation is None


def test_the_server_gives_what_its_traces_say() -> None:
    """Defects of the release; silence without context checkpoints, on random traces."""
    spec = f"llamacpp:server@{LATEST}"
    with WorkerClient(spec, prepare(spec, print), trace_seconds=120) as server:
        server.start()
        for path in SERVER.glob("*.json"):
            violation = server.run(load_trace(path)).violation
            assert violation is not None
            assert violation.signature == path.stem.split("--")[2], violation.message
        for index in range(TRACES):
            draft, family = ("none", "ngram", "model")[index % 3], list(FAMILIES)[index % len(FAMILIES)]
            idle = "kept" if draft == "model" else "saved"
            arrivals = ("together", "apart")[index % 2]
            sound = {"checkpoints": "0", "draft": draft, "idle": idle, "family": family, "arrivals": arrivals}
            trace = draw_trace(server_capabilities(), 7, index, sound)
            outcome = server.run(trace)
            assert outcome.violation is None, outcome.violation.message
            assert outcome.exercised["S6"]


def test_a_server_does_not_depend_on_the_server_before_it() -> None:
    """llama.cpp's server fixes for its process where a prompt is divided, by the `n_ubatch` of the first one."""
    trace = load_trace(DATA / "llamacpp-server-behind-another-one.json")
    larger = msgspec.structs.replace(trace.config, options={**trace.config.options, "ubatch": "512"})
    spec = f"llamacpp:server@{LATEST}"
    with WorkerClient(spec, prepare(spec, print), trace_seconds=120) as server:
        server.start()
        for config in (larger, trace.config):
            outcome = server.run(Trace(config, trace.events))
            assert outcome.violation is None, outcome.violation.message
            assert outcome.exercised["S6"]


def test_requests_arrive_and_clients_leave_while_the_server_computes_others() -> None:
    events = (Arrive("r0", (("a", 9),), 8), Arrive("r1", (("b", 9),), 8), Step(), Abort("r0"), Step(), Step())
    [path] = SERVER.glob("*--named-slot-that-is-busy--*.json")
    config = load_trace(path).config
    with WorkerClient(f"llamacpp:server@{LATEST}", prepare(f"llamacpp:server@{LATEST}", print)) as server:
        server.start()
        for arrivals in ("apart", "queued"):
            options = {**config.options, "slots": "4", "checkpoints": "0", "arrivals": arrivals}
            outcome = server.run(Trace(msgspec.structs.replace(config, options=options), events))
            assert outcome.violation is None, outcome.violation.message
            assert outcome.reached["request sent before the answer to another one"]
            assert outcome.reached["request cancelled before the answers to others"]


def test_the_server_drafts_with_a_block_of_its_model() -> None:
    """Probabilities are missing where it drafted."""
    launch = prepare(f"llamacpp:server@{LATEST}", print)
    environment = {**os.environ, **launch.env}
    command = [launch.python, "-c", MTP]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1] == "True False", ran.stderr


def test_one_wrong_token_in_a_prompt_of_the_server_is_seen() -> None:
    launch = prepare(f"llamacpp:server@{LATEST}", print)
    environment = {**os.environ, **launch.env}
    command = [launch.python, "-c", WRONG_TOKEN]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout == "S6-step-logprobs\n" * 2, ran.stderr


def test_a_script_of_requests_shows_a_defect_of_the_server(tmp_path: Path) -> None:
    """The script runs where hybridfuzz cannot be imported, and prints what the clients got and should get."""
    [path] = SERVER.glob("*--checkpoint-of-another-prompt--*.json")
    trace = load_trace(path)
    failure = Failure("S6", "logprobs", "wrong", (*trace.events, *[Step()] * 4), 3)
    [script] = write_scripts("server", trace, failure)
    launch = prepare(f"llamacpp:server@{LATEST}", print)
    (tmp_path / "script.py").write_text(script.text, encoding="utf-8")
    environment = {**os.environ, **launch.env, "PYTHONPATH": launch.tree}
    command = [launch.python, "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert script.promise in ran.stderr
    assert ran.stdout.startswith("client 0, prompt [")


def test_the_library_says_which_families_can_shift() -> None:
    launch = prepare(f"llamacpp@{LATEST}", print)
    environment = {**os.environ, **launch.env}
    command = [launch.python, "-c", CAN_SHIFT]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    answers = dict(line.split() for line in ran.stdout.splitlines())
    assert answers.keys() == FAMILIES.keys(), ran.stderr
    assert {name for name, answer in answers.items() if answer == "False"} == {"qwen3-5", "lfm2-window"}


@pytest.mark.exhaustive
def test_a_known_defect_is_taken_for_no_other(worker: WorkerClient) -> None:
    """The checkpoint of a new copy is recognized however the copy was made; no other trace is taken for it."""
    entries = [entry for entry in read_fixes(BUILTIN, f"llamacpp@{LATEST}") if entry.condition]
    given = worker.start().capabilities
    known = {entry.title: evidence_of(entry, worker, given, 60.0)[0] for entry in entries}
    found = {title: one for title, one in known.items() if one is not None}
    name = "checkpoint-of-a-new-copy"
    [path] = FOLDER.glob(f"*--{name}--*.json")
    trace = load_trace(path)
    assert name in found
    other = Arrive("r1", (("b", 6),), 8)
    events = (trace.events[0], other, Step(), Reorder({"r1": "r0"}), *trace.events[3:])
    reordered = Investigation(worker, given, 60.0).evidence(Trace(trace.config, events))
    assert reordered is not None
    assert known_cause(reordered, found) == name
    for one in FILES:
        evidence = Investigation(worker, given, 60.0).evidence(load_trace(FOLDER / one))
        assert evidence is not None
        assert (known_cause(evidence, found) == name) == (f"--{name}--" in one)


def test_the_end_of_what_a_window_saves_is_the_recurrent_state() -> None:
    """A header of two words precedes what a save of the same family without a window has."""
    launch = prepare(f"llamacpp@{LATEST}", print)
    ran = subprocess.run(
        [launch.python, "-c", WINDOW], env={**os.environ, **launch.env}, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "True 2\n", ran.stderr


def test_a_build_whose_parameters_are_not_known_is_refused() -> None:
    """Without the layout of this build no other one is taken for it."""
    launch = prepare(f"llamacpp@{LATEST}", print)
    command = [launch.python, "-c", REFUSED]
    ran = subprocess.run(command, env={**os.environ, **launch.env}, capture_output=True, text=True, check=False)
    assert "llama_context_params in this build is not known" in ran.stderr.splitlines()[-1]


def test_a_library_of_ones_own_is_taken_by_its_path() -> None:
    library = prepare(f"llamacpp@{LATEST}", print).env[LIBRARY]
    spec = f"llamacpp@{library}"
    with WorkerClient(spec, prepare(spec, print), trace_seconds=120) as own:
        own.start()
        assert own.run(load_trace(FOLDER / SPLIT)).violation is not None


def test_bisect_finds_the_releases_of_a_cause(hybridfuzz: Cli) -> None:
    releases = ["--target", "llamacpp", "--versions", f"2026.4.8672.1,2026.5.9294,{LATEST}", "--all", "--json"]
    ran = hybridfuzz("bisect", FOLDER / SPLIT, *releases, env={"HYBRIDFUZZ_CACHE": str(cache_folder())})
    states = {one["release"]: one["state"] for one in ran.json["tried"]}
    assert states == {"2026.4.8672.1": "not applicable", "2026.5.9294": "good", LATEST: "bad"}


def test_a_script_of_the_c_api_shows_a_defect(tmp_path: Path) -> None:
    """The script runs where hybridfuzz cannot be imported, and writes the calls up to the failure as a C program."""
    trace = load_trace(FOLDER / SPLIT)
    [script] = write_scripts("", trace, Failure("S9", "mamba-temporal", "left behind", trace.events, 1))
    launch = prepare(f"llamacpp@{LATEST}", print)
    (tmp_path / "script.py").write_text(script.text, encoding="utf-8")
    environment = {**os.environ, **launch.env, "PYTHONPATH": launch.tree}
    command = [launch.python, str(tmp_path / "script.py"), str(tmp_path / "c")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert WRONG_LOGITS in ran.stderr.splitlines()[-1]
    program = (tmp_path / "c" / "repro.c").read_text(encoding="utf-8")
    _, calls = program.split("    fill();\n")
    assert [line.partition("(")[0].strip() for line in calls.splitlines()[:4]] == [
        "decode", "llama_memory_seq_rm", "decode", "llama_memory_seq_rm",
    ]  # fmt: skip
    assert (tmp_path / "c" / "tiny.gguf").read_bytes().startswith(b"GGUF")
