"""Stand-ins for a target and its factory that forward everything, for code that watches or changes a run.

A subclass overrides the methods that it watches. Everything else reaches the wrapped object: the whole protocol, what
only some targets have (`NumericTarget`) and attributes of an engine's own. A proxy has an attribute exactly when the
wrapped object has it, so a target without bytes does not look numeric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .observe import Content, Effect, View
from .protocol import Target, TargetFactory
from .trace import Config, Event

if TYPE_CHECKING:
    from typing import Any


class TargetProxy:
    """A `Target` that forwards to `target`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.layout = target.layout

    def apply(self, event: Event) -> Effect:
        """Let the event happen."""
        return self.target.apply(event)

    def view(self) -> View:
        """The target's metadata."""
        return self.target.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """The content of a page."""
        return self.target.read(group, layer, block)

    def close(self) -> None:
        """Close the target."""
        self.target.close()

    if not TYPE_CHECKING:  # mypy would accept every attribute, misspelt ones too

        def __getattr__(self, name: str) -> Any:
            """Forward what only some targets have. AttributeError if this one has not."""
            return getattr(_wrapped(self, "target", name), name)


class FactoryProxy:
    """A `TargetFactory` that forwards to `factory`."""

    def __init__(self, factory: TargetFactory) -> None:
        self.factory = factory
        self.name = factory.name
        self.capabilities = factory.capabilities

    def supports(self, config: Config) -> str:
        """The factory's answer."""
        return self.factory.supports(config)

    def open(self, config: Config) -> Target:
        """A target of the factory."""
        return self.factory.open(config)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Forward what only some factories have. AttributeError if this one has not."""
            return getattr(_wrapped(self, "factory", name), name)


def _wrapped(proxy: object, slot: str, name: str) -> object:
    """Return the wrapped object. AttributeError in a copy that is not filled yet, instead of endless recursion."""
    try:
        return vars(proxy)[slot]
    except KeyError:
        raise AttributeError(name) from None
