"""Where the time of a worker's traces goes: a factory whose targets are timed.

Seconds of the wall clock, by what they went into:

    drawing    traces
    opening    engines
    engine     events, and looks at the engine's metadata
    judging    all else: reference, oracles, and reports to the coordinator
    ...        what a factory says that it waits for (`Waits`), such as compiling; it is taken out of the others
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import ParamSpec, TypeVar

from ...targets.base.protocol import Target, TargetFactory
from ...targets.base.proxy import FactoryProxy, TargetProxy
from ...targets.base.trace import Config

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Stopwatch(FactoryProxy):
    """Forwards to a factory. Its targets are timed. `waited` is what the engine's own factory says of its waits."""

    def __init__(self, factory: TargetFactory, waited: Mapping[str, float]) -> None:
        super().__init__(factory)
        self._waited = waited
        self._known = dict(self._waited)
        self._began = perf_counter()
        self._took = defaultdict[str, float](float)

    def begin(self) -> None:
        """Begin with the next trace."""
        self._took.clear()
        self._began = perf_counter()

    def took(self) -> dict[str, float]:
        """Return the seconds since the last `begin`."""
        rest = perf_counter() - self._began - sum(self._took.values())
        return {**self._took, "judging": max(rest, 0.0)}

    def timed(self, what: str, call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return a function that does the same, and whose time counts as `what`."""
        took, waits, known = self._took, self._waited, self._known

        def run(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Result:
            began = perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                took[what] += perf_counter() - began
                for name, seconds in waits.items():
                    waited = seconds - known.get(name, 0.0)
                    took[name] += waited
                    took[what] -= waited
                    known[name] = seconds

        return run

    def open(self, config: Config) -> Target:
        """Open a target, timed."""
        return _Timed(self.timed("opening", self.factory.open)(config), self)


class _Timed(TargetProxy):
    """Forwards to a target, whose methods are timed."""

    def __init__(self, target: Target, watch: Stopwatch) -> None:
        super().__init__(target)
        self.read = target.read  # type: ignore[method-assign] # often called, and quick
        self.apply = watch.timed("engine", target.apply)  # type: ignore[method-assign]
        self.view = watch.timed("engine", target.view)  # type: ignore[method-assign]
        self.close = watch.timed("engine", target.close)  # type: ignore[method-assign]
