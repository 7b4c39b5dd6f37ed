"""Findings for exceptions of a target: they name the exception's type and the innermost function."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from ..oracles.base import Context
from ..quoting import DETAILS_MAX, clean, one_line
from ..traces.violation import Violation, cleaned

FIRST_LINE_MAX = 1_000
"""Characters that a finding's message keeps of an exception's first line."""


def crash_violation(context: Context | None, error: Exception) -> Violation:
    """Return the finding for an exception that the target raised (or, worse, the harness).

    `context` is None if the target could not be opened. Messages are cleaned and cut: they may be megabytes, no valid
    Unicode, or raise themselves.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{importable(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}" if frames else "nowhere"
    function = frames[-1].name if frames else ""
    text = text_of(error)
    what = one_line((text.splitlines() or [""])[0], FIRST_LINE_MAX)
    when = f"event {context.event_index}, {context.event_kind}" if context else "while it was opened"
    return cleaned(
        Violation(
            oracle="CRASH",
            field=f"{type(error).__name__}-{function}".strip("-<>"),
            message=f"CRASH: the target raised {type(error).__name__}: {what} at {where} ({when})",
            expected="no exception",
            observed=_formatted(error, text),
            step=context.step if context else -1,
            event=context.event_index if context else 0,
            event_kind=context.event_kind if context else "open",
        )
    )


def text_of(error: BaseException) -> str:
    """Return an exception's message, also if its `__str__` fails."""
    try:
        return str(error)
    except Exception as broken:
        return f"(its message cannot be printed: {type(broken).__name__})"


def _formatted(error: Exception, text: str) -> str:
    """Return the end of the traceback, with the message cut."""
    try:
        stack = "".join(traceback.format_tb(error.__traceback__))
        causes = [one for one in (error.__cause__, error.__context__) if one is not None]
        before = f"(while handling {type(causes[0]).__name__}: {clean(text_of(causes[0]), 500)})\n" if causes else ""
    except Exception:
        stack, before = "", ""
    last = f"{type(error).__name__}: {clean(text, DETAILS_MAX // 4)}\n"
    before += "Traceback (most recent call last):\n" if stack else ""
    return f"{before}{stack[-(DETAILS_MAX - len(last) - len(before)) :]}{last}"


def importable(filename: str) -> str:
    """Return a source file relative to the folder that it is imported from, so that reports name no machine's paths."""
    roots = [*sys.path, str(Path(__file__).parents[1])]
    found = [root for root in roots if root and Path(filename).is_relative_to(root)]
    return str(Path(filename).relative_to(max(found, key=len))) if found else filename


def ended_request(context: Context, name: str) -> Violation:
    """Return the finding for a step that contains a request which ended, was aborted, or never arrived."""
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
