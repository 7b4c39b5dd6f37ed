"""The species that a campaign's traces have shown, with those of earlier campaigns in the folder if they drew from the
same distribution.

Only traces that are drawn independently of each other and of what was found count. None are with Hypothesis, which
varies its own earlier examples, nor on targets on which some traces share a drawn configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import structs

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import TraceError
from ..campaign_summary import Seen, Summary
from ..risk.species_counts import Draws, SavedSpecies, SpeciesCounts, Stream, save_species, trace_id, up_to_date


def check_independent(capabilities: Capabilities) -> None:
    """Raise TraceError if nothing can be estimated from the traces of a campaign."""
    if (shared := capabilities.traces_per_configuration) > 1:
        raise TraceError(f"--until-risk: {shared} traces share a drawn configuration on this target; use another limit")


class CampaignSpecies:
    """The species so far. The campaign's lock guards it."""

    def __init__(self, folder: Path, stream: Stream, seed: int, shard: str) -> None:
        self._folder, self._stream = folder, stream
        self._counts = SpeciesCounts()
        self._earlier: Sequence[Draws] = ()
        """Earlier campaigns in this folder."""
        self._own = Draws(seed, shard, 0, 0)
        self._changed = True

    def resume(self, saved: SavedSpecies | None, state: Summary) -> None:
        """Go on with what this campaign had seen before it was killed; from nothing if it kept no species."""
        if saved and saved.stream == self._stream and (draws := up_to_date(saved, state)):
            self._counts.merge(saved)
            self._earlier, self._own = draws[:-1], draws[-1]

    def follow(self, saved: SavedSpecies | None, state: Summary) -> None:
        """Add to what the campaigns in this folder have seen. Start over where another stream was drawn, or where the
        traces of a seed would count twice."""
        if saved is None or saved.stream != self._stream or self._own.seed in {one.seed for one in saved.draws}:
            return
        if draws := up_to_date(saved, state):
            self._counts.merge(saved)
            self._earlier = draws

    def count(self, traces: int, failing: int) -> None:
        """Count traces that ran."""
        own = self._own
        self._own = structs.replace(own, traces=own.traces + traces, failing=own.failing + failing)

    def add(self, species: Iterable[int], index: int) -> None:
        """Note what a trace has shown."""
        self._changed |= self._counts.add(species, trace_id(self._own.seed, index))

    def seen(self) -> Seen:
        """Return the totals."""
        return self._counts.seen([*self._earlier, self._own])

    def save(self) -> None:
        """Write the file if it lacks any species. Raises OSError."""
        if self._changed:
            save_species(self._folder, self._counts.saved(self._stream, [*self._earlier, self._own]))
            self._changed = False
