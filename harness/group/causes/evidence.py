"""What is known about the cause of a failure: plain data, as JSON beside each finding and in `known.toml`.

Signatures are symptoms: one cause may break several invariants, and several causes may break the same one. Evidence is
collected by running variants of a failing trace on the engine itself (`investigate`, `spectrum`); whether two failures
have one cause is decided from their evidence (`same_cause`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from ...draw.avoid import Circumstances

EVIDENCE_SUFFIX = ".evidence"
"""`findings/NAME.evidence` holds the `Evidence` of the trace in `findings/NAME.json`, as JSON."""
EXTRA_TRACES_MAX = 4
"""Further traces kept for a finding, `findings/NAME.also-1.json` and so on: those that differ most from each other."""


class Place(Struct, frozen=True):
    """One function of the engine, and how suspicious it is.

    file      relative to the engine's import root, such as "vllm/v1/core/sched/scheduler.py"
    function  its qualified name in that file
    line      the line at which failing and passing runs part, 0 for a returned value; if they do not part there, the
              first line that the failing run executed
    score     its share of the evidence (`spectrum`), 0 to 1
    """

    file: str
    function: str
    line: int
    score: float


class Condition(Struct, frozen=True, forbid_unknown_fields=True):
    """The circumstances under which a cause shows, learned from the traces of one finding.

    A failing run satisfies it if the configuration has one of the listed values for each switch, and every fact held
    in the steps up to the violation. A condition without switches and facts holds for no run.

    switches  configuration switch -> the values under which the failure was seen; only switches that are necessary
    facts     facts of the run (`facts`) that every failing trace has in common and that passing variants lack
    traits    the same, of what can be read from a trace without running it (`draw.avoid`)
    """

    switches: Mapping[str, Sequence[str]] = {}
    facts: Sequence[str] = ()
    traits: Sequence[str] = ()

    @property
    def circumstances(self) -> Circumstances:
        """The part that can be read from a trace without running it."""
        return Circumstances(self.switches, self.traits)


class Evidence(Struct, frozen=True):
    """What one failing trace, reduced, shows about its cause.

    signature   first violation of the reduced trace
    relation    its message without names and numbers
    switches    configuration switch -> value, of those that are necessary: another value silences the reduced trace
    events      kinds of events in the reduced trace, in order; each is necessary
    facts       facts of the run at the violation and in the step before (`facts`)
    origins     facts about where the wrong value came from (`origins`)
    needed      facts and traits that some passing neighbour lacks
    traits      what can be read from the trace without running it
    values      configuration switch -> value, of all switches
    votes       "file:function:line" at which passing neighbours decide otherwise -> share of their votes (`spectrum`)
    places      the most suspicious functions, most suspicious first
    runs        number of runs that it took to collect this
    complete    False if the budget ended the collection early
    """

    signature: str
    relation: str = ""
    switches: Mapping[str, str] = {}
    events: Sequence[str] = ()
    facts: Sequence[str] = ()
    origins: Sequence[str] = ()
    needed: Sequence[str] = ()
    traits: Sequence[str] = ()
    values: Mapping[str, str] = {}
    votes: Mapping[str, float] = {}
    places: Sequence[Place] = ()
    runs: int = 0
    complete: bool = True


class FindingEvidence(Struct, frozen=True):
    """The content of `findings/NAME.evidence`.

    evidence   of the smallest trace first, then of each further trace
    condition  learned from all of them
    """

    evidence: Sequence[Evidence]
    condition: Condition = Condition()

    @property
    def places(self) -> tuple[Place, ...]:
        """The functions that its traces suspect, by the sum of their scores; each with its best line and mean score."""
        places: dict[tuple[str, str], list[Place]] = {}
        for each in self.evidence:
            for place in each.places:
                places.setdefault((place.file, place.function), []).append(place)
        ranked = sorted(places.values(), key=lambda found: -sum(place.score for place in found))
        return tuple(
            structs.replace(
                max(found, key=lambda place: place.score),
                score=round(sum(place.score for place in found) / len(self.evidence), 3),
            )
            for found in ranked
        )
