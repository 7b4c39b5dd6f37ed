"""The oracles M1..M9 and S1..S9, in the order in which they judge one record.

base              the context of one run, and the hooks of an oracle
block_accounting  M1 partition, M7 capacity, M9 leaks
prefix_cache      M2 hashes, M6 hits, S5 commit
device_accesses   M3 table mirror, M4 dead rows
writers           M5 writers of blocks
liveness          M8 progress and publication
content           S1 checkpoints, S2 resume, S3 rollback: what a read or published block holds
unwritten         S4 taint, S7 NaN
output            S6 output tokens
device_order      S8 the order of device work
plain_caches      S9 plain caches and their batch events
numeric/          the same invariants on bytes
real_model        S4, S6 and S7 on the log-probabilities of a real model
side_by_side      D2 two implementations of one part
rules             what a rule is, and those that no oracle checks

The order decides which violation is reported: a wrong read comes before the wrong token that follows from it.
"""

from __future__ import annotations

from ....targets.base.protocol import Capabilities
from ..verdict import Quoted
from ..violation import Violation
from .base import HOOKS, Context, Oracle
from .block_accounting import Capacity, Leak, Partition
from .content import Checkpoint, Continuation
from .device_accesses import DeadRows, TableMirror
from .device_order import Order
from .liveness import Liveness, Publication
from .numeric import Numbers
from .output import Output
from .plain_caches import Rows
from .prefix_cache import Commit, Hash, HitValidity
from .real_model import RealNumbers
from .rules import BEYOND, Client, Consequence, Rule, Subject
from .side_by_side import Agreement
from .unwritten import Poison, Taint
from .writers import Writer

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
    Agreement,
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
CONTENTS = {"mamba": "a wrong recurrent state", "attention": "wrong KV"}


def applicable(capabilities: Capabilities) -> list[str]:
    """Return the ids of the oracles that can run on what a target observes."""
    ids: list[str] = []
    for oracle in ORACLES:
        if oracle.needs <= capabilities.observes:
            ids += oracle.ids()
    return sorted(set(ids))


def titles() -> dict[str, str]:
    """Return id -> title, from the class that implements the fewest ids."""
    judges = sorted(ORACLES, key=lambda one: -len(one.rules))
    return {rule.id: rule.title or oracle.title for oracle in judges for rule in oracle.rules}


def oracle_ids() -> list[str]:
    """Return the ids of all rules that a finding of a campaign may break, such as CRASH. D1 needs two targets."""
    return sorted({rule.id for rule in BEYOND if rule.id != "D1"}.union(*(oracle.ids() for oracle in ORACLES)))


def contract(oracle: str, field: str = "") -> str:
    """Return title and rule of an id, of the class with the fewest ids first. With the field of a violation: the rule
    that it broke, where several oracles have one id."""
    own = _rules(oracle, field)
    return f"{oracle} {own[0][0]}: {rule_of(oracle, field)}" if own else rule_of(oracle, field)


def rule_of(oracle: str, field: str = "") -> str:
    """Return the rule of an id alone, for a field as `contract`."""
    if own := _rules(oracle, field):
        return " ".join(rule.text for _, rule in own)
    return next((rule.text for rule in BEYOND if rule.id == oracle), oracle)


def consequence(oracle: str, field: str = "") -> Consequence | None:
    """Return what a client sees of a violation, None for a crash or an unknown id."""
    rules = [rule for _, rule in (*_rules(oracle, field), *_rules(oracle))]
    for rule in (*rules, *(rule for rule in BEYOND if rule.id == oracle)):
        if found := rule.otherwise.get(field) or rule.consequence:
            return found
    return None


def consequence_of(violation: Violation) -> tuple[str, str]:
    """Return what is wrong, in a few words, and what follows for a client, in a sentence or ""."""
    if violation.oracle == "CRASH":
        kind, _, where = violation.field.partition("-")
        place = f" in {where}" if where else ""
        if violation.relation.startswith("at-fault") and isinstance(error := violation.details.get("error"), Quoted):
            return error.text[:1].upper() + error.text[1:], ""
        follows = "The engine ends with this exception: no request that runs or waits gets its answer."
        return f"The engine crashes with {kind}{place}", follows
    content = CONTENTS.get(violation.group_kind, "wrong content")
    found = consequence(violation.oracle, violation.field)
    what, follows = found[:2] if found else (f"Invariant {violation.oracle} is violated", "")
    return what.replace("{content}", content), follows.replace("{content}", content)


def client_of(violation: Violation) -> Client:
    """Return the class of what a client gets, as the rule declares it; "" if the engine was not tested."""
    found = consequence(violation.oracle, violation.field)
    return "dead engine" if violation.oracle == "CRASH" else found.client if found else ""


def consequences(oracle: str) -> list[Consequence]:
    """Return all that a client may see of violations of an id, without repeats."""
    rules = [rule for _, rule in _rules(oracle)] + [rule for rule in BEYOND if rule.id == oracle]
    each = [one for rule in rules for one in (rule.consequence, *rule.otherwise.values()) if one]
    return list(dict.fromkeys(each))


def subject_of(oracle: str) -> Subject:
    """Return what the rule of an id is about, "" for what breaks no oracle's rule."""
    return next((rule.subject for _, rule in _rules(oracle) if rule.subject), "")


def _rules(oracle: str, field: str = "") -> list[tuple[str, Rule]]:
    """Return (title, rule) for each class that checks an id; with a field, of those whose rule it breaks."""
    judges = sorted(ORACLES, key=lambda one: len(one.rules))
    rules = [(rule.title or one.title, rule) for one in judges for rule in one.rules if rule.id == oracle]
    own = [one for one in rules if field in one[1].fields]
    return own or [one for one in rules if not (field and one[1].fields)] or rules


__all__ = [
    "BEYOND",
    "IMPLEMENTED_HOOKS",
    "ORACLES",
    "Client",
    "Context",
    "Oracle",
    "applicable",
    "client_of",
    "consequence",
    "consequences",
    "contract",
    "oracle_ids",
    "subject_of",
    "titles",
]
