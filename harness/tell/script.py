"""Runs the script of a reproducer, and collects what a target needs to write one.

A script is run before it is handed out, with the environment and the home folder of a worker
(`workers/worker_environment.py`); `ScriptVerdict` is the result.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ...targets.base.client_script import AGAIN, WRONG_SINCE
from ...targets.base.engine_tests import EngineTest
from ...targets.base.launch import Launch
from ...targets.base.repro import Failure, Script
from ...targets.base.trace import Trace
from ..judge.violation import Violation, wanted_depth
from ..quoting import clean, without_addresses
from ..record.history import History
from ..record.tag_names import Names
from ..workers.worker_environment import Home
from ..workers.worker_process import variables_for
from .scenario import events_of

PACKAGE = "hybridfuzz"
TAIL_LINES = 25
TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_LINES = 200
OUTPUT_MAX = 100_000
RUN_SECONDS = 900.0


Ended = tuple[int, float, Sequence[str], Sequence[str]]
"""Exit status, seconds, lines of output, lines of errors."""
Run = Callable[[Path, Script, Launch], Ended]
"""Runs the script at a path in a target's environment."""


class ScriptVerdict(Struct, frozen=True):
    """Result of a script.

    promised   it failed with the promised message, and where the finding is
    tail       the end of its output
    elsewhere  where it failed with that message instead, "" if it did not
    told       what it printed
    raised     the exception with which it ended, in one line
    """

    promised: bool
    status: int
    seconds: float
    tail: str
    elsewhere: str = ""
    told: Sequence[str] = ()
    raised: str = ""


def without_event(sentence: str) -> str:
    """Return what an engine raised without the number of the event in the trace: no script has it."""
    return re.sub(r" \(event \d+, \w+\)$", "", sentence)


def failure_of(trace: Trace, history: History, violation: Violation) -> Failure:
    """Return the parts of a violation that a script shows."""
    depth, holder = wanted_depth(violation), violation.request
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
        events=tuple(events_of(trace, history)),
        step=violation.step,
        request=violation.request,
        group=violation.group,
        block=violation.block,
        depth=depth,
        holder=holder,
        sentence=without_event(violation.sentence),
        tolerance=float(str(violation.details.get("tolerance", 0.0))),
    )


def _holder(trace: Trace, history: History, violation: Violation) -> tuple[int, str]:
    """Return (depth, a request with that prefix) for the key of the violation's block; (-1, "") if there is none."""
    keys = [mark.content for mark in history.marks if mark.what == "hash" and mark.block == violation.block]
    return Names(trace.events).holder(keys[-1]) if keys else (-1, "")


def run_script(path: Path, script: Script, launch: Launch, run: Run | None = None) -> ScriptVerdict:
    """Run a script in the target's environment; hybridfuzz is importable only if the script needs it. `run` starts it
    in another way than as a new process."""
    status, seconds, out, lines = (
        run(path, script, launch) if run else _run([str(path.absolute())], None, script.needs, launch)
    )
    is_shown = status == 1 and any(script.promise in line for line in _exception(lines))
    elsewhere = _elsewhere(lines, script, path) if is_shown else ""
    tail = _tail([*out, *lines], path.absolute().parent, launch)
    raised = without_addresses(RANK.sub("", next(iter(_exception(lines)), "")))
    return ScriptVerdict(is_shown and not elsewhere, status, seconds, tail, elsewhere, out, raised)


CALL = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<function>\S+)')
BODY = ("reproduce", "<module>")
"""Functions that may hold the calls of a script, the inner one first."""


def _elsewhere(lines: Sequence[str], script: Script, path: Path) -> str:
    """Return where a script failed if that is not where the finding is, "" if it is."""
    place, frames = script.place, [found for line in lines if (found := CALL.search(line))]
    own = {one["function"]: int(one["line"]) for one in reversed(frames) if Path(one["file"]).name == path.name}
    line = next((own[name] for name in BODY if name in own), script.first_line)
    if line < script.first_line:
        return f"in line {line}, before the call that the report is about (line {script.first_line})"
    if place.function and place.function not in {one["function"].strip("<>") for one in frames}:
        return f"in {frames[-1]['function'] if frames else 'no function'}, not in {place.function}"
    wrong = [(name, int(step)) for line in _exception(lines) for name, step in WRONG_SINCE.findall(line)]
    if not wrong:
        return ""
    first, since = min(wrong, key=lambda one: one[1])
    if since < place.step:
        return f"in step {since}, with a token of {first}; the report is about step {place.step}"
    if place.client and not any(name == place.client or name.startswith(AGAIN) for name, _ in wrong):
        return f"with tokens of {first}; the report is about {place.client}"
    return ""


