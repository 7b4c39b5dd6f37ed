"""Reproducers for released vLLM: they run with vLLM and torch alone, and fail as they promise."""

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hybridfuzz.harness.draw.files import load_trace
from hybridfuzz.harness.group.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.tell.script import failure_of, run_script
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare, write_scripts
from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Arrive, Config, ExternalLoad, Group, Resume, Step, Trace
from hybridfuzz.targets.vllm.kit_limits import Case, refusal
from hybridfuzz.targets.vllm.options import options_of
from hybridfuzz.targets.vllm.repro import SOURCES

FOLDER = Path(__file__).parents[3] / "corpus" / "vllm"
NEEDS_MORE: tuple[dict[str, Any], ...] = (
    {"options": {"mixer": "short_conv"}},
    {"options": {"connector": "transfer"}},
    {"options": {"data_parallel": "2"}},
    {"options": {"metadata": "shared"}},
    {"options": {"inputs": "images"}},
    {"options": {"mixer": "mamba2"}, "mamba_cache_mode": "all"},
    {"groups": (Group("mamba", 8), Group("mamba", 4), Group("attention", 8))},
    {"groups": (Group("mamba", 8), Group("attention", 8, window=4))},
)
"""What the stand-alone scripts do not know: `write_scripts` refuses it, and a wrong output."""


def needs_more(name: str) -> bool:
    """Return True if no stand-alone script can show a trace of the corpus, by the table of `kit_limits`."""
    trace = load_trace(FOLDER / name)
    # ORACLE-EVENT-FIELD; the kind of group comes before the field if there is one.
    oracle, _, field = name.removesuffix(".json").rpartition("--")[2].split("-", 2)
    field = field.removeprefix("mamba-").removeprefix("attention-")
    failure = Failure(oracle, field, "", trace.events, 1, "r0", 0, 3, 2, "r0")
    return bool(refusal("script", Case(trace.config, options_of(trace.config), failure=failure)))


# The stand-alone engine is that of 0.28 and later.
NEW = [path.name for path in FOLDER.glob("*.json") if int(path.name.split(".")[1]) >= 28]
FILES = sorted(name for name in NEW if not needs_more(name))
EVENTS = (Arrive("r0", (("a", 3),), 2), Step(budget=2))
TRACE = Trace(Config(20, (Group("mamba", 8), Group("attention", 8)), max_model_len=16), EVENTS)


@pytest.mark.parametrize(
    ("oracle", "field"),
    [("S3", "temporal"), ("S4", "temporal"), ("M2", "key"), ("CRASH", "x"), ("S2", "slot"), ("M8", "stall")],
)
def test_scripts_are_python_without_hybridfuzz(oracle: str, field: str) -> None:
    failure = Failure(oracle, field, f"{oracle}: broken", EVENTS, 1, "r0", 0, 3, 2, "r0")
    [script] = write_scripts("vllm@0.33.0", TRACE, failure)
    compile(script.text, "repro.py", "exec")
    assert "hybridfuzz" not in script.text
    assert "engine.step(budget=2)" in script.text


def test_a_connector_is_inlined_where_it_is_needed() -> None:
    """Findings with a KV connector had no script: a report without one is not accepted."""
    failure = Failure("M8", "stall", "M8: broken", (*EVENTS, ExternalLoad("r0", 3, breaks_off=True, delay=1)), 1, "r0")
    config = msgspec.structs.replace(TRACE.config, options={"connector": "store", "prefix_match_unit": "4"})
    [script] = write_scripts("vllm@0.33.0", Trace(config, EVENTS), failure)
    compile(script.text, "repro.py", "exec")
    assert "class Connector(KVConnectorBase_V1, SupportsHMA)" in script.text
    assert "engine.store('r0', 3, delay=1, fails=True)" in script.text
    assert "prefix_match_unit=4" in script.text and "load_failure='recompute'" in script.text
    [plain] = write_scripts("vllm@0.33.0", TRACE, failure)
    assert "class Connector" not in plain.text


