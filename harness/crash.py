"""A target that raises: the finding names the exception's type and the innermost function of the target."""

from __future__ import annotations

import traceback

from .oracles.base import Context
from .violation import Violation


def crash_violation(context: Context, error: Exception) -> Violation:
    """The finding for an exception that came out of the target (or, worse, out of the harness)."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "nowhere"
    function = frames[-1].name if frames else ""
    return Violation(
        oracle="CRASH",
        field=f"{type(error).__name__}-{function}".strip("-<>"),
        message=f"CRASH: the target raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} "
        f"at {where} (event {context.event_index}, {context.event_kind})",
        expected="no exception",
        observed="".join(traceback.format_exception(error))[-4000:],
        step=context.step,
        event=context.event_index,
        event_kind=context.event_kind,
    )
