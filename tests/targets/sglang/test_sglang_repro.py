"""Reproducers for released SGLang: they run with SGLang and torch alone, and fail as they promise."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.known.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.tell.script import failure_of, run_script
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare, write_scripts
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Event,
    Evict,
    Group,
    Pause,
    Preempt,
    ResetPrefixCache,
    Resume,
    Step,
    SwitchStorage,
    Trace,
)

SPEC = "sglang:sessions@0.5.23"
FOLDER = Path(__file__).parents[3] / "corpus" / "sglang"
RUN = [
    "0.5.23--mixed-step-under-an-old-mask--S6-step-sampled.json",
    "0.5.23--retracted-turn-behind-its-state--S2-step-mamba-temporal.json",
    "0.5.23--retracted-turn-keeps-its-memory--M8-step-stall.json",
    "0.5.23--retracted-turn-never-closed--M9-step-request-rows.json",
    "0.5.23--snapshot-slots-not-swapped--S1-step-mamba-temporal.json",
    "0.5.23--two-crossings-in-flight--S1-step-mamba-temporal.json",
    "0.5.23--loaded-state-stays-locked-while-one-decodes--S6-step-length.json",
    "0.5.23--mixed-step-without-the-ring--S3-step-mamba-temporal.json",
]
"""Wrong tokens of the trace's own client, a hang, a leak, and wrong tokens of a client that sends the same ones: behind
a client that aborts, which a script took for one that lacks a token, and with speculation. Images. A ring of inputs."""
CONFIG = Config(
    20,
    (Group("mamba", 4), Group("attention", 1)),
    max_model_len=16,
    mamba_cache_mode="slots",
    max_num_seqs=2,
    graph_sizes=(),
)
EVENTS: tuple[Event, ...] = (Arrive("r0", (("a", 3),), 2), Step(budget=2))


def failure(oracle: str, field: str, events: tuple[Event, ...] = EVENTS, depth: int = 3) -> Failure:
    return Failure(oracle, field, f"{oracle}: broken", events, 1, "r0", 0, 3, depth, "r0")


@pytest.mark.parametrize(
    ("oracle", "field", "promise", "count", "on_host"),
    [
        ("S3", "temporal", "wrong tokens", 3, 4),
        ("S1", "temporal", "wrong tokens", 3, 5),
        ("M8", "stall", "nothing is scheduled any more", 1, 1),
        ("M8", "aborted", "requests go on after their abort", 1, 1),
        ("M9", "request-rows", "memory is not given back", 1, 1),
        ("CRASH", "TypeError-release_req", "TypeError", 1, 1),
    ],
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_speculative_tokens": 2, "async_depth": 1},
        {"graph_sizes": (2, 4)},
        {"options": {"hicache": "write_back"}},
        {"options": {"hicache": "write_back", "storage": "file"}},
    ],
)
def test_scripts_are_one_module_that_imports_nothing_of_ours(
    oracle: str, field: str, promise: str, count: int, on_host: int, more: dict[str, Any]
) -> None:
    """Behind those without captured graphs come those with them. With a host tier, what it holds is asked for, too."""
    config = msgspec.structs.replace(CONFIG, **more)
    count = on_host if config.options else count
    scripts = write_scripts(SPEC, Trace(config, EVENTS), failure(oracle, field))
    captured = [False] * count + [True] * (count if config.graph_sizes else 0)
    assert ["graphs=Graphs" in script.text for script in scripts] == captured
    for script in scripts:
        assert "hybridfuzz" not in script.text, "an attribute of SGLang's requests was called so"
        tree = ast.parse(script.text)
        imported = {
            name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module or "ours"] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        # NumPy and transformers are requirements of SGLang.
        assert imported - sys.stdlib_module_names == {"numpy", "sglang", "torch", "transformers"}
        assert "hybridfuzz." not in script.text
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert len(names) == len(set(names)), "one definition would replace another"
        assert ("class Worker" in script.text) == ("num_speculative_tokens" in more)
        assert ("class HostTier" in script.text) == ("options" in more)
        assert promise in script.promise
        first = next(node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        assert first.name == "reproduce", "inputs come first, machinery last"


def test_the_calls_are_those_of_the_trace() -> None:
    events = (
        Arrive("r0", (("a", 3),), 2, session=True),
        Arrive("r0", (("a", 3),), 2),
        *[Step()] * 3,
        Resume("r0", (("b", 2),), 1),
        Resume("r1", (("b", 2),), 1),
        Step(drafts=1, right=1, per_request={"r0": (2, 1)}),
        Preempt("r0"),
        Evict(2),
        SwitchStorage(),
        ResetPrefixCache(),
        Pause(),
        ResetPrefixCache(preempt_running=True),
        Abort("r0"),
    )
    [script, *_] = write_scripts(SPEC, Trace(CONFIG, events), failure("S2", "temporal", events))
    calls = [line.strip() for line in script.text.split("# ---- Machinery")[0].splitlines() if "engine." in line]
    shown = [line.partition("(")[0] for line in calls]
    # A name is used once, and no one resumes a session that there is not.
    named = ["add", "step", "resume", "step", "retract", "evict", "switch_storage", "flush"]
    named += ["pause", "pause_and_flush", "abort", "finish"]
    assert shown[: len(named)] == [f"engine.{name}" for name in named]
    assert "for _ in range(3):" in script.text
    assert "engine.step(drafts=1, right=1, per_request={'r0': (2, 1)})" in calls
    assert "sessions=Sessions" in script.text


def test_wrong_content_of_the_tree_is_shown_by_a_client_that_sends_the_same_tokens() -> None:
    """No client of the trace has met it yet. There is room for one even if the trace's own used the whole context."""
    known, unknown = (
        write_scripts(SPEC, Trace(CONFIG, EVENTS), failure("S1", "temporal", depth=depth)) for depth in (15, -1)
    )
    assert [script.text.count("engine.add('again") for script in (*known, *unknown)] == [1, 1, 1, 1]
    assert "context=20," in known[0].text and "pages=25," in known[0].text
    assert "context=16," in unknown[0].text


