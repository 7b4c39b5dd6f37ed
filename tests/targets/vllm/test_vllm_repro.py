"""Reproducers for released vLLM: they run with vLLM and torch alone, and fail as they promise."""

import argparse
import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.face.commands.repro import known_bugs
from hybridfuzz.harness.group.known.fixes import BUILTIN, Fixes, read_fixes
from hybridfuzz.harness.tell.reproduce import Subject, observe
from hybridfuzz.harness.tell.script import Run, failure_of, run_script
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare, write_scripts
from hybridfuzz.targets.base.repro import Failure, Script
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    Group,
    Preempt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Step,
    Trace,
)
from hybridfuzz.targets.vllm.repro import SOURCES

SPEC = "vllm@0.33.0"
FOLDER = Path(__file__).parents[3] / "corpus" / "vllm"
NEW = sorted(
    path.name
    for path in FOLDER.glob("*.json")
    if int(path.name.split(".")[1]) >= 28 and not path.stem.endswith("--M9-step-mamba-peak")
)
"""Traces of releases whose imports the scripts make, but for blocks that are held too long and given back."""


def features(name: str) -> set[str]:
    """Return what a script for a trace has to show."""
    release, _, signature = name.split("--")
    trace = load_trace(FOLDER / name)
    config = trace.config
    return {
        release,
        signature.partition("-")[0],
        config.mamba_cache_mode,
        f"drafts {config.num_speculative_tokens > 0}",
        f"async {config.async_depth > 0}",
        f"groups {len(config.groups)}",
        *(f"{option}={value}" for option, value in config.options.items()),
        *(type(event).__name__ for event in trace.events),
    }


def few_of(names: Sequence[str]) -> list[str]:
    """Return few traces that have every feature of all: the one with most that are missing comes next."""
    by_name = {name: features(name) for name in names}
    left, few = set().union(*by_name.values()), list[str]()
    while left:
        few.append(max(by_name, key=lambda name: len(by_name[name] & left)))
        left -= by_name[few[-1]]
    return few


FEW = few_of(NEW)[:5]
"""Five of 61 have seven tenths of the features. Each is a script or several, and its fixes: the others are
exhaustive."""
EACH = [pytest.param(name, marks=() if name in FEW else pytest.mark.exhaustive) for name in NEW]
CONFIG = Config(20, (Group("mamba", 8), Group("attention", 8)), max_model_len=16)
EVENTS: tuple[Event, ...] = (Arrive("r0", (("a", 3),), 2), Step(budget=2))
V2, V1 = "class RunnerV2(", "class RunnerV1("
KINDS: tuple[tuple[dict[str, Any], set[str]], ...] = (
    ({}, {V2, "def state_rows(metadata"}),
    ({"options": {"runner": "v1", "mixer": "mamba1"}}, {V1, "def mamba2_rows("}),
    (
        {"options": {"runner": "v1", "mixer": "linear"}, "async_depth": 1, "num_speculative_tokens": 1},
        {V1, "def linear_rows(", "def device_proposer("},
    ),
    ({"options": {"mixer": "short_conv", "graphs": "decode"}}, {V2, "def mamba2_rows(", "def widen("}),
    ({"options": {"mixer": "mamba2"}, "mamba_cache_mode": "all"}, {V2, "def all_rows("}),
    (
        {"options": {"connector": "store"}},
        {V2, "def state_rows(metadata", "class TraceConnector(KVConnectorBase_V1, SupportsHMA)"},
    ),
    ({"options": {"inputs": "images"}}, {V2, "def state_rows(metadata", "class Inputs:"}),
    ({"options": {"data_parallel": "2"}}, {V2, "def state_rows(metadata", "class Peer:"}),
    ({"options": {"reports": "all"}}, {V2, "def state_rows(metadata", "class Subscriber:"}),
    (
        {
            "groups": (Group("mamba", 8), Group("attention", 8), Group("attention", 8, draft=True)),
            "num_speculative_tokens": 1,
        },
        {V2, "def state_rows(metadata", "class ShadowMtp("},
    ),
)
"""Configurations, and what only some scripts have."""


