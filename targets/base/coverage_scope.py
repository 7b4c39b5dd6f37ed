"""Modules of an engine that hold its caches, and their functions that traces do not have to reach.

An engine declares both in `coverage.toml`, beside its adapter or, for `python:MODULE:NAME`, beside the module:

    modules = ["vllm/v1/core/sched/scheduler.py", "vllm/v1/worker/gpu/*.py"]

    [[excluded]]
    reason = "structured output: changes which tokens are sampled, not what is cached"
    functions = ["vllm/v1/core/sched/scheduler.py::Scheduler.get_grammar_bitmask"]

    [excluded.branches]
    "vllm/v1/core/sched/scheduler.py::Scheduler.schedule" = ["if self.is_encoder_decoder"]

A module is a path below the folder that the engine is imported from. * stands for anything in names of modules (not
across folders) and of functions. A branch belongs to one function, named without *; its own name is the line that
leads to it as `ast.unparse` writes it, without the colon (`engine_source.branches`). Triton kernels count with
`kernels = true` only: it is for an adapter that reports their lines (`translated_lines`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec import Struct

from .trace import TraceError

SCOPE_FILE = "coverage.toml"


class Exclusion(Struct, frozen=True, forbid_unknown_fields=True):
    """Functions, as MODULE::QUALIFIED.NAME, and branches of other functions that are left out for one reason."""

    reason: str
    functions: tuple[str, ...] = ()
    branches: dict[str, tuple[str, ...]] = {}


class Scope(Struct, frozen=True, forbid_unknown_fields=True):
    """What counts for the coverage of an engine."""

    modules: tuple[str, ...]
    excluded: tuple[Exclusion, ...] = ()
    kernels: bool = False

    def patterns(self) -> Iterator[tuple[str, str]]:
        """Yield (pattern of excluded functions, reason)."""
        for exclusion in self.excluded:
            for pattern in exclusion.functions:
                yield pattern, exclusion.reason

    def branches(self) -> Iterator[tuple[str, str, str]]:
        """Yield (function, branch of it, reason)."""
        for exclusion in self.excluded:
            for function, branches in exclusion.branches.items():
                for branch in branches:
                    yield function, branch, exclusion.reason

    def reason(self, function: str) -> str:
        """Return the reason for which a function (MODULE::QUALIFIED.NAME) is left out, "" if it counts."""
        return next((reason for pattern, reason in self.patterns() if fnmatchcase(function, pattern)), "")


def read_scope(path: Path) -> Scope:
    """Read a `coverage.toml`. Raises TraceError if it cannot be used."""
    try:
        scope = msgspec.toml.decode(path.read_bytes(), type=Scope)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # also of msgspec and of Unicode
        raise TraceError(f"{path}: {error}") from None
    if not scope.modules:
        raise TraceError(f"{path}: modules is empty")
    for pattern, reason in scope.patterns():
        _check(path, pattern, reason)
    for function, branch, reason in scope.branches():
        _check(path, function, reason)
        if not branch.strip():
            raise TraceError(f"{path}: {function!r}: expected the names of branches")
    return scope


def _check(path: Path, function: str, reason: str) -> None:
    module, _, name = function.partition("::")
    if not (module.endswith(".py") and name and reason.strip()):
        raise TraceError(f"{path}: {function!r}: expected MODULE.py::QUALIFIED.NAME, with a reason")