RANK = re.compile(r"^\[rank\d+\]: ?")
"""Begins the lines of a traceback that PyTorch marks."""
FRAME = re.compile(r"(?:\[rank\d+\]:)? {2}")
"""Begins the lines of a traceback's frames."""


def _exception(lines: Sequence[str]) -> Sequence[str]:
    """Return the last lines of output, behind all frames: the exception's, several if it has notes."""
    frames = [number for number, line in enumerate(lines) if FRAME.match(line)]
    return lines[max(frames, default=-1) + 1 :] or lines[-1:]


def run_test(folder: Path, test: EngineTest, script: Script, launch: Launch) -> ScriptVerdict:
    """Run a script's test in its own tree, which `folder` holds; the last line is that of the engine's test runner."""
    status, seconds, out, err = _run(test.run, folder.absolute(), script.needs, launch)
    promised = status == 1 and any((test.promise or script.promise) in line for line in [*out, *err])
    raised = [line for line in out if line.startswith("E  ")]
    return ScriptVerdict(promised, status, seconds, _tail([*out, *err], folder.absolute(), launch), told=raised)


def run_program(text: str, launch: Launch) -> str:
    """Run a program that uses hybridfuzz with the target's Python, and return its output, whole."""
    with Home() as home:
        path = home / "program.py"
        path.write_text(text, encoding="utf-8")
        with suppress(subprocess.TimeoutExpired):
            return _python(launch, [str(path)], variables_for(launch, home)).stdout.decode(errors="replace")
    return ""


def _python(
    launch: Launch, arguments: Sequence[str], variables: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the target's Python to its end. Raises TimeoutExpired."""
    return subprocess.run(
        [launch.python, *arguments],
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def _run(arguments: Sequence[str], folder: Path | None, needs: str, launch: Launch) -> Ended:
    """Run the target's Python, and tell how it ended. `needs`: packages that have to be importable."""
    began = time.monotonic()
    try:
        with Home() as home:
            variables = environment_of(launch, needs, home, finds_folder=folder is not None)
            ended = _python(launch, arguments, variables, folder)
    except subprocess.TimeoutExpired:
        return -1, time.monotonic() - began, [], [f"it did not end within {RUN_SECONDS:.0f} s"]
    return ended_with(ended.returncode, time.monotonic() - began, ended.stdout, ended.stderr)


def ended_with(status: int, seconds: float, stdout: bytes, stderr: bytes) -> Ended:
    """Return how a process ended, its output in lines that can be printed."""
    out, err = (clean(text.decode(errors="replace")[-OUTPUT_MAX:], OUTPUT_MAX) for text in (stdout, stderr))
    return status, seconds, out.splitlines(), [line for line in err.splitlines() if line.strip()]


def _tail(lines: Sequence[str], folder: Path, launch: Launch) -> str:
    """Return the last lines, with a traceback that they end in whole; without the names of folders of this machine,
    which a traceback has, and addresses of objects."""
    traceback = next((number for number in range(len(lines) - 1, -1, -1) if lines[number].endswith(TRACEBACK)), -1)
    first = max(min(traceback, len(lines) - TAIL_LINES) if traceback >= 0 else len(lines) - TAIL_LINES, 0)
    text = without_addresses(
        "\n".join(RANK.sub("", line) for line in lines[max(first, len(lines) - TRACEBACK_LINES) :])
    )
    for place in (str(folder), launch.tree, str(Path(launch.python).parents[1])):
        text = text.replace(f"{place}{os.sep}", "") if place else text
    return text


def environment_of(launch: Launch, needs: str, home: Path, *, finds_folder: bool) -> Mapping[str, str]:
    """Return a worker's environment, without the folder that makes hybridfuzz importable there. `finds_folder`: modules
    in the working directory or beside the script are found, as they are in the engine's tree."""
    variables = {**variables_for(launch, home)}
    if finds_folder:
        variables.pop("PYTHONSAFEPATH", None)
    if PACKAGE in needs:
        return variables
    path = variables.get("PYTHONPATH", "").split(os.pathsep)
    variables["PYTHONPATH"] = os.pathsep.join(one for one in path if not (Path(one) / PACKAGE).is_dir())
    return variables
