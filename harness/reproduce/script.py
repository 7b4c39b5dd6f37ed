"""A folder that makes one failure run elsewhere.

    repro.py        needs only the target's own package; fails where the bug is
    test_repro.py   the same for pytest
    REPORT.md       a bug report in the shape that engines ask for
    timeline.svg    the lives of the blocks
    trace.json      the trace, for hybridfuzz

The script is run before it is handed out: what it says is in `ScriptVerdict`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from ...targets.base.launch import Launch
from ...targets.base.repro import Failure, Script
from ...targets.base.trace import Step, Trace, Wake
from ..explain.history import History
from ..explain.tag_names import Names
from ..traces.violation import Violation

PACKAGE = "hybridfuzz"
TAIL_LINES = 25
RUN_SECONDS = 900.0
_STATE = re.compile(r"state@(\d+)")


class ScriptVerdict(Struct, frozen=True):
    """What a script did. `promised`: it failed, and as it should."""

    promised: bool
    status: int
    seconds: float
    tail: str


def failure_of(trace: Trace, history: History, violation: Violation) -> Failure:
    """Everything that a script has to know of a violation."""
    drained = range(max(len(history.moments) - len(trace.events), 0))
    draining = [Wake() if history.moments[len(trace.events) + one].kind == "wake" else Step() for one in drained]
    events = (*trace.events[: len(history.moments)], *draining)
    match = _STATE.search(violation.expected)
    depth, holder = int(match[1]) if match else -1, violation.request
    if depth < 0:
        starts = [
            turn.start for turn in history.request_steps if turn.step == violation.step and turn.request == holder
        ]
        depth = starts[0] if starts else -1
    if not holder:
        depth, holder = _holder(trace, history, violation)
    return Failure(
        oracle=violation.oracle,
        field=violation.field,
        message=violation.message,
        events=events,
        step=violation.step,
        request=violation.request,
        group=violation.group,
        block=violation.block,
        depth=depth,
        holder=holder,
    )


def _holder(trace: Trace, history: History, violation: Violation) -> tuple[int, str]:
    """(depth, a request whose prefix it is) of the violation's block's key."""
    keys = [mark.content for mark in history.marks if mark.what == "hash" and mark.block == violation.block]
    match = _STATE.match(keys[-1]) if keys else None
    names = Names(trace.events)
    if match:
        for event in trace.events:
            name = getattr(event, "name", "")
            if name and names.of(name, int(match[1])) == keys[-1]:
                return int(match[1]), name
    return -1, ""


def run_script(path: Path, script: Script, launch: Launch) -> ScriptVerdict:
    """Run a script in the target's environment, without hybridfuzz on its path unless it says that it needs it."""
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [launch.python, str(path.absolute())],
            env=_environment(launch, script),
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ScriptVerdict(False, -1, time.monotonic() - began, f"it did not end within {RUN_SECONDS:.0f} s")
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    promised = ended.returncode == 1 and bool(lines) and script.promise in lines[-1]
    folder = f"{path.absolute().parent}{os.sep}"  # a traceback names it in full, and it is nobody's business
    tail = "\n".join([*ended.stdout.splitlines(), *lines][-TAIL_LINES:]).replace(folder, "")
    return ScriptVerdict(promised, ended.returncode, time.monotonic() - began, tail)


def _environment(launch: Launch, script: Script) -> Mapping[str, str]:
    """The target's, less the folder that makes hybridfuzz importable there."""
    environment = {**os.environ, **launch.env}
    if PACKAGE in script.needs:
        return environment
    path = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(one for one in path if not (Path(one) / PACKAGE).is_dir())
    return environment
