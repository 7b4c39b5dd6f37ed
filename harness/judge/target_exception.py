"""Findings for exceptions: whose fault it is, the exception's type and the innermost function.

    CRASH    the engine raised (where nothing tells engine and adapter apart: the target)
    HANG     the adapter reports that the engine makes no progress inside an event (`EngineStalled`)
    ADAPTER  the adapter raised: of all frames of the two, the innermost one is in the adapter
    RECORD   hybridfuzz raised while it processed what the target reported: the finding names the malformed field

The outermost frame outside of hybridfuzz belongs to the adapter; the engine's packages are declared
(`Capabilities.engine`). Only a CRASH is a finding about the engine.
"""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Literal

from ...targets.base.protocol import EngineError, EngineStalled
from ..quoting import DETAILS_MAX, clean, one_line, without_addresses
from .malformed import Fault
from .oracles.base import Context
from .verdict import Quoted, Value
from .violation import Violation, cleaned

FIRST_LINE_MAX = 1_000
"""Characters that a finding's message keeps of an exception's first line."""
KERNEL_MAX = 200
"""Characters that it keeps of the name of a kernel."""
_KERNEL = re.compile(r"^ *(?:Name of kernel launched that led to failure|Kernel name) *[=:] *(.+)$", re.MULTILINE)
"""A device's fault is reported behind its first line: PyTorch with device-side assertions, core dumps."""
ADAPTER_ORACLES = frozenset({"ADAPTER", "RECORD"})
"""Findings about a target's adapter, not about its engine."""
_PACKAGE = __name__.partition(".")[0]
_OWN = tuple(f"{_PACKAGE}.{name}" for name in ("harness", "reference", "targets.base", "reports"))


class NotATarget(Exception):
    """What a factory opened is no target."""


Owner = Literal["engine", "adapter", "target", "hybridfuzz"]


def owner(error: BaseException, engine: tuple[str, ...]) -> tuple[Owner, str]:
    """Return whose exception it is, and the guilty module. `engine` are the declared packages; without any, engine and
    adapter are one "target"."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    foreign = [module for module in modules if not _within(module, _OWN)]
    if not foreign:
        return "hybridfuzz", modules[-1] if modules else ""
    if not engine:
        return "target", foreign[-1]
    of_engine = next((module for module in reversed(modules) if _within(module, engine)), "")
    if isinstance(error, EngineError):
        return "engine", of_engine or foreign[-1]
    adapter = _package(foreign[0])
    if lacking := _stand_in(error, adapter, engine):
        return "adapter", lacking
    for module in reversed(foreign):
        if _within(module, engine):
            return "engine", module
        if _within(module, (adapter,)):
            return "adapter", module
    return "adapter", foreign[0]


def _stand_in(error: BaseException, adapter: str, engine: tuple[str, ...]) -> str:
    """Return the module of the adapter's class whose object the engine asked for an attribute that it does not have, ""
    for any other error. A class that derives from one of the engine's has what the engine gives it."""
    if not isinstance(error, AttributeError):
        return ""
    bases = [base.__module__ for base in type(error.obj).__mro__]
    return bases[0] if _within(bases[0], (adapter,)) and not any(_within(base, engine) for base in bases) else ""


def has_moved(error: BaseException) -> bool:
    """Return True if an exception of an adapter says that a name of the engine is not where it was, or is not of the
    type that it was. A value of None is none of that: the engine may have lost it."""
    if isinstance(error, AttributeError):
        return error.obj is not None
    return isinstance(error, ImportError) or (isinstance(error, TypeError) and "'NoneType'" not in text_of(error))


def misfit(violation: Violation) -> str:
    """Return what does not fit, and where in the adapter, if a failure shows that this adapter does not fit this
    version of its engine; "" for any other failure. It is the same text for each trace that meets it."""
    if violation.oracle != "ADAPTER" or "moved" not in violation.details:
        return ""
    error, where = violation.details["error"], violation.details["where"]
    return " at ".join(one.text for one in (error, where) if isinstance(one, Quoted))


def is_own(module: str) -> bool:
    """Return True for a module of hybridfuzz that is not a target's."""
    return _within(module, _OWN)


def is_of_target(error: BaseException) -> bool:
    """Return True if a target's code raised an exception: hybridfuzz called it, itself or from a library."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    libraries = sys.stdlib_module_names | {"numpy", "msgspec"}
    return any(not is_own(module) and module.partition(".")[0] not in libraries for module in modules)


def _within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _package(module: str) -> str:
    """Return the package of an adapter's module: `targets`, if it comes with hybridfuzz, with what adapters share; else
    the top."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[:2] == [_PACKAGE, "targets"] else parts[:1])


