"""Writes the folder of a reproducer: script, pytest file, bug report, timeline, trace."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from ...targets.base.launch import Launch
from ...targets.base.repro import Script
from ...targets.base.trace import Trace
from ..explain.explain import explain
from ..explain.history import History
from ..explain.timeline import build_timeline, plain_text
from ..traces.files import encode_trace, write_atomically
from ..traces.violation import Violation
from .script import ScriptVerdict

PYTEST = '''"""Runs repro.py: red where the bug is, green where it is not."""

import subprocess
import sys
from pathlib import Path


def test_repro():
    script = Path(__file__).with_name("repro.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
'''


class ReproCase(Struct, frozen=True):
    """Everything that a report says. Without a script the trace itself is all there is."""

    spec: str
    launch: Launch
    trace: Trace
    history: History
    violation: Violation
    script: Script | None = None
    verdict: ScriptVerdict | None = None


def write_folder(folder: Path, case: ReproCase) -> None:
    """Write everything but the script, which is there since it was run. Raises OSError."""
    from ...reports.timeline import standalone, timeline_svg

    write_atomically(folder / "trace.json", encode_trace(case.trace))
    if svg := timeline_svg(case.history):
        write_atomically(folder / "timeline.svg", standalone(svg).encode())
    if case.script:
        write_atomically(folder / "test_repro.py", PYTEST.encode())
    write_atomically(folder / "REPORT.md", "\n".join(_report(case, has_picture=bool(svg))).encode())


def _report(case: ReproCase, *, has_picture: bool) -> Iterator[str]:
    violation, explanation = case.violation, explain(case.history)
    yield f"# {_said(violation)}\n"
    yield f"Found by hybridfuzz as `{violation.signature}`, reduced to {len(case.trace.events)} events.\n"
    yield from _environment(case)
    yield "## Steps to reproduce\n"
    yield from _steps(case)
    yield "\n## Expected and observed\n"
    if explanation:
        yield f"**What must hold.** {explanation.rule}\n"
    if violation.expected and violation.observed:
        yield f"**Expected:** {violation.expected}\n\n**Observed:** {violation.observed.splitlines()[0]}\n"
    else:
        yield f"**Observed:** {_said(violation)}\n"
    if explanation and explanation.story:
        yield "## Why\n"
        yield from (f"{number}. {sentence}" for number, sentence in enumerate(explanation.story, 1))
        yield f"\n{explanation.apart}\n"
    if table := plain_text(build_timeline(case.history)):
        yield "![The lives of the blocks](timeline.svg)\n" if has_picture else ""
        yield f"```\n{table}\n```\n"
    if case.script and case.script.places:
        yield "## Where to look (a suggestion)\n"
        yield from (f"* {place}" for place in case.script.places)
        yield ""


def _said(violation: Violation) -> str:
    return violation.message.partition(": ")[2] or violation.message


def _environment(case: ReproCase) -> Iterator[str]:
    name = case.spec.partition("@")[0].partition(":")[0]
    config = case.trace.config
    yield "## Environment\n"
    yield f"* {name} {case.launch.version}".rstrip() + f" (target `{case.spec}`)"
    yield f"* Python {platform.python_version()}, {platform.system()} {platform.machine()}, CPU only"
    yield f"* hybridfuzz {_version()}\n"
    yield "Minimal configuration:\n"
    for group in config.groups:
        yield f"* a group of {group.layers} {group.kind} layer(s), blocks of {group.block_size} tokens"
    fields = {one: getattr(config, one) for one in config.__struct_fields__ if one != "groups"}
    yield "* " + ", ".join(f"`{key}={value}`" for key, value in fields.items() if value not in ({}, ())) + "\n"


def _steps(case: ReproCase) -> Iterator[str]:
    if case.script is None or case.verdict is None:
        yield "There is no stand-alone script for this failure. With hybridfuzz installed:\n"
        yield f"```console\n$ {shlex.join(['hybridfuzz', 'replay', 'trace.json', '--target', case.spec])}\n```"
        return
    if case.verdict.promised:
        yield f"`python repro.py` needs {case.script.needs} and fails after {case.verdict.seconds:.0f} s:\n"
    else:
        yield "**`repro.py` did not fail as promised when it was tried: do not rely on it.** It said:\n"
    shown = case.verdict.tail.splitlines()[-6:]
    yield "```console\n$ python repro.py\n" + "\n".join(shown) + "\n```\n"
    yield "`pytest test_repro.py` runs the same as a test. With hybridfuzz installed:\n"
    yield f"```console\n$ {shlex.join(['hybridfuzz', 'replay', 'trace.json', '--target', case.spec])}\n```"


def _version() -> str:
    try:
        return version("hybridfuzz")
    except PackageNotFoundError:
        return "of a checkout"
