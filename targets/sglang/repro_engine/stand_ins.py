"""Stand-ins of a script for what the adapter takes from the harness.

(This file is inlined into reproducers, behind the stand-ins for modules; nothing imports it.)
"""

from typing import NamedTuple

from ..stubs import Off

# Records of what the layers do: nobody reads them here.
Zeroed = Copied = Loaded = Forward = ForwardRow = SlotRead = SlotWrite = StateRead = StateWrite = Off


class EngineError(Exception):
    """The engine did something that hardware would answer with a fault."""


class OutOfRange(NamedTuple):
    """An index of a batch that is out of range: the row is not computed."""

    row: int
    group: int
    what: str
    index: int
    size: int
