"""Factories for the built-in memory of sequences and its mutants."""

from __future__ import annotations

from ..base.protocol import Capabilities, Target
from ..base.trace import Config
from .client_events import EVENTS
from .mutants import MUTANTS, titles
from .target import SequencesTarget

OPTIONS: dict[str, tuple[str, ...]] = {
    "planes": ("3", "1", "0"),
    "ubatch": ("64", "16", "4"),
    "idle": ("kept", "kept", "saved", "copies"),
    "window": ("0", "0", "8"),
}
"""Switches of a trace.

planes  snapshots of a recurrent state, so that the newest tokens can be removed
ubatch  most tokens of a part of a batch
idle    a parked session keeps its sequence, or its state is saved and restored into another one; or (copies) it
        keeps its sequence, and a copy of it is saved at once; the copy of a running row is also restored at once
window  tokens that attention reaches back, or 0 for all
"""
CAPABILITIES = Capabilities(
    events=EVENTS,
    modes=("none",),
    observes=frozenset({"caches", "leftovers"}),
    block_sizes=((8, 1), (16, 1), (4, 1)),
    group_counts=((1, 1),),
    conv_widths=(4, 2),
    max_speculative_tokens=3,
    speculative_modes=("none",),
    variable_drafts=True,
    options=OPTIONS,
    features=frozenset({"chunks"}),
    lacks=frozenset({"zeroing", "drafts-past-end"}),
    engine=("hybridfuzz.targets.sequences",),
    traces_per_second=40.0,
)


class SequencesFactory:
    """Factory for one class of target."""

    capabilities = CAPABILITIES

    def __init__(self, name: str, target_class: type[SequencesTarget]) -> None:
        self.name = name
        self.target_class = target_class

    def supports(self, config: Config) -> str:
        """Accept every configuration that the capabilities allow."""
        return ""

    def open(self, config: Config) -> Target:
        """Return a new client and memory for one trace."""
        return self.target_class(config)


def variants() -> dict[str, str]:
    """Return the title of each mutant, by slug."""
    return titles()


def make_factory(slug: str = "") -> SequencesFactory:
    """Return the factory of the correct memory ("") or of the mutant `slug`."""
    return SequencesFactory(f"sequences:{slug}" if slug else "sequences", MUTANTS[slug] if slug else SequencesTarget)