def failure(oracle: str, field: str, events: tuple[Event, ...] = EVENTS, depth: int = 3) -> Failure:
    return Failure(oracle, field, f"{oracle}: broken", events, 1, "r0", 0, 3, depth, "r0")


def scripts_for(changes: dict[str, Any], wanted: Failure) -> list[Script]:
    return list(write_scripts(SPEC, Trace(msgspec.structs.replace(CONFIG, **changes), wanted.events), wanted))


def calls(script: Script) -> list[str]:
    """Return what a script asks of the engine."""
    return [line.strip() for line in script.scenario.splitlines() if line.strip().startswith("engine.")]


@pytest.mark.parametrize(("changes", "wanted"), KINDS)
def test_scripts_are_one_module_that_imports_nothing_of_ours(changes: dict[str, Any], wanted: set[str]) -> None:
    some = set().union(*(only for _, only in KINDS))
    for script in scripts_for(changes, failure("S3", "temporal")):
        assert "hybridfuzz" not in script.text, "a folder was called so"
        tree = ast.parse(script.text)
        imported = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or "ours"] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        # msgspec, NumPy and Triton are requirements of vLLM.
        assert imported - sys.stdlib_module_names == {"msgspec", "numpy", "torch", "triton", "vllm"}
        assert "hybridfuzz" not in script.text
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert len(names) == len(set(names)), "one definition would replace another"
        assert names[0] == "reproduce", "inputs come first, machinery last"
        assert {one for one in some if one in script.text} == wanted


@pytest.mark.parametrize(
    ("oracle", "field", "promises"),
    [
        (
            "S3",
            "temporal",
            ["clients receive wrong tokens"] * 4 + ["step 1 does not continue r0 from its state"],
        ),
        ("S1", "temporal", ["clients receive wrong tokens"] * 2 + ["block 3 is cached as the state after 3 tokens"]),
        ("M2", "key", ["clients receive wrong tokens"] * 2 + ["block 3 can be hit"]),
        ("M4", "dead-write", ["clients receive wrong tokens"] * 2 + ["step 1 stores something for no request"]),
        (
            "M3",
            "column",
            ["clients receive wrong tokens"] * 4 + ["in step 1 r0 uses blocks that are not the scheduler's"],
        ),
        (
            "M3",
            "outside-column",
            ["clients receive wrong tokens"] * 4 + ["in step 1 metadata of a kernel point past the end"],
        ),
        ("M8", "stall", ["nothing is scheduled any more"]),
        ("M8", "drain", ["requests run without an end"]),
        ("M8", "hit", ["r0 finds only 3 of its tokens in the prefix cache"]),
        ("M9", "blocks", ["memory is not given back"]),
        ("M7", "blocks", ["requests are admitted without room for them"]),
        ("CRASH", "ValueError-get_new_blocks", ["ValueError"]),
    ],
)
def test_what_clients_receive_is_shown_first(oracle: str, field: str, promises: list[str]) -> None:
    """A script asserted on a tag in a block, of which no client knows."""
    scripts = scripts_for({}, failure(oracle, field))
    assert len(scripts) == len(promises)
    for script, promise in zip(scripts, promises, strict=True):
        assert promise in script.promise
        assert oracle == "CRASH" or f'f"{script.promise.removeprefix("AssertionError: ")}' in script.text


