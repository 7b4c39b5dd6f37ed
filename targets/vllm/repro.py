"""Writes stand-alone reproducers for vLLM: calls to an inlined small engine, one after the other, and an assertion.

The script needs vLLM and torch only. It can show the initial state of a state layer, the content of a block, and the
block of a key; other failures are refused, never approximated.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

from ...reference.tokens import Truth
from ..base.inlined import Part, Sources, import_block
from ..base.protocol import TargetError
from ..base.repro import Failure, Script, python_comment, python_format
from ..base.trace import (
    Abort,
    Arrive,
    Config,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    Preempt,
    ResetPrefixCache,
    Resume,
    Step,
    Trace,
    Turn,
)
from .kit_limits import Case, refusal
from .options import DROPPED_TOKENS, SYNC_LOAD_TOKENS, has_graphs, options_of
from .sizes import Sizes, layer_groups, sizes_of

ABOUT = "Needs vLLM and torch, no GPU. Fails with an AssertionError where the bug is.\n"
_REQUIRED = object()
SOURCES = Sources(__package__, {"Bounds", "Columns", "Recorder", "put"})
IDLE_MAX = 8
"""Steps in a row that may schedule nothing while requests wait, as the oracle of liveness allows."""
ENVIRONMENT = """\
os.environ |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
"""


def write_scripts(variant: str, trace: Trace, failure: Failure) -> list[Script]:
    """Return the reproducer. Raises TargetError for a failure that cannot be shown without hybridfuzz."""
    del variant
    case = Case(trace.config, options_of(trace.config), failure=failure)
    if reason := refusal("script", case):
        raise TargetError(f"no stand-alone script can show {reason}")
    assertion, promise = _assertion(failure)
    calls = _all_calls(failure.events, trace.config)
    parts = list(_parts(case))
    text = "\n".join(
        [
            f'"""{python_comment(failure.message)}\n\n{ABOUT}"""\n',
            "from __future__ import annotations\n",
            "import os\n",
            ENVIRONMENT,
            *(f"{line}  # noqa: E402" for line in import_block(parts) if line != "import os"),
            "",
            *(f"\n{part.text}\n" for part in parts),
            "\n# ---- The trace, call by call.\n",
            _opening(case),
            *calls,
            "",
            assertion,
            'print("passed: the bug is not here")',
            "",
        ]
    )
    return [Script(text, promise, "vllm, torch")]


ROWS = {
    "gdn": ("rows/metadata.py", "state_rows"),
    "mamba1": ("rows/contracts.py", "mamba2_rows"),
    "mamba2": ("rows/contracts.py", "mamba2_rows"),
    "linear": ("rows/linear_attention.py", "linear_rows"),
}
"""Option `mixer` -> what reads the rows of a layer from vLLM's metadata."""


SETTINGS = ("build", "model_config", "cache_config")
BRINGUP = ("plan_cache", "prepare_zeroing", "scheduler_arguments", "block_hasher", "load_v2_model")


def _parts(case: Case) -> Iterator[Part]:
    """Yield what is copied: the stand-in engine, and what it shares with the adapter."""
    yield SOURCES.whole("repro_engine/layers.py")
    shared = [("sizes.py", "Sizes"), ROWS[case.options.mixer], *[("settings.py", name) for name in SETTINGS]]
    shared += [("versions/compat.py", name) for name in BRINGUP]
    if has_graphs(case.config):
        shared += [("graphs.py", name) for name in ("prepare_process", "capture", "widen", "Padding")]
    yield from SOURCES.definitions(*shared)
    yield SOURCES.whole("repro_engine/config.py")
    if case.options.connector != "none":
        yield SOURCES.whole("repro_engine/connector.py")
    yield SOURCES.whole("repro_engine/engine.py")


