"""Writes stand-alone reproducers for vLLM: calls to an inlined small engine, one after the other, and an assertion.

The script needs vLLM and torch only. It can show the initial state of a state layer, the content of a block, and the
block of a key; other failures are refused, never approximated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from importlib.resources import files

from ...reference.tokens import Truth
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
    Step,
    Trace,
)
from .kits import Case, refusal
from .options import SYNC_LOAD_TOKENS, options_of

ABOUT = "Needs vLLM and torch, no GPU. Fails with an AssertionError where the bug is.\n"
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
    connector = case.options.connector
    assertion, promise = _assertion(failure)
    calls = [line for event in failure.events for line in _calls(event, trace.config)]
    sources = ["layers", "config", *(["connector"] if connector != "none" else []), "engine"]
    parts = [_source(name) for name in sources]
    imports = sorted({line for part, _ in parts for line in part if line.startswith("import ")} | {"import os"})
    imports += sorted({line for part, _ in parts for line in part if line.startswith("from ")})
    text = "\n".join(
        [
            f'"""{python_comment(failure.message)}\n\n{ABOUT}"""\n',
            "import os\n",
            ENVIRONMENT,
            *(f"{line}  # noqa: E402" for line in imports if line != "import os"),
            "",
            *(body for _, body in parts),
            "\n# ---- The trace, call by call.\n",
            _opening(trace.config),
            *calls,
            "",
            assertion,
            'print("passed: the bug is not here")',
            "",
        ]
    )
    return [Script(text, promise, "vllm, torch")]


def _source(name: str) -> tuple[list[str], str]:
    """Return (imports of third-party packages, one per line; everything after the imports) of an inlined file."""
    text = (files(__package__) / "repro_engine" / f"{name}.py").read_text(encoding="utf-8")
    lines, imports, last = text.splitlines(), [], 0
    for node in ast.parse(text).body[1:]:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        last = node.end_lineno or node.lineno
        if not (isinstance(node, ast.ImportFrom) and node.level):
            imports.append(ast.unparse(node))
    return imports, "\n".join(lines[last:]).strip("\n") + "\n\n"


def _block_sizes(config: Config) -> dict[str, set[int]]:
    sizes: dict[str, set[int]] = {"mamba": set(), "attention": set()}
    for group in config.groups:
        sizes[group.kind].add(group.block_size)
    return sizes


def _opening(config: Config) -> str:
    sizes, options = _block_sizes(config), options_of(config)
    fields = {
        "runner": options.runner,
        "num_blocks": config.num_blocks,
        "groups": [(group.kind, group.layers) for group in config.groups],
        "block_size": min(sizes["attention"]),
        "mode": config.mamba_cache_mode,
        "num_drafts": config.num_speculative_tokens,
        "async_depth": config.async_depth,
        "eagle": config.eagle_block_drop,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "long_prefill": config.long_prefill_token_threshold,
        "policy": config.policy,
        "conv_width": config.conv_width,
        "every_boundary": options.retention == "dense",
    }
    if sizes["mamba"] != sizes["attention"]:
        fields["mamba_block_size"] = min(sizes["mamba"])
    if options.prefix_match_unit:
        fields["prefix_match_unit"] = options.prefix_match_unit
    if options.admission == "chunk":
        fields["reserve_full_isl"] = False
    if options.connector != "none":
        fields["load_failure"] = options.load_failure
    if options.connector == "sync":
        fields["sync_load_tokens"] = SYNC_LOAD_TOKENS
    return "engine = Engine(\n" + "".join(f"    {name}={value!r},\n" for name, value in fields.items()) + ")"


def _calls(event: Event, config: Config) -> Iterator[str]:
    match event:
        case Arrive():
            truth = Truth(event.prompt)
            truth.reach(truth.prompt_length + event.max_new_tokens + 2 * (config.num_speculative_tokens + 1))
            prompt, says = truth.tokens[: truth.prompt_length], truth.tokens[truth.prompt_length :]
            priority = f", priority={event.priority}" if event.priority else ""
            yield f"engine.add({event.name!r}, {prompt}, says={says}, new_tokens={event.max_new_tokens}{priority})"
        case Step():
            names = ("budget", "drafts", "right", "per_request")
            given = [f"{name}={getattr(event, name)!r}" for name in names if getattr(event, name)]
            yield f"engine.step({', '.join(given)})"
        case Preempt():
            yield f"engine.preempt({event.name!r})"
        case Abort():
            yield f"engine.abort({event.name!r})"
        case DummyRun() if event.uniform_decode:
            yield "engine.dummy_run()"
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
        f"for state in engine.content({failure.group}, {failure.block}):",
        f'    assert state == expected, f"{python_format(promise)}, but holds {{engine.describe(state)}}"',
    ]
    return "\n".join(lines), f"AssertionError: {promise}"


def _key(failure: Failure) -> Assertion:
    promise = f"block {failure.block} can be hit, but the content of its key was never computed"
    lines = [
        f"block = engine.scheduler.kv_cache_manager.block_pool.blocks[{failure.block}]",
        f'assert block.block_hash is None, f"{python_format(promise)} ({{block.ref_cnt}} references)"',
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
            'assert found, "no state layer took any state"',
        ]
    return "\n".join(lines), f"AssertionError: {promise}"


ASSERTIONS: dict[tuple[str, str], Callable[[Failure], Assertion]] = {
    ("S1", "temporal"): _published_state,
    ("S2", "slot"): _slot,
    ("M2", "key"): _key,
    ("M8", "stall"): _stall,
    **{(oracle, field): _initial_state for oracle in ("S2", "S3", "S4") for field in ("temporal", "phantom-state")},
}
"""What shows a violation of an oracle in a field: the keys are those of `kits.SHOWN`."""
