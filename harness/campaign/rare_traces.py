"""The corpus of a campaign's folder: a few traces for each reached state; later campaigns run them first.

    OUT/corpus/DIGEST.json

A new build of the engine thus reaches all rare states within seconds. A trace stays only if it reaches a state that
fewer than `PER_STATE` kept ones reach; since every campaign starts by running the corpus, this is decided again for
each build of the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ...targets.base.trace import Trace, TraceError
from ..draw.trace_files import encode_trace, load_trace, write_atomically
from ..group.findings.finding_store import OutputError

PER_STATE = 2
BROKEN_SUFFIX = ".broken"


class CampaignCorpus:
    """The corpus on disk. Methods raise OutputError; call them under one lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "corpus"
        self._reaching: dict[str, set[str]] = {}
        """Names of the kept traces that reach a state, by state."""

    def files(self) -> list[Path]:
        """Return the files of the corpus."""
        return sorted(self.folder.glob("*.json"))

    def wanted(self, states: list[str]) -> list[str]:
        """Return those of the states that too few kept traces reach."""
        return [state for state in states if len(self._reaching.get(state, ())) < PER_STATE]

    def load(self, path: Path) -> Trace | str:
        """Return a trace, or the reason why a file is none; a broken file is put aside."""
        try:
            return load_trace(path)
        except TraceError as error:
            aside = path.with_suffix(BROKEN_SUFFIX)
            try:
                path.replace(aside)
            except OSError as problem:
                return f"{error}; it cannot be put aside: {problem.strerror}"
            return f"{error}; put aside as {aside.name}"

    def offer(self, trace: Trace, reached: Mapping[str, int], states: list[str], path: Path | None = None) -> None:
        """Keep a trace if it reaches a wanted state; else remove its file, if it has one."""
        data = encode_trace(trace)
        name = hashlib.sha256(data).hexdigest()[:16]
        keep = any(reached.get(state) for state in self.wanted(states))
        try:
            if keep:
                for state in states:
                    if reached.get(state):
                        self._reaching.setdefault(state, set()).add(name)
                if path is None or path.stem != name:
                    self.folder.mkdir(exist_ok=True)
                    write_atomically(self.folder / f"{name}.json", data)
            elif path is not None:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to {self.folder}: {error.strerror}") from error
