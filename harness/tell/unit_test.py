"""Writes a failure as a test of the part of an engine that is wrong, such as its scheduler.

An engine's `repro` module says what the test is (`write_unit_test`); it is handed out only if it fails where the bug
is, as it promises, and passes where the bug is fixed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ...targets.base.engine_tests import EngineTest
from ...targets.base.launch import Launch
from ...targets.base.protocol import TargetError
from ...targets.base.registry import write_unit_test
from ...targets.base.repro import Script
from ...targets.base.trace import Trace
from ..draw.trace_files import write_atomically
from .script import ScriptVerdict, run_program, run_test


def unit_test(
    spec: str, trace: Trace, script: Script, about: str, name: str, folder: Path, launch: Launch, fixed: Launch | None
) -> tuple[EngineTest, ScriptVerdict, ScriptVerdict | None] | None:
    """Write the test of a failing trace below a folder, and return it with what it does on the engine, and on the fixed
    one if there is one; None, and no test, where no part of the engine shows the failure alone.

    `about`: what is wrong, in paragraphs. `fixed`: the engine with the bug fixed, None if nobody knows how. Raises
    OSError if the folder cannot be written.
    """
    run_fixed = partial(run_program, launch=fixed) if fixed else None
    try:
        test = write_unit_test(spec, trace, script, about, name, partial(run_program, launch=launch), run_fixed)
    except TargetError:
        return None
    verdict = run_in(folder, test, script, launch)
    mended = run_test(folder, test, script, fixed) if fixed and verdict.promised else None
    if verdict.promised and (fixed is None or (mended and mended.status == 0)):
        return test, verdict, mended
    for path in test.files:
        (folder / path).unlink()
    return None


def run_in(folder: Path, test: EngineTest, script: Script, launch: Launch) -> ScriptVerdict:
    """Write a test below a folder, and return how it ends."""
    for path, text in test.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / path, text.encode())
    return run_test(folder, test, script, launch)
