"""Failing traces that are kept until there is time to look into them.

    OUT/waiting/SEED-INDEX.json

Each is counted for the finding of its signature when it is kept; the campaign's state lists it (`Summary.waiting`). A
campaign that goes on, and the next one in the folder, look into what is left. At most `KEPT_MAX` are kept, of a symptom
those among the first `PER_SYMPTOM` or, if they are not `familiar`, `UNFAMILIAR_PER_SYMPTOM`; others are only counted. A
file stays as long as the state on disk lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from ...targets.base.trace import Trace
from ..campaign_summary import Waiting
from ..draw.trace_files import save_trace
from ..group.findings.finding_store import WAITING_FOLDER, OutputError, make_folder

KEPT_MAX = 1000
PER_SYMPTOM, UNFAMILIAR_PER_SYMPTOM = 50, 500
"""After so many failures of a symptom no more of them are kept: familiar ones, unfamiliar ones."""
EXPLAINED_ENOUGH = 8
"""Once known bugs have explained so many traces of a symptom, and all that were looked at, ever fewer are."""
Symptom = tuple[str, str]
"""Signature, and how the value that is wrong is related to the request that it harms (`still_fails`)."""


class Backlog:
    """The traces that wait. Call its methods under one lock."""

    def __init__(self, folder: Path, waiting: Sequence[Waiting]) -> None:
        self.folder = folder / WAITING_FOLDER
        self._waiting = {(one.seed, one.index): one for one in waiting if self.path(one).exists()}
        self._symptoms = Counter[Symptom]()
        self._explained = Counter[Symptom]()
        self._unexplained = set[Symptom]()
        self._done: list[Waiting] = []
        """Looked into; the state on disk may still list them."""

    def path(self, one: Waiting) -> Path:
        """Return where a trace lies."""
        return self.folder / f"{one.seed}-{one.index}.json"

    def seen(self, symptom: Symptom) -> int:
        """Count a failing trace of a symptom. Return how many there were before it."""
        self._symptoms[symptom] += 1
        return self._symptoms[symptom] - 1

    def compared(self, symptom: Symptom, *, is_known: bool) -> None:
        """Note whether known bugs explain a trace of a symptom."""
        self._explained[symptom] += is_known
        if not is_known:
            self._unexplained.add(symptom)

    def is_due(self, symptom: Symptom, seen: int) -> bool:
        """Return True if a trace is to be looked into in this campaign, `seen` others being before it."""
        is_known = self._explained[symptom] >= EXPLAINED_ENOUGH and symptom not in self._unexplained
        return not is_known or seen.bit_count() == 1

    def keep(self, one: Waiting, symptom: Symptom, trace: Trace, *, is_familiar: bool = True) -> Waiting | None:
        """Keep a trace. Return its entry, None if there is no room. Raises OutputError.

        More unfamiliar ones are kept than familiar ones (`familiar`).

        One that the campaign did not draw has no number: it gets a negative one of its own.
        """
        most = PER_SYMPTOM if is_familiar else UNFAMILIAR_PER_SYMPTOM
        if len(self._waiting) >= KEPT_MAX or self._symptoms[symptom] > most:
            return None
        while one.index < 0 and self.path(one).exists():
            one = structs.replace(one, index=one.index - 1)
        make_folder(self.folder.parent, WAITING_FOLDER)
        try:
            save_trace(trace, self.path(one))
        except OSError as error:
            raise OutputError(f"cannot write {self.path(one)}: {error.strerror}") from error
        self._waiting[one.seed, one.index] = one
        return one

    def drop(self, one: Waiting) -> None:
        """List a trace no longer: it was looked into."""
        self._waiting.pop((one.seed, one.index), None)
        self._done.append(one)

    def sweep(self) -> None:
        """Remove the files of traces that were looked into, once the state on disk does not list them."""
        while self._done:
            one = self._done.pop()
            if (one.seed, one.index) not in self._waiting:
                self.path(one).unlink(missing_ok=True)

    def entries(self) -> list[Waiting]:
        """Return what waits, in the order in which it came."""
        return list(self._waiting.values())