def _opening(case: Case) -> str:
    config, options, sizes = case.config, case.options, sizes_of(case.config)
    changed = {
        name: value for name, value in sizes._asdict().items() if value != Sizes._field_defaults.get(name, _REQUIRED)
    }
    model = json.loads((files(__package__) / "model" / "config.json").read_text(encoding="utf-8"))
    rows = ROWS[options.mixer][1]
    fields = {
        "layers": [(group.kind, group.block_size) for group in layer_groups(config)],
        "runner": options.runner,
        "mixer": options.mixer,
        "conv_width": config.conv_width,
        "async_depth": config.async_depth,
    }
    if options.connector != "none":
        fields["load_failure"] = options.load_failure
    if options.connector == "sync":
        fields["sync_load_tokens"] = SYNC_LOAD_TOKENS
    lines = [
        *textwrap.wrap(f"MODEL = {model!r}", 118, break_long_words=False, break_on_hyphens=False),
        "sizes = Sizes(",
        *(f"    {name}={value!r}," for name, value in changed.items()),
        ")",
        "engine = Engine(",
        "    sizes,",
        "    MODEL,",
        *(f"    {name}={value!r}," for name, value in fields.items()),
        f"    read_rows={f'partial({rows}, window={config.conv_width - 1})' if rows == 'mamba2_rows' else rows},",
        ")",
    ]
    return "\n".join(lines)


def _all_calls(events: Sequence[Event], config: Config) -> list[str]:
    """Return the calls that stand for the events. Turns of a session go on from the tokens of those before."""
    known: dict[str, tuple[Truth, int]] = {}
    lines: list[str] = []
    for event in events:
        if isinstance(event, Arrive) and event.name not in known:
            truth = Truth(event.prompt)
            known[event.name] = truth, _end(event, truth)
            more = f", priority={event.priority}" if event.priority else ""
            more += ", session=True" if event.session else ""
            lines.append(f"engine.add({event.name!r}, {_turn(event, truth, 0, config)}{more})")
        elif isinstance(event, Resume) and event.name in known:
            before, total = known[event.name]
            before.reach(total)
            kept = total - DROPPED_TOKENS
            truth = before.continued(kept, event.prompt)
            known[event.name] = truth, _end(event, truth)
            lines.append(f"engine.resume({event.name!r}, {kept}, {_turn(event, truth, kept, config)})")
        else:
            lines += _calls(event)
    return lines


def _end(event: Turn, truth: Truth) -> int:
    """Return the number of tokens that a session has after a turn."""
    return truth.prompt_length + truth.answer_length(event.max_new_tokens, truth.stop_token(event.stop_at))


def _turn(event: Turn, truth: Truth, first: int, config: Config) -> str:
    """Return the arguments for a turn whose prompt begins at position `first`."""
    truth.reach(truth.prompt_length + event.max_new_tokens + 2 * (config.num_speculative_tokens + 1))
    prompt, says = truth.tokens[first : truth.prompt_length], truth.tokens[truth.prompt_length :]
    stop = f", stop={truth.stop_token(event.stop_at)}" if event.stop_at else ""
    return f"{prompt}, says={says}, new_tokens={event.max_new_tokens}{stop}"


def _calls(event: Event) -> Iterator[str]:
    match event:
        case Step():
            names = ("budget", "drafts", "right", "per_request", "pad_to")
            given = [f"{name}={getattr(event, name)!r}" for name in names if getattr(event, name)]
            yield f"engine.step({', '.join(given)})"
        case Preempt():
            yield f"engine.preempt({event.name!r})"
        case Abort():
            yield f"engine.abort({event.name!r})"
        case DummyRun() if event.uniform_decode:
            yield f"engine.dummy_run({event.rows or ''})"
        case ResetPrefixCache():
            yield f"engine.reset_prefix_cache({event.preempt_running})"
        case ExternalLoad() if event.states:
            more = f", delay={event.delay}" if event.delay else ""
            more += ", fails=True" if event.breaks_off else ""
            yield f"engine.store({event.name!r}, {event.length}{more})"
        case Evict():
            yield f"engine.evict({event.blocks})"
        case _:
            yield f"# {event.__struct_config__.tag}: nothing happens"


Assertion = tuple[str, str]
"""The last lines of the script, and the beginning of their error message."""


def _assertion(failure: Failure) -> Assertion:
    if failure.oracle == "CRASH":
        return "# The script must get here without an exception.", ""
    return ASSERTIONS[failure.oracle, failure.field](failure)