def crash_violation(
    context: Context | None,
    error: Exception,
    engine: tuple[str, ...] = (),
    outside: Literal["open", "close"] = "open",
) -> Violation:
    """Return the finding for an exception that the target raised.

    `context` is None if that was not in an event, but while it was opened or closed (`outside`). Messages are cleaned
    and cut: they may be megabytes, no valid Unicode, or raise themselves.
    """
    who, module = ("adapter", "") if isinstance(error, NotATarget) else owner(error, engine)
    oracle = "ADAPTER" if who == "adapter" else "CRASH"
    name = (
        f"adapter ({module})" if who == "adapter" and module else f"engine ({module})" if who == "engine" else "target"
    )
    frame = innermost(error.__traceback__, module if who == "adapter" else "")
    where = f"{importable(frame.filename)}:{frame.lineno} in {frame.name}" if frame else "nowhere"
    function = frame.name if frame else ""
    text = text_of(error)
    # An exception without a message, such as most assertions, says nothing; its source line does.
    first_line = (text.splitlines() or [""])[0] or (frame.line or "" if frame else "")
    what = f"{type(error).__name__}: {one_line(first_line, FIRST_LINE_MAX)}"
    if kernel := _KERNEL.search(text.removeprefix(first_line)):
        what += f" (kernel {one_line(kernel[1], KERNEL_MAX)})"
    field = f"{type(error).__name__}-{function.strip('<>')}".strip("-")
    relation = "raised"
    if isinstance(error, NotATarget):
        relation, what = "no-target", one_line(first_line, FIRST_LINE_MAX)
    elif isinstance(error, EngineStalled):
        oracle, field, relation = "HANG", "no-progress", "no-progress"
        what = one_line(first_line, FIRST_LINE_MAX)
    elif isinstance(error, EngineError):  # raised by a stand-in: no exception of the engine's own
        relation, what = "at-fault", one_line(first_line, FIRST_LINE_MAX)
    return cleaned(
        Violation(
            oracle=oracle,
            field=field,
            relation=relation if context else f"{relation}-outside",
            details={
                "who": Quoted(name),
                "error": Quoted(what),
                "where": Quoted(where),
                "moment": "opened" if outside == "open" else "closed",
                **({"moved": "yes"} if who == "adapter" and has_moved(error) else {}),
            },
            observed=Quoted(_formatted(error, text)),
            step=context.step if context else -1,
            event=context.event_index if context else 0,
            event_kind=context.event_kind if context else outside,
        )
    )


def record_violation(context: Context, error: Exception, fault: Fault | None, module: str) -> Violation:
    """Return the finding for a malformed record or view, which `module` reported. `fault` is None if no field is known
    to be wrong, and hybridfuzz itself may be at fault."""
    what = f"{type(error).__name__}: {one_line((text_of(error).splitlines() or [''])[0], FIRST_LINE_MAX)}"
    details: dict[str, Value] = {"who": Quoted(module), "error": Quoted(what)}
    if fault:
        details |= {
            "what": fault.field, "seen": Quoted(one_line(fault.observed, 200)), "wanted": Quoted(fault.expected)
        }  # fmt: skip
    return cleaned(
        Violation(
            oracle="RECORD",
            field=fault.field.replace(".", "-") if fault else type(error).__name__,
            relation="broken-record" if fault else "broken-processing",
            details=details,
            observed=Quoted((f"{fault.observed}\n" if fault else "") + _formatted(error, text_of(error))),
            step=context.step,
            event=context.event_index,
            event_kind=context.event_kind,
        )
    )


def innermost(stack: TracebackType | None, module: str) -> traceback.FrameSummary | None:
    """Return the innermost frame; with a module, the innermost one of it."""
    frames = traceback.extract_tb(stack)
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(stack)]
    of_module = [frame for frame, name in zip(frames, names, strict=True) if name == module]
    return of_module[-1] if of_module else frames[-1] if frames else None


def text_of(error: BaseException) -> str:
    """Return an exception's message, also if its `__str__` fails; without addresses of objects, which each run has
    others of."""
    try:
        return without_addresses(str(error))
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
    ours = str(Path(__file__).parents[2])  # the package; an editable installation has it in a folder of another name
    found = [root for root in (*sys.path, ours) if root and Path(filename).is_relative_to(root)]
    if not found:
        return filename
    root = max(found, key=len)
    inside = Path(filename).relative_to(root)
    return f"{_PACKAGE}/{inside}" if root == ours else str(inside)


def ended_request(context: Context, name: str) -> Violation:
    """Return the finding for a step that contains a request which ended, was aborted, or never arrived."""
    return Violation(
        oracle="M9",
        field="ended",
        relation="planned-after-end",
        step=context.step,
        event=context.event_index,
        event_kind=context.event_kind,
        request=name,
    )
