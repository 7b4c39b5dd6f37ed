"""What a rule is: what must hold, what it is about, and what a client sees if it is broken.

An oracle states its rules (`Oracle.rules`). `BEYOND` has those that no oracle checks: they are about the run itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Subject = Literal["resources", "cache", "device", ""]
Client = Literal["wrong tokens", "dead engine", "hang", "leak", "slower", ""]
"""What a client gets: tokens that are not the model's, no engine any more, no end, an engine that loses memory, or the
right tokens later, after a cache hit that was lost. "" where the engine itself was not tested."""


class Consequence(NamedTuple):
    """What happens, without a full stop, and what follows from it. "{content}" is what the violation's group holds.
    `client` is the class of what follows, which the severity of a finding needs (`group.findings.severity`)."""

    what: str
    follows: str
    client: Client


class Rule(NamedTuple):
    """One rule of an oracle.

    text         what must hold, in sentences
    title        one or two words; the oracle's title if it has one rule
    subject      estimates, progress and leaks ("resources"), the cache's metadata, or what the device does
    consequence  for a client; where several classes check a rule, one of them may tell it for all
    otherwise    consequences of violations with these fields
    fields       the fields of the violations that it is the rule of, where several oracles have one id; else empty
    """

    id: str
    text: str
    title: str = ""
    subject: Subject = ""
    consequence: Consequence | None = None
    otherwise: Mapping[str, Consequence] = {}
    fields: frozenset[str] = frozenset()


BEYOND = (
    Rule("CRASH", "The target serves every legal trace without an exception, and its process stays alive."),
    Rule(
        "ADAPTER",
        "The target's adapter, which is not the engine, raises no exception.",
        consequence=Consequence(
            "The target's adapter fails", "The engine was not tested; the adapter needs a fix.", ""
        ),
    ),
    Rule(
        "RECORD",
        "Each record and view has the fields, types and indices of the protocol.",
        consequence=Consequence(
            "The target's adapter reports an invalid record",
            "The engine was not tested; the adapter needs a fix.",
            "",
        ),
    ),
    Rule(
        "HANG",
        "The target answers every event within the time limit.",
        consequence=Consequence("The server hangs", "No request makes progress any more.", "hang"),
    ),
    Rule(
        "PROTOCOL",
        "Only the worker writes to its pipe.",
        consequence=Consequence(
            "The worker's output is corrupted", "The engine writes into a stream that is not its own.", ""
        ),
    ),
    Rule(
        "DETERMINISM",
        "The same trace on a fresh engine in the same process gives the same result.",
        consequence=Consequence(
            "The same requests give another result in a second run",
            "Results depend on something that is not part of the requests.",
            "wrong tokens",
        ),
    ),
    Rule(
        "D1",
        "With `--against`: two targets plan the same rows with the same hits and deliver the same tokens.",
        "difference",
        consequence=Consequence("Two implementations behave differently", "At least one of them is wrong.", ""),
    ),
)
"""Rules that no oracle checks."""
