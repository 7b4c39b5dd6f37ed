"""One trace as one pytest item. Its id is readable: hybridfuzz::corpus/NAME, hybridfuzz::search/0042."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from .verdicts import ItemVerdict

Check = Callable[[str], ItemVerdict]
"""Runs the item with this name."""


class GateFailure(Exception):
    """A violation. pytest shows its text only, without a traceback through hybridfuzz."""


def as_printed(text: str) -> ReprExceptionInfo:
    """Return a failure that pytest prints as this text, with the first line alone in its summary.

    Where the variable CI is set, pytest does not cut the messages of its summary, and would print the text twice.
    """
    printed = ReprTraceback([ReprEntryNative([f"{text}\n"])], extraline=None, style="native")
    return ReprExceptionInfo(printed, ReprFileLocation("", 0, text.partition("\n")[0]))


class TraceItem(pytest.Item):
    """A test item that runs one trace."""

    def __init__(self, *, check: Check, where: Path, strict: bool, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.verdict: ItemVerdict | None = None
        self._check = check
        self._where = where
        self._strict = strict
        self.add_marker("hybridfuzz")

    def runtest(self) -> None:
        """Run the trace: pass, skip, xfail, or raise GateFailure."""
        self.verdict = verdict = self._check(self.name)
        if verdict.state == "skipped" or (verdict.state == "misfit" and not self._strict):
            pytest.skip(verdict.text)
        if verdict.state == "known":
            pytest.xfail(verdict.text)
        if verdict.state != "clean":  # also a known one under --runxfail
            raise GateFailure(verdict.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of a GateFailure; other exceptions keep their traceback."""
        if isinstance(excinfo.value, GateFailure):
            return as_printed(str(excinfo.value))
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the trace's file (the root folder for a drawn trace) and the title.

        The title differs from the end of the id: otherwise pytest prints the id with each dot replaced by ::, which it
        does not accept as an argument.
        """
        return self._where, None, f"hybridfuzz {self.name}"


class GateCollector(pytest.Collector):
    """The collector of all items."""

    def __init__(self, *, traces: list[tuple[str, Path, Check]], strict: bool, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._traces = traces
        self._strict = strict

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """Return one item per trace."""
        return [
            TraceItem.from_parent(self, name=name, where=path, check=check, strict=self._strict)
            for name, path, check in self._traces
        ]
