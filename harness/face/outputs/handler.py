"""The interface of everything that consumes a campaign's events, and the loop that feeds it.

A handler is made from the command line's options. Its methods are called in this order: `start` once before the first
trace, `handle_event` for every event, `shutdown` once, whatever ended the campaign short of SIGKILL. The last event is
`CampaignEnded`: a handler that writes one file at the end does it then. What must survive SIGKILL is written at once.

A module makes its handler with `make_handler(options)`, which returns None if the options do not ask for one.
`commands/fuzz.py` lists the modules of this project with their options. Other packages register a module under the
entry point group "hybridfuzz.handlers"; it declares its options of `hybridfuzz fuzz` with `add_arguments(parser)`.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ....targets.base.trace import TraceError
from ...campaign_events import CampaignEnded, CampaignEvent, Notice
from ...group.findings.finding_store import OutputError
from ...group.known.known_toml import Known
from ...quoting import one_line

LOSSES = (OSError, OutputError, TraceError)
"""Errors of a handler with a cause outside this project: a full disk, a closed pipe, a file that cannot be used."""


class CampaignInfo(Struct, frozen=True, kw_only=True):
    """A campaign that is about to start.

    out        folder of its findings
    resumed    True if it continues one that was killed or interrupted
    known      acknowledged bugs
    """

    target: str
    version: str
    seed: int
    out: Path
    resumed: bool = False
    known: Sequence[Known] = ()


class EventHandler(Protocol):
    """A consumer of one campaign's events. Whatever it raises costs the campaign this handler alone."""

    def start(self, campaign: CampaignInfo) -> None:
        """Prepare; nothing has run yet. One of LOSSES here ends the command with exit status 2."""

    def handle_event(self, event: CampaignEvent) -> None:
        """React to an event. Must not block."""

    def shutdown(self) -> None:
        """Finish; no event follows."""


class HandlerModule(Protocol):
    """A module of another package that makes a handler."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of this handler."""

    def make_handler(self, options: argparse.Namespace) -> EventHandler | None:
        """Return a handler, None if the options do not ask for one."""


class Registered:
    """A handler module of another package: whatever it raises becomes an OutputError that names it."""

    def __init__(self, name: str, module: HandlerModule) -> None:
        self.name = name
        self._module = module

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its options."""
        with naming(self.name):
            self._module.add_arguments(parser)

    def make_handler(self, options: argparse.Namespace) -> EventHandler | None:
        """Return its handler, None if the options do not ask for one."""
        with naming(self.name):
            handler = self._module.make_handler(options)
        return _RegisteredHandler(self.name, handler) if handler else None


class _RegisteredHandler:
    def __init__(self, name: str, handler: EventHandler) -> None:
        self.name = name
        self._handler = handler

    def start(self, campaign: CampaignInfo) -> None:
        with naming(self.name):
            self._handler.start(campaign)

    def handle_event(self, event: CampaignEvent) -> None:
        with naming(self.name):
            self._handler.handle_event(event)

    def shutdown(self) -> None:
        with naming(self.name):
            self._handler.shutdown()


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Turn every exception into an OutputError that names the handler."""
    try:
        yield
    except Exception as error:
        raise OutputError(f"handler {name}: {type(error).__name__}: {error}") from error


def registered(group: str) -> Iterator[HandlerModule]:
    """Yield the modules that other packages registered, by name. Raises OutputError for one that cannot be imported."""
    for point in sorted(entry_points(group=group), key=lambda one: one.name):
        with naming(point.name):
            module: HandlerModule = point.load()
        yield Registered(point.name, module)


class Dispatcher:
    """Feeds events to handlers. One that fails is shut down with a warning; the others go on.

    That holds for internal errors, too: the result of a campaign and its other outputs do not depend on one output. The
    warning about one says where it came from. Only the first handler's is raised: it is the console, which prints the
    warnings, and nobody else would tell.
    """

    def __init__(self, handlers: Sequence[EventHandler]) -> None:
        self._handlers = list(handlers)
        self._console = self._handlers[0] if self._handlers else None

    def start(self, campaign: CampaignInfo) -> None:
        """Start all handlers. Raises OutputError for the first that cannot start, after shutting down the others."""
        started: list[EventHandler] = []
        for handler in self._handlers:
            try:
                handler.start(campaign)
            except LOSSES as error:
                self._handlers = started
                self.shutdown()
                raise OutputError(str(error)) from error
            started.append(handler)

    def deliver(self, events: Iterable[CampaignEvent]) -> CampaignEnded | None:
        """Hand every event to every handler; returns the last event."""
        ended = None
        for event in events:
            self._handle(event)
            if isinstance(event, CampaignEnded):
                ended = event
        return ended

    def _handle(self, event: CampaignEvent) -> None:
        for handler in list(self._handlers):
            try:
                handler.handle_event(event)
            except Exception as error:
                self._raise_if_untold(handler, error)
                self._drop(handler, error)

    def shutdown(self) -> None:
        """Shut all handlers down, the first one last: it prints the warnings about the others."""
        while self._handlers:
            handler = self._handlers.pop()
            try:
                handler.shutdown()
            except Exception as error:
                self._raise_if_untold(handler, error)
                self._warn(handler, error)

    def _raise_if_untold(self, handler: EventHandler, error: Exception) -> None:
        if handler is self._console and not isinstance(error, LOSSES):
            raise error

    def _drop(self, handler: EventHandler, error: Exception) -> None:
        """Go on without a handler. It may still save what it has."""
        self._handlers.remove(handler)
        self._warn(handler, error)
        try:
            handler.shutdown()
        except LOSSES:
            return  # the warning above is about the same loss
        except Exception as another:
            self._warn(handler, another)

    def _warn(self, handler: EventHandler, error: Exception) -> None:
        self._handle(Notice(f"{name_of(handler)} ended early: {explained(error)}"))


def explained(error: Exception) -> str:
    """Return what to say about an error of a handler: of an internal one also its kind and its place."""
    if isinstance(error, LOSSES):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    return one_line(f"internal error, please report it: {type(error).__name__}: {error} ({where})")


def name_of(handler: EventHandler) -> str:
    """Return the name of a handler for warnings."""
    return getattr(handler, "name", type(handler).__name__)
