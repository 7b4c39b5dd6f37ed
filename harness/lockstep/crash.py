"""A target that raises: the finding names the exception's type and the innermost function of the target."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from ..oracles.base import Context
from ..traces.violation import Violation


def crash_violation(context: Context | None, error: Exception) -> Violation:
    """The finding for an exception that came out of the target (or, worse, out of the harness).

    `context` is None if the target could not even be opened.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{importable(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else "nowhere"
    function = frames[-1].name if frames else ""
    what = str(error).splitlines()[0] if str(error) else ""
    when = f"event {context.event_index}, {context.event_kind}" if context else "while it was opened"
    return Violation(
        oracle="CRASH",
        field=f"{type(error).__name__}-{function}".strip("-<>"),
        message=f"CRASH: the target raised {type(error).__name__}: {what} at {where} ({when})",
        expected="no exception",
        observed="".join(traceback.format_exception(error))[-4000:],
        step=context.step if context else -1,
        event=context.event_index if context else 0,
        event_kind=context.event_kind if context else "open",
    )


def importable(filename: str) -> str:
    """A source file as seen from where it is imported: what a report says must not depend on whose machine ran it."""
    roots = [*sys.path, str(Path(__file__).parents[1])]
    found = [root for root in roots if root and Path(filename).is_relative_to(root)]
    return str(Path(filename).relative_to(max(found, key=len))) if found else filename


def ended_request(context: Context, name: str) -> Violation:
    """The finding for a step that contains a request which ended, was aborted, or never arrived."""
    return Violation(
        oracle="M9",
        field="ended",
        message=f"M9: a step was planned for {name}, which has ended (step {context.step})",
        expected="only live requests",
        observed=name,
        step=context.step,
        event=context.event_index,
        event_kind=context.event_kind,
        request=name,
    )
