"""Counts in how many traces each species was seen: in one, in two, or more often.

A species is a number below 2**63. The traces that showed it are kept as long as there are at most two. So a trace that
is added again changes nothing, and the order does not matter: a campaign that was killed runs some traces again, and
shards and workers can be merged.

    OUT/species.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from ..campaign_summary import Number as Count
from ..campaign_summary import Seen, Summary
from ..draw.trace_files import read_json, write_atomically

SPECIES_FILE = "species.json"
SPECIES_MAX = 1 << 16
"""Beyond that nothing is counted, and there is no estimate."""
CURE = "; move it away, or choose another folder"
Number = Annotated[int, Meta(ge=0)]


class Stream(Struct, frozen=True):
    """What traces are drawn for, and by what: those of one stream have one distribution.

    version       of the engine, with the number of fixes in effect
    hybridfuzz    its version: another one may draw otherwise
    avoided       known bugs whose circumstances are drawn less often
    """

    target: str
    version: str
    overrides: Mapping[str, str]
    workload: Mapping[str, str]
    hybridfuzz: str
    avoided: tuple[str, ...] = ()


class Draws(Struct, frozen=True):
    """The traces that a campaign, or a shard of one, has drawn and run, and how many of them failed."""

    seed: int
    shard: str
    traces: Count
    failing: Count


class SavedSpecies(Struct, frozen=True):
    """The content of the file. Numbers are ascending.

    draws           the campaigns whose traces count, the latest last: of that one the state has the newer totals
    once, twice     (species, trace) and (species, trace, trace)
    often           all other species
    is_full         True if there were more
    """

    stream: Stream
    draws: Sequence[Draws]
    once: Sequence[tuple[Number, Number]]
    twice: Sequence[tuple[Number, Number, Number]]
    often: Sequence[Number]
    is_full: bool = False


def trace_id(seed: int, index: int) -> int:
    """Return a number for a trace: its own among those of all seeds, but for a collision of 64 bits."""
    return int.from_bytes(blake2b(f"{seed}:{index}".encode(), digest_size=8).digest(), "big")


class SpeciesCounts:
    """The species so far."""

    def __init__(self) -> None:
        self._sums: Seen | None = None
        """What `seen` has returned, until something changes."""
        self._traces: dict[int, tuple[int, ...]] = {}
        """The traces of each species, none for one that was seen in more than two."""
        self.is_full = False

    def add(self, species: Iterable[int], trace: int) -> bool:
        """Note the species of a trace. Return True if that changes anything."""
        changed = False
        for one in species:
            known = self._traces.get(one)
            if known is None and len(self._traces) >= SPECIES_MAX:
                changed |= not self.is_full
                self.is_full = True
            elif known is None:
                self._traces[one] = (trace,)
                changed = True
            elif known and trace not in known:
                self._traces[one] = (*known, trace) if len(known) == 1 else ()
                changed = True
        if changed:
            self._sums = None
        return changed

    def merge(self, saved: SavedSpecies) -> None:
        """Add what other traces of the stream have shown."""
        for one, trace in saved.once:
            self.add([one], trace)
        for one, first, second in saved.twice:
            self.add([one], first)
            self.add([one], second)
        self._sums = None
        self.is_full |= saved.is_full
        for one in saved.often:
            if one in self._traces or len(self._traces) < SPECIES_MAX:
                self._traces[one] = ()
            else:
                self.is_full = True

    def seen(self, draws: Sequence[Draws]) -> Seen:
        """Return the counts, for the traces of these campaigns."""
        self._sums = self._sums or self._summed()
        traces, failing = sum(one.traces for one in draws), sum(one.failing for one in draws)
        return structs.replace(self._sums, traces=traces, failing=failing, campaigns=len(draws))

    def _summed(self) -> Seen:
        once = Counter(known[0] for known in self._traces.values() if len(known) == 1)
        twice = Counter(tuple(sorted(known)) for known in self._traces.values() if len(known) == 2)
        return Seen(
            traces=0,
            failing=0,
            species=len(self._traces),
            once=once.total(),
            twice=twice.total(),
            alone=len(once),
            paired=len(twice),
            once_squares=sum(count**2 for count in once.values()),
            twice_squares=sum(count**2 for count in twice.values()),
            is_full=self.is_full,
        )

    def saved(self, stream: Stream, draws: Sequence[Draws]) -> SavedSpecies:
        """Return the content of a file."""
        known = sorted(self._traces.items())
        return SavedSpecies(
            stream=stream,
            draws=draws,
            once=[(one, traces[0]) for one, traces in known if len(traces) == 1],
            twice=[(one, *sorted(traces)) for one, traces in known if len(traces) == 2],  # type: ignore[misc]
            often=[one for one, traces in known if not traces],
            is_full=self.is_full,
        )


def save_species(folder: Path, saved: SavedSpecies) -> None:
    """Write the file. Raises OSError."""
    write_atomically(folder / SPECIES_FILE, msgspec.json.encode(saved))


def load_species(folder: Path) -> SavedSpecies | None:
    """Return the species of a campaign's folder, None where there are none. Raises TraceError for a broken file."""
    return read_json(folder / SPECIES_FILE, SavedSpecies, "species", CURE)


def up_to_date(saved: SavedSpecies, state: Summary) -> list[Draws]:
    """Return the campaigns of a file with the totals that the state of its folder has; none if it is of another one.

    A campaign that was killed before it wrote its first state is left out.
    """
    if state.seen is None:
        return []
    draws = list(saved.draws)
    while draws and (draws[-1].seed, draws[-1].shard) != (state.seed, state.shard):
        draws.pop()
    earlier = draws[:-1]
    traces = state.seen.traces - sum(one.traces for one in earlier)
    failing = state.seen.failing - sum(one.failing for one in earlier)
    return [*earlier, Draws(state.seed, state.shard, traces, failing)] if draws and 0 <= failing <= traces else []
