"""The corpus of a campaign's folder: a few traces for each reached state, run first by every later campaign.

    OUT/corpus/DIGEST.json

A new build of the engine meets all rare states within seconds, instead of by luck. Distilled as it goes: a trace stays
only if it reaches a state that fewer than `PER_STATE` kept ones reach, and since every campaign starts by running the
corpus, it is distilled anew against the present engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ...targets.base.trace import Trace, TraceError
from ..findings.store import OutputError
from ..traces.files import encode_trace, load_trace, write_atomically

PER_STATE = 2
BROKEN_SUFFIX = ".broken"


class CampaignCorpus:
    """The corpus on disk. Methods raise OutputError; call them under one lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "corpus"
        self._reaching: dict[str, set[str]] = {}
        """State -> names of the kept traces that reach it."""

    def files(self) -> list[Path]:
        """What is there."""
        return sorted(self.folder.glob("*.json"))

    def wanted(self, states: list[str]) -> list[str]:
        """Those of the states that too few kept traces reach."""
        return [state for state in states if len(self._reaching.get(state, ())) < PER_STATE]

    def load(self, path: Path) -> Trace | str:
        """A trace, or why it is none; a broken file is put aside."""
        try:
            return load_trace(path)
        except TraceError as error:
            self._replace(path, path.with_suffix(BROKEN_SUFFIX))
            return f"{error}; put aside as {path.with_suffix(BROKEN_SUFFIX).name}"

    def offer(self, trace: Trace, reached: Mapping[str, int], states: list[str], path: Path | None = None) -> None:
        """Keep a trace if it reaches something wanted; else forget its file, if it has one."""
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

    def _replace(self, path: Path, new: Path) -> None:
        try:
            path.replace(new)
        except OSError as error:
            raise OutputError(f"cannot put {path} aside: {error.strerror}") from error