def test_what_no_script_can_show_is_refused() -> None:
    with pytest.raises(TargetError, match="M7"):
        write_scripts("vllm@0.33.0", TRACE, Failure("M7", "blocks", "M7: broken", EVENTS, 1))


@pytest.mark.parametrize("changes", NEEDS_MORE)
def test_what_no_script_knows_is_refused(changes: dict[str, Any]) -> None:
    config = msgspec.structs.replace(TRACE.config, **{"graph_sizes": (2,), **changes})
    failure = Failure("S3", "temporal", "S3: broken", EVENTS, 1, "r0", 0, 3, 2, "r0")
    with pytest.raises(TargetError, match="no stand-alone script"):
        write_scripts("vllm@0.33.0", Trace(config, EVENTS), failure)


def test_a_script_inlines_what_it_shares_with_the_adapter_and_nothing_of_ours_besides() -> None:
    """Scripts had a third transcription of vLLM's metadata, and a third builder of its configuration."""
    failure = Failure("S3", "temporal", "S3: broken", EVENTS, 1, "r0", 0, 3, 2, "r0")
    config = msgspec.structs.replace(TRACE.config, options={"graphs": "decode", "mixer": "mamba2"}, graph_sizes=(2,))
    [script] = write_scripts("vllm@0.33.0", Trace(config, EVENTS), failure)
    [plain] = write_scripts("vllm@0.33.0", TRACE, failure)
    for shared in ("def mamba2_rows(", "class _ReplayedModel:", "def set_graph_sizes(", "class Sizes(NamedTuple)"):
        assert script.text.count(shared) == 1
    assert "_ReplayedModel" not in plain.text and "mamba2_rows" not in plain.text
    for text in (script.text, plain.text):
        modules = {
            line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
        }
        assert modules - sys.stdlib_module_names == {"torch", "vllm"}
        names = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert len(names) == len(set(names)), "one definition would replace another"


def test_a_definition_comes_with_all_that_it_uses() -> None:
    parts = SOURCES.definitions(("rows/linear_attention.py", "linear_rows"))
    text = "\n".join(part.text for part in parts)
    for name in ("class StateRow", "def in_bounds", "def speculative_row", "def _verifications", "SKIPPED = -1"):
        assert name in text
    assert "def state_rows" not in text and "class Columns" not in text


def test_a_turn_of_a_session_goes_on_from_the_tokens_before() -> None:
    events = (Arrive("r0", (("a", 3),), 2, session=True), Step(), Resume("r0", (("b", 2),), 1))
    failure = Failure("S3", "temporal", "S3: broken", events, 1, "r0", 0, 3, 2, "r0")
    [script] = write_scripts("vllm@0.33.0", Trace(TRACE.config, events), failure)
    assert "new_tokens=2, session=True)" in script.text
    # Three tokens and two sampled ones, of which vLLM drops the last.
    assert "engine.resume('r0', 4, [" in script.text
    assert "assert found" not in script.text, "good code may start the turn anew"


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


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", FILES)
def test_it_fails_as_promised_and_passes_with_the_packaged_fix(
    tmp_path: Path, workers: Callable[[str], WorkerClient], name: str
) -> None:
    spec, trace = f"vllm@{name.partition('--')[0]}", load_trace(FOLDER / name)
    launch = prepare(spec, print)
    history = workers(spec).explain(trace)[1]
    assert history.violation
    [script] = write_scripts(spec, trace, failure_of(trace, history, history.violation))
    path = tmp_path / "repro.py"
    path.write_text(script.text)
    verdict = run_script(path, script, launch)
    assert verdict.promised, verdict.tail
    for entry in read_fixes(BUILTIN, spec):
        if name in entry.traces and launch.version in entry.releases:
            fixed = run_script(path, script, patched(launch, [entry.read_patch()]))
            assert fixed.status == 0, fixed.tail
