"""Proxies of a target and of its factory, for code that records or changes a run.

A subclass overrides some methods. Everything else is forwarded: the protocol, the members that only some targets have
(`NumericTarget`), and an implementation's own attributes. A proxy has an attribute exactly if the wrapped object has
it, so the proxy of a target without bytes does not look numeric.
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
        """Forward an event."""
        return self.target.apply(event)

    def view(self) -> View:
        """Return the target's metadata."""
        return self.target.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a page."""
        return self.target.read(group, layer, block)

    def close(self) -> None:
        """Close the target."""
        self.target.close()

    if not TYPE_CHECKING:  # mypy would accept every attribute, misspelt ones too

        def __getattr__(self, name: str) -> Any:
            """Forward a member that only some targets have. AttributeError if this one lacks it."""
            return getattr(_wrapped(self, "target", name), name)


def unwrapped(target: Target) -> Target:
    """Return the target behind all proxies."""
    while isinstance(target, TargetProxy):
        target = target.target
    return target


class FactoryProxy:
    """A `TargetFactory` that forwards to `factory`."""

    def __init__(self, factory: TargetFactory) -> None:
        self.factory = factory
        self.name = factory.name
        self.capabilities = factory.capabilities

    def supports(self, config: Config) -> str:
        """Return the factory's answer."""
        return self.factory.supports(config)

    def open(self, config: Config) -> Target:
        """Open a target of the factory."""
        return self.factory.open(config)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Forward a member that only some factories have. AttributeError if this one lacks it."""
            return getattr(_wrapped(self, "factory", name), name)


def _wrapped(proxy: object, slot: str, name: str) -> object:
    """Return the wrapped object. AttributeError, not endless recursion, in a copy whose attributes are not set yet."""
    try:
        return vars(proxy)[slot]
    except KeyError:
        raise AttributeError(name) from None
