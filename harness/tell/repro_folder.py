"""Writes the folder of a reproducer.

repro.py        needs only the target's own package; fails while the bug is present
test_repro.py   the same for pytest
tests/...       the same for the engine's own tests, if it was asked for
fix.patch       a patch that was tried, if there is one
fixes/          patches that the engine has here, with the known.toml that `--fixes` reads, if it has some
REPORT.md       a bug report, to be checked, owned and pasted (`report`)
timeline.svg    the lives of the blocks
trace.json      the trace, for hybridfuzz
given.json      the trace that was given, if the report is about the packaged one of the same known bug
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from ...targets.base.trace import Trace
from ..draw.trace_files import encode_trace, write_atomically
from ..group.known.fixes import KNOWN_FILE
from ..group.known.known_toml import take_over
from .bug_report import FIXES, ReproCase, report

REPORT = "REPORT.md"
GIVEN = "given.json"
PYTEST = '''\
"""Runs repro.py. Fails while the bug is present; skipped where the engine is not installed."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec({package!a}) is None, reason={package!a} " is not installed")
def test_repro():
    script = Path(__file__).with_name("repro.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    told = (re.findall(r"^(?:\\[rank\\d+\\]: ?)?AssertionError: (.*)", ended.stderr, re.MULTILINE) or
            ended.stderr.splitlines() or ["it printed nothing"])[-1]
    assert ended.returncode == 0, f"{{told}}\\n{{ended.stdout[-4000:]}}\\n{{ended.stderr[-4000:]}}"
'''


def write_folder(folder: Path, case: ReproCase, *, has_report: bool = True, given: Trace | None = None) -> None:
    """Write everything but the script, which was written when it was run. `given`: the trace that was given, if the
    case is about another one. Raises OSError."""
    from .timeline_svg import standalone, timeline_svg

    write_atomically(folder / "trace.json", encode_trace(structs.replace(case.trace, target=case.spec)))
    (folder / GIVEN).unlink(missing_ok=True)  # of an earlier run
    if given:
        write_atomically(folder / GIVEN, encode_trace(given))
    if svg := timeline_svg(case.history):
        write_atomically(folder / "timeline.svg", standalone(svg).encode())
    if case.script:
        package = case.script.needs.partition(",")[0]
        write_atomically(folder / "test_repro.py", PYTEST.format(package=package).encode())
    if case.fix:
        write_atomically(folder / "fix.patch", case.fix.text.encode("utf-8", "replace"))
    (folder / FIXES / KNOWN_FILE).unlink(missing_ok=True)  # of an earlier run
    for entry in case.fixes:
        take_over(folder / FIXES / KNOWN_FILE, entry)
    if has_report:
        write_atomically(folder / REPORT, report(case).encode())
    else:
        (folder / REPORT).unlink(missing_ok=True)  # of an earlier run