def test_the_calls_are_those_of_the_trace() -> None:
    events = (
        Arrive("r0", (("a", 3),), 2, session=True, priority=1),
        Arrive("r0", (("a", 3),), 2),
        Arrive("r1", (("a", 30),), 2),
        *[Step()] * 3,
        Resume("r0", (("b", 2),), 1, stop_at=1),
        Resume("r2", (("b", 2),), 1),
        Step(drafts=1, right=1, per_request={"r0": (2, 1)}, pad_to=4),
        ExternalLoad("r0", 3, breaks_off=True, delay=1),
        Preempt("r0"),
        Evict(2),
        ResetPrefixCache(True),
        DummyRun(2),
        Abort("r0"),
    )
    first = scripts_for({"options": {"connector": "store"}}, failure("S2", "temporal", events))[0]
    assert calls(first) == [
        "engine.add('r0', [47, 42, 8], new_tokens=2, priority=1, session=True)  # expects 47 6",
        "engine.step()",
        # vLLM drops the token that it sampled last.
        "engine.resume('r0', [104, 37], new_tokens=1, stop_at=1)",
        "engine.step(drafts=1, right=1, per_request={'r0': (2, 1)}, pad_to=4)",
        "engine.store('r0', 3, fails=True, delay=1)",
        "engine.preempt('r0')",
        "engine.evict(2)",
        "engine.reset_prefix_cache(True)",
        "engine.dummy_run(2)",
        "engine.abort('r0')",
        "engine.finish()",
    ], "a name is used once, no one resumes a session that there is not, and what does not fit is ignored"
    assert "for _ in range(3):" in first.text
    plain = scripts_for({}, failure("S2", "temporal", events))[0]
    assert "engine.store" not in plain.scenario, "without a connector nothing is stored"


def test_prompts_are_tokens_except_for_images() -> None:
    arrival = Arrive("r0", (("a", 2), ("image.x", 3), ("b", 1), ("~", 2)), 2)
    events: tuple[Event, ...] = (arrival, ResetEncoderCache())
    first = scripts_for({"options": {"inputs": "images"}}, failure("S2", "temporal", events))[0]
    [add, reset, *_] = calls(first)
    assert add.startswith("engine.add('r0', [47, 42, ('image.x', 3), 104, ")
    assert reset == "engine.reset_encoder_cache()"


def test_only_settings_that_are_not_usual_are_given() -> None:
    first = scripts_for({"options": {"runner": "v1", "retention": "dense"}}, failure("S2", "temporal"))[0]
    assert "options={'runner': 'v1'},\n" in first.text
    assert "policy=" not in first.scenario
    unused = {"graph_sizes": (2,)}
    assert "graph_sizes" not in scripts_for(unused, failure("S2", "temporal"))[0].scenario
    captured = {**unused, "options": {"graphs": "decode"}}
    assert "graph_sizes=(2,)," in scripts_for(captured, failure("S2", "temporal"))[0].scenario


def test_a_client_that_sends_the_same_tokens_has_room() -> None:
    """No client of the trace has met wrong content of the cache yet. One may have used the whole context."""
    again, every, _ = scripts_for({}, failure("S1", "temporal", depth=15))
    assert "engine.add('again 0'" in again.text and "max_model_len=20," in again.text and "num_blocks=24," in again.text
    assert "engine.add('again 0', [47, 42, 8, " in every.text
    loaded = scripts_for({"options": {"connector": "store"}}, failure("S1", "stored", depth=-1))
    assert "engine.evict(20)\n" in loaded[-2].text, "what is stored outside the pool is loaded once nothing is in it"


def test_an_answer_is_longer_where_a_wrong_state_lies_behind_its_end() -> None:
    first, longer = scripts_for({}, failure("S3", "temporal"))[:2]
    assert "new_tokens=2)" in first.text and "max_model_len=16," in first.text
    assert "new_tokens=6)" in longer.text and "max_model_len=20," in longer.text


def test_steps_behind_the_trace_are_taken_until_an_answer_is_overdue() -> None:
    """Written out, they would be followed by as many again."""
    [script] = scripts_for({}, failure("M8", "drain", (*EVENTS, *[Step()] * 40)))
    assert calls(script)[1:] == ["engine.step(budget=2)", "engine.finish()"]


def test_what_no_script_can_show_is_refused() -> None:
    with pytest.raises(TargetError, match="no stand-alone script can show M7"):
        scripts_for({}, failure("M7", "budget"))


def test_a_definition_comes_with_all_that_it_uses() -> None:
    parts = SOURCES.definitions(("rows/linear_attention.py", "linear_rows"))
    text = "\n".join(part.text for part in parts)
    for name in ("class StateRow", "def in_bounds", "def speculative_row", "def _verifications", "SKIPPED = -1"):
        assert name in text
    assert "def state_rows" not in text


