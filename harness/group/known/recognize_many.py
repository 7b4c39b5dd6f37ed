"""Names the known bugs that many failing traces show, all at once, for a search that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....targets.base.trace import Trace
from ...campaign_summary import Cause
from ...judge.violation import Violation
from ..reduction.still_fails import UNEXPLAINED
from .recognition import Explained, Recognizer


class Naming:
    """Opens what recognizes failures when the first ones come. `stop` may be called from another thread."""

    def __init__(self, open_recognizer: Callable[[], Recognizer | None]) -> None:
        self._open = open_recognizer
        self._recognizer: Recognizer | None = None

    def names(self, failing: Sequence[tuple[Trace, Violation]]) -> list[Cause | None]:
        """Return the known bug that each failing trace shows: one without a name where no single one does, None where
        the fixes of all do not silence it. [] if there are no known bugs to compare with. Raises what a worker raises.
        """
        recognizer = self._recognizer = self._open()
        if recognizer is None:
            return []
        try:
            explained = [
                None if violation.oracle in UNEXPLAINED else recognizer.explains(trace, violation)
                for trace, violation in failing
            ]
            settled: dict[Explained, Cause] = {}
            waiting = [one for one in explained if one]
            for one in waiting:  # what a search ends with is short
                one.tries_few = True
            while recognizer.can_prove(waiting):
                settled.update(recognizer.prove(waiting))
                waiting = [one for one in waiting if one not in settled]
        finally:
            recognizer.close()
        return [settled[one] if one else None for one in explained]

    def stop(self) -> None:
        """End its processes; `names` then raises Stopped."""
        if self._recognizer:
            self._recognizer.stop()
