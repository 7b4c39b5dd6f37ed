"""Engines of this process that wait for their next trace, by configuration."""

from __future__ import annotations

from collections import OrderedDict

from msgspec.json import encode

from ...base.trace import Config
from .engine import RealEngine

MOST = 8
"""Engines that wait, at most: the one that has waited longest goes first."""
_Key = tuple[bytes, str]


class Engines:
    """Lends engines. `built` counts those that had to be built."""

    def __init__(self) -> None:
        self.built = 0
        self._free: OrderedDict[_Key, RealEngine] = OrderedDict()
        self._keys: dict[int, _Key] = {}

    def take(self, config: Config, device: str) -> RealEngine:
        """An engine, built if none is free."""
        key = encode(config), device
        engine = self._free.pop(key, None)
        if engine is None:
            self.built += 1
            engine = RealEngine(config, device)
        self._keys[id(engine)] = key
        return engine

    def give_back(self, engine: RealEngine) -> None:
        """Keep an engine for later traces."""
        self._free[self._keys.pop(id(engine))] = engine
        while len(self._free) > MOST:
            self._free.popitem(last=False)

    def forget(self) -> None:
        """Let go of all that wait: the next ones are new."""
        self._free.clear()


ENGINES = Engines()