def test_the_last_script_asks_for_more_tokens_in_the_last_turn_of_the_failures_request() -> None:
    """What follows from a wrong state may lie behind the end of an answer."""
    events = (
        Arrive("r0", (("a", 3),), 2, session=True),
        Step(),
        Resume("r0", (("b", 2),), 1),
        Arrive("r1", (("a", 3),), 2),
    )
    scenarios = [one.scenario for one in write_scripts(SPEC, Trace(CONFIG, events), failure("M6", "kept", events))]
    asked = [re.findall(r"new_tokens=(\d+)", one)[:3] for one in (scenarios[0], scenarios[-1])]
    assert asked == [["2", "1", "2"], ["2", "5", "2"]]
    assert "context=16," in scenarios[0] and "context=20," in scenarios[-1]


def test_what_is_hit_after_an_eviction_is_on_the_host() -> None:
    """A client that sends the same tokens hits what the device holds, where both hold it."""
    config = msgspec.structs.replace(CONFIG, options={"hicache": "write_through"})
    [on_device, on_host, at_once, *_] = write_scripts(SPEC, Trace(config, EVENTS), failure("S1", "temporal"))
    calls = [line.strip() for line in on_host.scenario.splitlines() if "engine." in line]
    evicted, asked = (
        calls.index("engine.evict_all()"),
        next(index for index, line in enumerate(calls) if line.startswith("engine.add('again 0', [47, 42, 8, 47], ")),
    )
    assert evicted < asked
    assert "evict_all" not in on_device.scenario
    asked = [
        one.scenario.index("engine.add('again 0'") - one.scenario.index("engine.finish()")
        for one in (on_device, at_once)
    ]
    assert asked[0] > 0 > asked[1], "what is published too early may be right when all have ended"


def test_a_script_sets_what_the_trace_sets_and_no_other_option() -> None:
    config = msgspec.structs.replace(
        CONFIG, options={"session_tags": "yes", "ignore_eos": "yes", "order": "dfs-weight"}
    )
    [plain, tagged] = (
        write_scripts(SPEC, Trace(each, EVENTS), failure("M8", "stall"))[0].scenario for each in (CONFIG, config)
    )
    added = [line.strip().partition("  # ") for line in tagged.splitlines() if line not in plain.splitlines()]
    assert [line for line, _, _ in added] == ["order='dfs-weight',", "tags=True,", "endless=True,"]
    assert [note for _, _, note in added if note.count("`") == 2] == [note for _, _, note in added], "the server's name"


def test_a_variant_fixes_the_core_of_the_tree() -> None:
    [script] = write_scripts("sglang:rust@0.5.23", Trace(CONFIG, EVENTS), failure("M8", "stall"))
    assert "core='rust'," in script.text


def test_what_no_script_can_show_is_refused() -> None:
    with pytest.raises(TargetError, match=r"no stand-alone script can show M7 \(blocks\)"):
        write_scripts(SPEC, Trace(CONFIG, EVENTS), failure("M7", "blocks"))


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerClient]:
    with WorkerClient(SPEC, prepare(SPEC, print), trace_seconds=300) as started:
        started.start()
        yield started


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", [*RUN[:2], *(pytest.param(name, marks=pytest.mark.exhaustive) for name in RUN[2:])])
def test_it_fails_as_promised_and_passes_with_the_packaged_fix(tmp_path: Path, worker: WorkerClient, name: str) -> None:
    launch, trace = prepare(SPEC, print), load_trace(FOLDER / name)
    history = worker.explain(trace)[1]
    assert history.violation
    script = write_scripts(SPEC, trace, failure_of(trace, history, history.violation))[0]
    path = tmp_path / "repro.py"
    path.write_text(script.text)
    verdict = run_script(path, script, launch)
    assert verdict.promised, verdict.tail
    [fix] = [entry for entry in read_fixes(BUILTIN, SPEC) if name in entry.traces and launch.version in entry.releases]
    fixed = run_script(path, script, patched(launch, [fix.read_patch()]))
    assert fixed.status == 0, fixed.tail
