"""One trace as one pytest item. Its id is readable: hybridfuzz::corpus/NAME, hybridfuzz::search/0042."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .judge import ItemVerdict


class GateFailure(Exception):
    """A violation; the text is all that pytest shows, without a traceback through us."""


class TraceItem(pytest.Item):
    """Runs one trace when pytest says so."""

    def __init__(self, *, check: Callable[[], ItemVerdict], where: Path, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.verdict: ItemVerdict | None = None
        self._check = check
        self._where = where
        self.add_marker("hybridfuzz")

    def runtest(self) -> None:
        """Pass, skip, xfail or raise."""
        self.verdict = verdict = self._check()
        if verdict.state == "skipped":
            pytest.skip(verdict.text)
        if verdict.state == "known":
            pytest.xfail(verdict.text)
        if verdict.state != "clean":  # also a known one under --runxfail
            raise GateFailure(verdict.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Ours as it is; anything else with its traceback."""
        if isinstance(excinfo.value, GateFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The trace's file, or the root folder for one that is drawn.

        Where the title is the end of the id, pytest shows the id with :: for each dot, and nobody could give it again.
        """
        return self._where, None, f"hybridfuzz {self.name}"


class GateCollector(pytest.Collector):
    """The parent of all items."""

    def __init__(self, *, traces: list[tuple[str, Path, Callable[[], ItemVerdict]]], **keywords: Any) -> None:
        super().__init__(**keywords)
        self._traces = traces

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """All of them."""
        return [TraceItem.from_parent(self, name=name, where=path, check=check) for name, path, check in self._traces]
