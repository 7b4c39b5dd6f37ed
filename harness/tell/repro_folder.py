"""Writes the folder of a reproducer.

repro.py        needs only the target's own package; fails while the bug is present
test_repro.py   the same for pytest
fix.patch       a patch that was tried, if there is one
REPORT.md       a bug report, to be checked, owned and pasted (`report`)
timeline.svg    the lives of the blocks
trace.json      the trace, for hybridfuzz
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from ..draw.files import encode_trace, write_atomically
from .bug_report import ReproCase, report

PYTEST = '''"""Runs repro.py. Fails while the bug is present."""

import subprocess
import sys
from pathlib import Path


def test_repro():
    script = Path(__file__).with_name("repro.py")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
'''


def write_folder(folder: Path, case: ReproCase) -> None:
    """Write everything but the script, which was written when it was run. Raises OSError."""
    from .timeline_svg import standalone, timeline_svg

    write_atomically(folder / "trace.json", encode_trace(structs.replace(case.trace, target=case.spec)))
    if svg := timeline_svg(case.history):
        write_atomically(folder / "timeline.svg", standalone(svg).encode())
    if case.script:
        write_atomically(folder / "test_repro.py", PYTEST.encode())
    if case.fix:
        write_atomically(folder / "fix.patch", case.fix.text.encode("utf-8", "replace"))
    write_atomically(folder / "REPORT.md", report(case, has_picture=bool(svg)).encode())
