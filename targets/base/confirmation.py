"""What a real model on a device shows of a failing trace: the interface behind `hybridfuzz confirm`.

`targets/ENGINE/confirmation.py` may offer, without importing the engine:

    FILLS                      ways to fill unused memory
    forms(trace)               the trace with sizes that real models have, in several forms, the plainest first
    choices(trace)             options of the configurations to run, () if no real model takes the trace
    configured(trace, options) the trace with these options
    witness(trace)             a script of the engine's public API alone; TargetError if it cannot express the trace
    computed(factory, trace)   `Rows`: runs the trace to the end of all its requests
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from .trace import Trace

ALONE = "alone"
Rows = dict[tuple[str, int], dict[str, Any]]
"""(request, position) -> log-probabilities after that token by fill, and those of the same tokens alone (`ALONE`), None
where unused memory decides them."""


class Wanted(Struct, frozen=True):
    """Run each trace once for each choice of options; with `until_met` up to the first violation."""

    spec: str
    traces: Sequence[Trace]
    choices: Sequence[Mapping[str, str]]
    until_met: bool = False


class Shown(Struct, frozen=True):
    """One trace in one configuration.

    trace      its index in `Wanted.traces`
    setup      the configuration in a few words
    signature, message  of the violation, "" if there is none
    request    a request that is affected, "" if none is
    start      position of the request's first greedy token
    alone      greedy tokens of that request alone in an empty engine; -1 where unused memory decides it
    batch      its greedy tokens in the trace, for each fill; -1 among NaN
    distance   largest difference of a log-probability from the request alone, -1 if one is NaN
    refused    why the engine does not take this configuration, "" if it does
    """

    trace: int
    setup: str
    signature: str = ""
    message: str = ""
    request: str = ""
    start: int = 0
    alone: Sequence[int] = ()
    batch: Mapping[str, Sequence[int]] = {}
    distance: float = 0.0
    refused: str = ""
