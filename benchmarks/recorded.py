"""Long measurements that can be cut and continued: each run is a line of JSON on disk as soon as it is done.

A run is asked for by (mutant, seed, variant); the variant says what is different in it. A file that already holds it
answers for it, so the same command with the same file goes on where it was stopped, and a file of one machine must not
be continued on another if its seconds are to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, as_completed
from pathlib import Path

import msgspec

from hybridfuzz.harness.measure.detection.statistics import Detection


class Ask(msgspec.Struct, frozen=True):
    """One run to make: `variant` is a source of traces, or what is taken away."""

    mutant: str
    seed: int
    variant: str = ""


class Line(msgspec.Struct, frozen=True):
    """One line of the file."""

    ask: Ask
    detection: Detection


class Record:
    """Runs so far; without a path they are only remembered."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.runs: dict[Ask, Detection] = {}
        if path and path.exists():
            text = path.read_bytes()
            complete = text[: text.rfind(b"\n") + 1]
            self.runs = {line.ask: line.detection for line in msgspec.json.Decoder(Line).decode_lines(complete)}
            path.write_bytes(complete)

    def measure(
        self, asked: Iterable[Ask], detect: Callable[[Ask, float], Detection], seconds: float, executor: Executor
    ) -> list[Detection]:
        """The detections of `asked`, in its order; what the file lacks is run, `seconds` of CPU time each at most."""
        asked = list(asked)
        missing = [ask for ask in dict.fromkeys(asked) if ask not in self.runs]
        futures = {executor.submit(detect, ask, seconds): ask for ask in missing}
        for future in as_completed(futures):
            self._add(futures[future], future.result())
        return [self.runs[ask] for ask in asked]

    def _add(self, ask: Ask, detection: Detection) -> None:
        self.runs[ask] = detection
        if self.path:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(Line(ask, detection)) + b"\n")
