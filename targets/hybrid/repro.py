"""Writes reproducers for the built-in target: scripts that apply the events in order and assert on the observations.

A script needs the target's own package, which is hybridfuzz. Where no plain assertion expresses the failure, the script
runs the oracles in lockstep.
"""

from __future__ import annotations

import msgspec

from ...reference.tokens import Truth
from ..base.repro import Failure, Script, python_comment, python_format
from ..base.trace import Arrive, Event, Trace

IMPORTS = """\
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.observe import *
from hybridfuzz.targets.base.trace import *
from hybridfuzz.targets.hybrid.factory import make_factory
"""
WATCH = """\
records = []


def happen(event):
    records.extend(target.apply(event).records)


def accesses(step):
    \"\"\"Return (request or None, access) for each read and write of a step.\"\"\"
    forwards = [one for one in records if isinstance(one, Forward) and one.step == step]
    return [(one.rows[access.row].request, access) for one in forwards for access in one.accesses]

"""
IDLE = """\
if lockstep.violation is None:
    lockstep.drain(happened)
"""
JUDGE = """\
from hybridfuzz.harness.judge.lockstep import Lockstep

lockstep = Lockstep(target, config, factory.capabilities.observes, factory.capabilities.engine)
happened = 0


def happen(event):
    global happened
    assert lockstep.violation is None, "fails earlier than expected"
    lockstep.apply(event, happened)
    happened += 1

"""


def write_scripts(variant: str, trace: Trace, failure: Failure) -> list[Script]:
    """Return a script with a plain assertion, if there is one for this failure, and a script that runs the oracles."""
    promise, assertion = _plain(failure, trace)
    scripts = [_script(variant, trace, failure, promise, assertion)] if assertion else []
    return [*scripts, _script(variant, trace, failure, "", "")]


def _script(variant: str, trace: Trace, failure: Failure, promise: str, assertion: str) -> Script:
    plain = bool(assertion)
    if not plain:
        promise = failure.message
        # A leak is visible only after the last request has ended.
        idle = IDLE if failure.oracle in ("M8", "M9") else ""
        assertion = f"{idle}assert lockstep.violation is None, lockstep.violation.message"
    config = f"config = {trace.config!r}"
    opening = f"{config}\nfactory = make_factory({variant!r})\ntarget = factory.open(config)\n"
    calls = "\n".join(f"happen({_literal(event)})" for event in failure.events)
    why = python_comment(failure.message)
    about = f'"""{why}\n\nNeeds hybridfuzz installed. Fails while the bug is present.\n"""\n'
    parts = [
        about,
        IMPORTS,
        opening,
        WATCH if plain else JUDGE,
        calls,
        assertion,
        'print("passed: the bug is not present")',
    ]
    return Script("\n".join(parts) + "\n", promise, "hybridfuzz")


def _literal(event: Event) -> str:
    """Return the event as Python source, without the fields that have their default."""
    given = [f"{name}={getattr(event, name)!r}" for name in msgspec.to_builtins(event) if name != "event"]
    return f"{type(event).__name__}({', '.join(given)})"


def _plain(failure: Failure, trace: Trace) -> tuple[str, str]:
    """Return (promise, assertion), both empty if no plain assertion expresses the failure."""
    oracle, field = failure.oracle, failure.field
    if oracle == "CRASH":
        return field.split("-")[0], "# The script must get here without an exception."
    if oracle == "M4" and field == "dead-write":
        promise = "a padding or dummy row writes"
        return promise, (
            f"dead = [one for who, one in accesses({failure.step}) if who is None]\n"
            "blocks = {one.block for one in dead if isinstance(one, StateWrite)}\n"
            "blocks |= {block for one in dead if isinstance(one, SlotWrite) for block in one.blocks if block}\n"
            f"assert not blocks, f\"{python_format(promise)} into block {{', '.join(map(str, sorted(blocks)))}}\""
        )
    if oracle == "M7" and field == "blocks":
        promise = f"the admission estimate of {failure.request} is wrong"
        shown = python_format(promise)
        return promise, (
            f"[plan] = [one for one in records if isinstance(one, Planned) and one.step == {failure.step}]\n"
            f"[row] = [row for row in plan.rows if row.name == {failure.request!r}]\n"
            f'assert row.estimated == row.taken, f"{shown}: {{row.estimated}} blocks estimated, {{row.taken}} taken"'
        )
    if oracle in ("S2", "S3", "S4") and field in ("temporal", "conv", "phantom-state") and failure.depth >= 0:
        return _state(failure, trace)
    if oracle == "S1" and field in ("temporal", "conv", "slot") and failure.holder:
        return _content(failure, trace)
    return "", ""


def _truth(trace: Trace, name: str) -> str:
    [prompt] = [one.prompt for one in trace.events if isinstance(one, Arrive) and one.name == name][:1]
    assert Truth(prompt).prompt_length
    return f"truth = Truth({prompt!r})  # {python_comment(name)}"


def _state(failure: Failure, trace: Trace) -> tuple[str, str]:
    name, depth = failure.request, failure.depth
    part = "window" if failure.field == "conv" else "temporal"
    wanted = f"truth.window({depth}, config.conv_width)" if part == "window" else f"truth.tag({depth})"
    promise = f"step {failure.step} resumes {name} from the wrong state"
    lines = [
        _truth(trace, name),
        f"reads = [one for who, one in accesses({failure.step}) if who == {name!r} and isinstance(one, StateRead)]",
        f"for read in [one for one in reads if one.group == {failure.group} and one.{part} is not None]:",
    ]
    if depth:
        lines.append(f'    assert read.{part} == {wanted}, f"{python_format(promise)}: {{read}}"')
    else:
        lines.append(
            f'    raise AssertionError(f"{python_format(promise)}: none of its tokens is computed yet, {{read}}")'
        )
    return promise, "\n".join(lines)


def _content(failure: Failure, trace: Trace) -> tuple[str, str]:
    name, depth, block, group = failure.holder, failure.depth, failure.block, failure.group
    promise = f"block {block} is published as the content of {name} at depth {depth} but holds other content"
    size = trace.config.groups[group].block_size
    wanted = {
        "temporal": f"truth.tag({depth})",
        "conv": f"truth.window({depth}, config.conv_width)",
        "slot": f"truth.slots({depth - size}, {depth})",
    }[failure.field]
    part = {"temporal": "temporal", "conv": "window", "slot": "tags"}[failure.field]
    layers = trace.config.groups[group].layers
    return promise, (
        f"{_truth(trace, name)}\nassert {block} in target.view().published\n"
        f"for layer in range({layers}):\n"
        f"    content = target.read({group}, layer, {block})\n"
        f'    assert content.{part} == {wanted}, f"{python_format(promise)}: {{content}}"'
    )