def _published_state(failure: Failure) -> Assertion:
    promise = f"block {failure.block} is published as the state of {failure.holder} after {failure.depth} tokens"
    lines = [
        f"expected = engine.state({failure.holder!r}, {failure.depth})",
        f"for state in engine.published({failure.group}, {failure.block}, {failure.holder!r}, {failure.depth}):",
        f'    assert state == expected, f"{python_format(promise)}, but holds {{engine.describe(state)}}"',
    ]
    return "\n".join(lines), f"AssertionError: {promise}"


def _key(failure: Failure) -> Assertion:
    promise = f"block {failure.block} can be hit, but the content of its key was never computed"
    lines = [
        f"key, references = engine.key({failure.block})",
        f'assert key is None, f"{python_format(promise)} ({{references}} references)"',
    ]
    return "\n".join(lines), f"AssertionError: {promise}"


def _slot(failure: Failure) -> Assertion:
    promise = f"step {failure.step}: {failure.request} attends to wrong content"
    lines = [
        f"for layer, position, block, state in engine.slots({failure.step}, {failure.request!r}, {failure.group}):",
        f"    expected = engine.state({failure.request!r}, position + 1)",
        f'    assert state == expected, f"{python_format(promise)} at position {{position}} in block {{block}}: '
        '{engine.describe(state)}"',
    ]
    return "\n".join(lines), f"AssertionError: {promise}"


def _stall(failure: Failure) -> Assertion:
    del failure
    promise = "nothing was scheduled in"
    lines = [
        "waiting = engine.unfinished()",
        f"assert engine.idle <= {IDLE_MAX} or not waiting, "
        f'f"{promise} {{engine.idle}} steps in a row while {{waiting}} wait"',
    ]
    return "\n".join(lines), f"AssertionError: {promise}"


def _initial_state(failure: Failure) -> Assertion:
    name, step, depth = failure.request, failure.step, failure.depth
    found = f"found = engine.initial_states(step={step}, name={name!r}, group={failure.group})"
    if not depth:
        promise = f"step {step} starts {name} from a state although no token of it is computed"
        shown = python_format(promise)
        lines = [found, f'assert not found, f"{shown}: {{engine.describe(found[0][2])}} in block {{found[0][1]}}"']
    else:
        promise = f"step {step} continues {name} from the wrong state"
        shown = python_format(promise)
        lines = [
            f"# {depth} tokens of {python_comment(name)} are computed before step {step}.",
            found,
            f"expected = engine.state({name!r}, {depth})",
            "for layer, block, state in found:",
            "    was, wanted = engine.describe(state), engine.describe(expected)",
            f'    assert state == expected, f"{shown}: {{layer}} finds {{was}} in block {{block}}, not {{wanted}}"',
        ]
        # Good code may compute a session's next turn from its beginning.
        if not any(isinstance(event, Resume) for event in failure.events):
            lines.append('assert found, "no state layer took any state"')
    return "\n".join(lines), f"AssertionError: {promise}"


def _ignored_state(failure: Failure) -> Assertion:
    promise = f"step {failure.step} does not start {failure.request} from its state"
    lines = [
        f"# {failure.depth} tokens of {python_comment(failure.request)} are computed before step {failure.step}.",
        f"found = engine.initial_states(step={failure.step}, name={failure.request!r}, group={failure.group})",
        f'assert found, "{python_format(promise)}"',
    ]
    return "\n".join(lines), f"AssertionError: {promise}"


def _dead_write(failure: Failure) -> Assertion:
    promise = f"step {failure.step} stores a state for no request in block"
    lines = [
        f"for block in engine.written({failure.step}, None, {failure.group}):",
        f'    assert block == 0, f"{promise} {{block}}"',
    ]
    return "\n".join(lines), f"AssertionError: {promise} {failure.block}"


ASSERTIONS: dict[tuple[str, str], Callable[[Failure], Assertion]] = {
    ("S1", "temporal"): _published_state,
    ("S5", "never-written"): _published_state,
    ("M4", "dead-write"): _dead_write,
    ("S2", "slot"): _slot,
    ("M2", "key"): _key,
    ("M8", "stall"): _stall,
    **{(oracle, field): _initial_state for oracle in ("S2", "S3", "S4") for field in ("temporal", "phantom-state")},
    **{(oracle, "state-ignored"): _ignored_state for oracle in ("S2", "S3", "S4")},
}
"""What shows a violation of an oracle in a field: the keys are those of `kit_limits.SHOWN`."""
