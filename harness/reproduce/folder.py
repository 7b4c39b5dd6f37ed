"""Writes the folder of a reproducer.

repro.py        needs only the target's own package; fails while the bug is present
test_repro.py   the same for pytest
REPORT.md       a bug report in the form that engines ask for
timeline.svg    the lives of the blocks
trace.json      the trace, for hybridfuzz
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct, structs

from ...targets.base.launch import Launch
from ...targets.base.repro import Script
from ...targets.base.trace import Config, Trace
from ..explain.explain import explain
from ..explain.history import History
from ..explain.timeline import build_timeline, plain_text
from ..quoting import markdown_code, markdown_fence, markdown_text
from ..traces.files import encode_trace, write_atomically
from ..traces.violation import Violation
from ..units import plural
from .script import PACKAGE, ScriptVerdict

PYTEST = '''"""Runs repro.py. Fails while the bug is present."""

import subprocess
import sys
from pathlib import Path


def test_repro():
    script = Path(__file__).with_name("repro.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
'''


class ReproCase(Struct, frozen=True):
    """The content of a report. Without a script, it shows how to replay the trace."""

    spec: str
    launch: Launch
    trace: Trace
    history: History
    violation: Violation
    script: Script | None = None
    verdict: ScriptVerdict | None = None


def write_folder(folder: Path, case: ReproCase) -> None:
    """Write everything but the script, which was written when it was run. Raises OSError."""
    from ...reports.timeline import standalone, timeline_svg

    write_atomically(folder / "trace.json", encode_trace(case.trace))
    if svg := timeline_svg(case.history):
        write_atomically(folder / "timeline.svg", standalone(svg).encode())
    if case.script:
        write_atomically(folder / "test_repro.py", PYTEST.encode())
    write_atomically(folder / "REPORT.md", "\n".join(_report(case, has_picture=bool(svg))).encode())


def _report(case: ReproCase, *, has_picture: bool) -> Iterator[str]:
    """Yield the lines of REPORT.md. Text of the target, the trace and the command line is quoted."""
    violation, explanation = case.violation, explain(case.history)
    yield f"# {markdown_text(_title(violation))}\n"
    count = len(case.trace.events)
    yield f"Found by hybridfuzz as {markdown_code(violation.signature)}, reduced to {plural(count, 'event')}.\n"
    yield from _environment(case)
    yield "## Steps to reproduce\n"
    yield from _steps(case)
    yield "\n## Expected and observed\n"
    if explanation:
        yield f"**What must hold.** {markdown_text(explanation.rule)}\n"
    if violation.expected and len(observed := violation.observed.splitlines()) == 1:
        yield f"**Expected:** {markdown_text(violation.expected)}\n"
        yield f"**Observed:** {markdown_text(observed[0])}\n"
    else:
        yield f"**Observed:** {markdown_text(_sentence(violation))}\n"
    if explanation and explanation.story:
        yield "## Why\n"
        yield from (f"{number}. {markdown_text(sentence)}" for number, sentence in enumerate(explanation.story, 1))
        diverge = explanation.apart.replace(f": {_sentence(violation)}.", ".", 1)  # the title is that message
        yield f"\n{markdown_text(diverge)}\n"
    if table := plain_text(build_timeline(case.history)):
        yield "![The lives of the blocks](timeline.svg)\n" if has_picture else ""
        yield f"{markdown_fence(table)}\n"
    if case.script and case.script.places:
        yield "## Where to look (a suggestion)\n"
        yield from (f"* {markdown_text(place)}" for place in case.script.places)
        yield ""


def _sentence(violation: Violation) -> str:
    return violation.message.partition(": ")[2] or violation.message


def _title(violation: Violation) -> str:
    """Return the message with its step in front: "Step 2: dummy row 0 writes ..."."""
    sentence, end = _sentence(violation), f" (step {violation.step})"
    return f"Step {violation.step}: {sentence.removesuffix(end)}" if sentence.endswith(end) else sentence


def _environment(case: ReproCase) -> Iterator[str]:
    name = case.spec.partition("@")[0].partition(":")[0]
    config = case.trace.config
    yield "## Environment\n"
    release = f"{name} {case.launch.version}"
    spec = markdown_code(case.spec)
    yield f"* {markdown_text(release)} (target {spec})" if case.launch.version else f"* target {spec}"
    yield f"* Python {platform.python_version()}, {platform.system()} {platform.machine()}, CPU only"
    yield f"* hybridfuzz {_version()}\n"
    yield "Configuration (settings that differ from the defaults):\n"
    for group in config.groups:
        kind = "Mamba" if group.kind == "mamba" else group.kind
        layers = plural(group.layers, f"{kind} layer").removeprefix("1 ")
        one = "one " if group.layers == 1 else ""
        yield f"* one KV cache group with {one}{layers}, blocks of {plural(group.block_size, 'token')}"
    defaults = structs.asdict(Config(0, config.groups))
    changed = [f"{key}={value}" for key, value in structs.asdict(config).items() if value != defaults[key]]
    yield "* " + ", ".join(map(markdown_code, changed))
    yield ""


def _steps(case: ReproCase) -> Iterator[str]:
    replay = f"$ {shlex.join(['hybridfuzz', 'replay', 'trace.json', '--target', case.spec])}"
    if case.script is None or case.verdict is None:
        yield "There is no stand-alone script for this failure. With hybridfuzz installed:\n"
        yield markdown_fence(replay, "console")
        return
    if case.verdict.promised:
        part = " (the built-in target is part of it)" if case.script.needs == PACKAGE else ""
        seconds = case.verdict.seconds
        after = "within a second" if seconds < 1 else f"after {seconds:.0f} s"
        needs = markdown_text(case.script.needs)
        yield f"With {needs} installed{part}, `python repro.py` reproduces the failure {after}:\n"
    else:
        yield "**`repro.py` did not fail as promised when it was tried: do not rely on it.** Its output:\n"
    shown = case.verdict.tail.splitlines()[-6:]
    yield markdown_fence("\n".join(["$ python repro.py", *shown]), "console") + "\n"
    yield "`pytest test_repro.py` runs the same check as a test. To replay the trace in hybridfuzz:\n"
    yield markdown_fence(replay, "console")


def _version() -> str:
    try:
        return version("hybridfuzz")
    except PackageNotFoundError:
        return "of a checkout"
