"""The oracles M1..M9 and S1..S9, in the order in which they judge one record.

base          the context of one run, and the hooks of an oracle
pool          M1 partition, M7 capacity, M9 leaks
cache         M2 hashes, M6 hits, S5 commit
tables        M3 table mirror, M4 dead rows, M5 writers
liveness      M8 progress and publication
state         S1 checkpoints, S2 resume, S3 rollback
memory        S4 taint, S7 NaN
output        S6 output tokens
device_order  S8 the order of device work
batch         S9 plain caches and their batch events
numeric/      the same invariants on bytes
real_model    S4, S6 and S7 on the log-probabilities of a real model

The order decides which violation is reported: a wrong read comes before the wrong token that follows from it.
"""

from __future__ import annotations

from ....targets.base.protocol import Capabilities
from .base import HOOKS, Context, Oracle
from .batch import Rows
from .cache import Commit, Hash, HitValidity
from .device_order import Order
from .liveness import Liveness, Publication
from .memory import Poison, Taint
from .numeric import Numbers
from .output import Output
from .pool import Capacity, Leak, Partition
from .real_model import RealNumbers
from .state import Checkpoint, Continuation
from .tables import DeadRows, TableMirror, Writer

ORACLES: tuple[type[Oracle], ...] = (
    Partition,
    Hash,
    Commit,
    HitValidity,
    Publication,
    Capacity,
    Order,
    TableMirror,
    DeadRows,
    Writer,
    Numbers,
    RealNumbers,
    Taint,
    Continuation,
    Poison,
    Output,
    Checkpoint,
    Rows,
    Liveness,
    Leak,
)

IMPLEMENTED_HOOKS: dict[type[Oracle], frozenset[str]] = {
    oracle: frozenset([hook for hook in HOOKS if getattr(oracle, hook) is not getattr(Oracle, hook)])
    for oracle in ORACLES
}
"""The hooks that each oracle overrides; the others are never called."""


def applicable(capabilities: Capabilities) -> list[str]:
    """Return the ids of the oracles that can run on what a target observes."""
    ids: list[str] = []
    for oracle in ORACLES:
        if oracle.needs <= capabilities.observes:
            ids += oracle.ids
    return sorted(set(ids))


def titles() -> dict[str, str]:
    """Return id -> title, from the class that implements the fewest ids. "a and b" are the titles of two ids."""
    named: dict[str, str] = {}
    for oracle in sorted(ORACLES, key=lambda one: -len(one.ids)):
        parts = oracle.title.split(" and ")
        named |= dict(zip(oracle.ids, parts if len(parts) == len(oracle.ids) else [oracle.title] * 9, strict=False))
    return named


__all__ = ["IMPLEMENTED_HOOKS", "ORACLES", "Context", "Oracle", "applicable", "titles"]