@pytest.fixture(scope="module")
def workers() -> Iterator[Callable[[str], WorkerClient]]:
    """A worker for each release, started when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def worker_of(spec: str) -> WorkerClient:
            worker = stack.enter_context(WorkerClient(spec, prepare(spec, print), trace_seconds=300))
            worker.start()
            return worker

        yield worker_of


@pytest.fixture(scope="module")
def forks() -> Iterator[Callable[[str], Run]]:
    """Runs scripts in forks of a process that has imported all but the engine: imports take most of a script's time."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
        forked = import_module("forked_scripts").ForkedScripts
        yield cache(lambda spec: stack.enter_context(forked(prepare(spec, print))))


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", EACH)
def test_it_fails_as_promised_and_passes_with_the_packaged_fix(
    tmp_path: Path, workers: Callable[[str], WorkerClient], forks: Callable[[str], Run], name: str
) -> None:
    """That a script needs no such process is shown below."""
    spec, trace = f"vllm@{name.partition('--')[0]}", load_trace(FOLDER / name)
    launch = prepare(spec, print)
    history = workers(spec).explain(trace)[1]
    assert history.violation
    path = tmp_path / "repro.py"
    for script in write_scripts(spec, trace, failure_of(trace, history, history.violation)):
        path.write_text(script.text)
        verdict = run_script(path, script, launch, forks(spec))
        if verdict.promised:
            break
    assert verdict.promised, verdict.tail
    for entry in read_fixes(BUILTIN, spec):
        if name in entry.traces and launch.version in entry.releases:
            fixed = run_script(path, script, patched(launch, [entry.read_patch()]), forks(spec))
            assert fixed.status == 0, fixed.tail


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_a_script_has_all_that_a_client_may_ask_for(tmp_path: Path, workers: Callable[[str], WorkerClient]) -> None:
    """Log-probabilities of the prompt, a grammar, several samples: as a new process, as who receives it runs it. In
    Triton's own interpreter the kernel of grammars raised an error."""
    name = "0.33.0--one-token-prompt-v2--S3-step-mamba-temporal.json"
    trace, launch = load_trace(FOLDER / name), prepare(SPEC, print)
    first, second = (Arrive(one, ((one, 1),), 2, prompt_logprobs=True) for one in ("r0", "r2"))
    samples = [Arrive(one, (("b", 1),), 2, structured=1) for one in ("r1", "r1.1")]
    trace = msgspec.structs.replace(
        trace,
        config=msgspec.structs.replace(trace.config, num_blocks=20, max_num_seqs=4),
        events=(first, Step(), *samples, second),
    )
    history = workers(SPEC).explain(trace)[1]
    assert history.violation
    [script, *_] = write_scripts(SPEC, trace, failure_of(trace, history, history.violation))
    assert all(word in script.scenario for word in ("prompt_logprobs=True", "structured=1", "engine.add('r1.1'"))
    path = tmp_path / "repro.py"
    path.write_text(script.text)
    verdict = run_script(path, script, launch)
    assert verdict.promised, verdict.tail
    [fix] = [one for one in read_fixes(BUILTIN, SPEC) if name in one.traces and launch.version in one.releases]
    fixed = run_script(path, script, patched(launch, [fix.read_patch()]))
    assert fixed.status == 0, fixed.tail


@pytest.mark.engine
@pytest.mark.exhaustive
@pytest.mark.xdist_group("engine")
def test_a_failure_that_no_campaign_named_is_compared_with_the_packaged_known_bugs() -> None:
    """A report of a cause that had public numbers said that none was known: a maintainer would have closed it."""
    [file] = FOLDER.glob("0.33.0--prompt-as-decode-v1--S6-*.json")
    trace = load_trace(file)
    first, *rest = trace.events
    assert isinstance(first, Arrive)
    longer = msgspec.structs.replace(first, max_new_tokens=first.max_new_tokens + 1)
    trace = msgspec.structs.replace(trace, events=(longer, *rest))
    options = argparse.Namespace(target=SPEC, fixes=(), timeout=300.0, memory=None)
    launch = prepare(SPEC, print)
    case = observe(Subject(SPEC, launch, options.timeout, 0), trace, as_given=True)
    assert case and not case.related
    assert known_bugs(options, Fixes(launch, launch), [case, case]) == ["prompt-as-decode"] * 2
