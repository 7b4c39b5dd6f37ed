"""The oracles of the numeric run: the invariants on bytes, against the float64 reference.

numbers     S7 NaN, S4 fills, S2, S3 and S6 on numbers, S1, M5 guards, M3 indices, exact moves
provenance  the cause of a wrong number, from the tags of the same forward

The other oracles read without this package. It is registered by one line of `harness/judge/oracles/__init__.py`.
"""

from .numbers import Numbers

__all__ = ["Numbers"]
