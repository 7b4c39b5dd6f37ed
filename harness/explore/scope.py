"""Scopes: what an exploration enumerates. A small file that a person can read.

A scope has configurations, a number of requests and an alphabet: for each kind of event the values of its fields. A
field that names one request is filled in: with a new name for a request that arrives, with each that has arrived for
other events. Lists and tables of requests are written out. So every trace of a scope is legal, and every sub-list of it
as well.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from ...reference.tokens import CONTINUATION, kind_of
from ...targets.base.alphabet import AtMost, Defines, Refers, fields_with
from ...targets.base.protocol import Capabilities
from ...targets.base.trace import (
    KINDS,
    AnyEvent,
    Arrive,
    Config,
    Event,
    Fork,
    Resume,
    Step,
    TraceError,
    Turn,
    check_config,
    features_of,
    needed_events,
    needed_features,
    needed_kinds,
    tag_of,
)
from ..draw.adapt import switched_off
from ..draw.trace_files import ERROR_LENGTH_MAX, read_toml
from ..quoting import one_line

SCOPE_BYTES_MAX = 1 << 20
_KINDS = {tag_of(kind): kind for kind in KINDS}


class Scope(Struct, frozen=True, forbid_unknown_fields=True):
    """What is enumerated.

    about          one sentence
    events         most events of a trace, unless the command says otherwise
    requests       most requests of a trace, forks included
    configuration  each is explored by itself
    alphabet       kind of event -> the values of its fields, without those that name one request
    """

    about: str
    events: Annotated[int, Meta(ge=1, le=64)]
    requests: Annotated[int, Meta(ge=1, le=16)]
    configuration: Annotated[tuple[Config, ...], Meta(min_length=1, max_length=64)]
    alphabet: dict[str, tuple[dict[str, Any], ...]]


def packaged() -> list[str]:
    """Return the names of the packaged scopes."""
    folder = files(__package__) / "scopes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_scope(name: str) -> Scope:
    """Return a packaged scope, or one from a file. Raises TraceError."""
    if name in packaged():
        table: object = tomllib.loads((files(__package__) / "scopes" / f"{name}.toml").read_text(encoding="utf-8"))
    elif os.path.lexists(name):
        table = read_toml(Path(name), SCOPE_BYTES_MAX, "a scope")
    else:
        raise TraceError(f"scope {name!r}: neither a file nor one of {', '.join(packaged())}")
    try:
        scope = msgspec.convert(table, Scope)
        for tag, templates in scope.alphabet.items():
            for fields in templates:
                _event(tag, {**dict.fromkeys(_named(tag), "r0"), **fields})
        for config in scope.configuration:
            check_config(config)
    except (msgspec.ValidationError, TraceError) as error:
        raise TraceError(f"scope {name}: {one_line(str(error), ERROR_LENGTH_MAX)}") from None
    return scope


def _event(tag: str, fields: Mapping[str, Any]) -> AnyEvent:
    if tag not in _KINDS:
        raise TraceError(f"there is no kind of event {tag!r}; known: {', '.join(_KINDS)}")
    return msgspec.convert({"event": tag, **fields}, _KINDS[tag])


@cache
def _named(tag: str) -> list[str]:
    """Return the fields of a kind of event that hold the name of one request."""
    if tag not in _KINDS:
        return []
    kind = _KINDS[tag]
    marked = {name for mark in (Defines, Refers) for name, _ in fields_with(kind, mark)}
    return [
        field.name
        for field in structs.fields(kind)
        if field.name in marked and getattr(field.type, "__origin__", None) is str
    ]


def disturbs(event: Event) -> bool:
    """Return True for every event but the ordinary ones: a request or turn arrives; a step without any limit, in which
    all drafts are accepted."""
    if isinstance(event, Step):
        return bool(event.budget or event.chunks or event.right < event.drafts or event.per_request)
    return not isinstance(event, Turn)


class Alphabet:
    """The events that may follow a trace of one configuration, in a fixed order.

    Traces that differ only in names are one: requests are named in the order of their arrival. So are those that differ
    only in documents, if the scope treats these alike: they come in a fixed order.
    """

    def __init__(self, scope: Scope, config: Config, capabilities: Capabilities) -> None:
        self._requests = scope.requests
        self.left_out: list[str] = []
        """Events that the target does not have, or not in this configuration."""
        self._templates: list[tuple[str, dict[str, Any]]] = []
        for tag, templates in scope.alphabet.items():
            taken = [fields for fields in templates if self._is_taken(tag, fields, config, capabilities)]
            self._templates += [(tag, fields) for fields in taken]
            self.left_out += [_told(tag, fields) for fields in templates if fields not in taken]
        self._documents = self._alike()

    @staticmethod
    def _is_taken(tag: str, fields: Mapping[str, Any], config: Config, capabilities: Capabilities) -> bool:
        event = _event(tag, {**dict.fromkeys(_named(tag), "r0"), **fields})
        if not needed_events([event]) <= capabilities.events | {"arrive", "step"}:
            return False
        if not needed_features([event]) <= capabilities.features or switched_off([event], config, capabilities):
            return False
        if capabilities.documents and not needed_kinds([event]) <= features_of(
            capabilities.documents_with(config.options)
        ):
            return False
        return all(
            getattr(event, name) <= getattr(config, mark.field) for name, mark in fields_with(_KINDS[tag], AtMost)
        )

    def _alike(self) -> tuple[str, ...]:
        """Return the plain documents, in order, if exchanging any two of them changes nothing; else none."""
        prompts = [(tag, fields) for tag, fields in self._templates if "prompt" in fields]
        names = dict.fromkeys(document for _, fields in prompts for document, _ in fields["prompt"])
        plain = [name for name in names if name != CONTINUATION and not kind_of(name)]
        whole = {_key(tag, fields, {}) for tag, fields in prompts}
        for one, other in pairwise(plain):
            if {_key(tag, fields, {one: other, other: one}) for tag, fields in prompts} != whole:
                return ()
        return tuple(plain)

    def after(self, events: Sequence[AnyEvent]) -> list[AnyEvent]:
        """Return the events that may follow."""
        arrived = [event.name for event in events if isinstance(event, Arrive | Fork)]
        sessions = [
            event.name for event in events if isinstance(event, Fork) or (isinstance(event, Arrive) and event.session)
        ]
        return [
            event
            for tag, fields in self._templates
            for names in self._names(_KINDS[tag], arrived, sessions)
            if self._in_order(event := _event(tag, {**names, **fields}), events)
        ]

    def _names(self, kind: type[AnyEvent], arrived: Sequence[str], sessions: Sequence[str]) -> Iterator[dict[str, str]]:
        new = [f"r{len(arrived)}"] if len(arrived) < self._requests else []
        if kind is Arrive:
            yield from ({"name": name} for name in new)
        elif kind is Fork:
            yield from ({"name": name, "parent": parent} for name in new for parent in sessions)
        elif "name" in _named(tag_of(kind)):
            of_sessions = kind is Resume or kind.about.needs == "resume"
            yield from ({"name": name} for name in (sessions if of_sessions else arrived))
        else:
            yield {}

    def _in_order(self, event: AnyEvent, events: Iterable[AnyEvent]) -> bool:
        """Return False if the event uses a document before one that comes first and means the same."""
        if not self._documents or not isinstance(event, Turn):
            return True
        used = {document for one in events if isinstance(one, Turn) for document, _ in one.prompt}
        for document, _ in event.prompt:
            if document in self._documents:
                if not used.issuperset(self._documents[: self._documents.index(document)]):
                    return False
                used.add(document)
        return True

    def context(self, events: Iterable[AnyEvent]) -> str:
        """Return what the events that may follow depend on, apart from the state: which documents are in use."""
        used = {document for event in events if isinstance(event, Turn) for document, _ in event.prompt}
        return ",".join(document for document in self._documents if document in used)


def _told(tag: str, fields: Mapping[str, Any]) -> str:
    return f"{tag} {msgspec.json.encode(fields).decode()}" if fields else tag


def _key(tag: str, fields: Mapping[str, Any], exchanged: Mapping[str, str]) -> str:
    prompt = [[exchanged.get(document, document), length] for document, length in fields["prompt"]]
    return repr((tag, sorted({**fields, "prompt": prompt}.items(), key=repr)))
