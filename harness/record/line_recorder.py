"""Records which lines of an engine's cache modules the traces of one worker execute, with coverage.py.

The tracer is on while a trace runs, opening its engine included. Lines that the adapter runs in a translation of its
own (`targets.base.translated_lines`) count as well. Lines are reported as the first lines of their statements, each
once for each worker process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from ...targets.base.translated_lines import TRANSLATED
from .engine_source import files_of, statement_of

if TYPE_CHECKING:
    from coverage import Coverage

LineNumbers = dict[str, list[int]]
"""Lines by module, ascending."""


class LineRecorder:
    """Off until the first span with modules."""

    def __init__(self) -> None:
        self._coverage: Coverage | None = None
        self._modules: dict[str, str] = {}
        """Name by real path."""
        self._statements: dict[str, dict[int, int]] = {}
        self._reported: dict[str, set[int]] = {}

    @contextmanager
    def recording(self, modules: Sequence[str]) -> Iterator[None]:
        """Record lines of modules (`Scope.modules`) that this thread executes; nothing without any."""
        if not modules:
            yield
            return
        if self._coverage is None:
            self._coverage = self._prepare(modules)
        TRANSLATED.reached.clear()
        self._coverage.start()
        try:
            yield
        finally:
            self._coverage.stop()

    def _prepare(self, modules: Sequence[str]) -> Coverage:
        from coverage import Coverage

        TRANSLATED.wanted = True
        self._modules = {realpath(path): name for name, path in files_of(modules).items()}
        tracer = Coverage(data_file=None, config_file=False, include=list(self._modules), messages=False)
        tracer.set_option("run:disable_warnings", ["no-data-collected"])
        return tracer

    def new(self) -> LineNumbers:
        """Return the lines that were reached and have not been returned before."""
        if self._coverage is None:
            return {}
        data, found = self._coverage.get_data(), LineNumbers()
        executed = {file: set(data.lines(file) or ()) for file in data.measured_files()}
        for path, line in TRANSLATED.reached:
            if (file := realpath(path)) in self._modules:
                executed.setdefault(file, set()).add(line)
        for file, lines in executed.items():
            name = self._modules[file]
            if name not in self._statements:
                self._statements[name] = statement_of(Path(file).read_text(encoding="utf-8"))
            first = self._statements[name]
            known = self._reported.setdefault(name, set())
            if new := {first[line] for line in lines if line in first} - known:
                known |= new
                found[name] = sorted(new)
        return found
