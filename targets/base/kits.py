"""What a kit of an engine cannot do: the form of the tables in `targets/ENGINE/kit_limits.py`.

A *kit* is one way to run an engine's cache code: with stand-in layers, with real ones, or as a script that imports
nothing of ours. The default is that a kit can do what the others can; each exception is a `Limit`. A
`kit_limits.py` offers `limits() -> Sequence[Limit]` and can be imported where the engine is not installed.
"""

from __future__ import annotations

from msgspec import Struct


class Limit(Struct, frozen=True):
    """Something that one kit of an engine cannot do. Words in capitals in `reason` stand for values of a trace."""

    kit: str
    feature: str
    reason: str


class Capitals:
    """Stands for a struct of a case where a table is shown: an attribute is its name in capitals."""

    def __getattr__(self, name: str) -> str:
        return name.upper()
