"""Checks what a target declares in its `Capabilities`: a misspelt word would switch something off without a trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from difflib import get_close_matches
from typing import get_args

from msgspec import ValidationError, convert, structs

from ...reference.layout import Mode
from .protocol import Capabilities, Feature, Observation, TargetError, Usual
from .trace import KINDS, Config, features_of, tag_of

EVENTS = frozenset(map(tag_of, KINDS))
"""Tags of all events."""
VOCABULARIES: Mapping[str, frozenset[str]] = {
    "events": EVENTS,
    "modes": frozenset(get_args(Mode)),
    "speculative_modes": frozenset(get_args(Mode)),
    "observes": frozenset(get_args(Observation)),
    "features": frozenset(get_args(Feature)),
    "lacks": frozenset(get_args(Usual)),
    "policies": frozenset({"fcfs", "priority"}),
}
"""Field of `Capabilities` -> the words that it may have."""
_NEEDS_POOL = frozenset({"pool", "labels", "tables", "device_order", "estimates"})
"""Observations of a target with a pool."""
_FIELDS = {field.name: field.type for field in structs.fields(Config)}
_RESERVED = frozenset(_FIELDS) | {"dp"}
"""Names that `--config` already has: fields of the configuration, and the number of ranks."""


def check_capabilities(capabilities: Capabilities, target: str) -> None:
    """Raise TargetError, in one line, for a declaration that cannot be meant."""
    if reason := fault(capabilities):
        raise TargetError(f"target {target!r}: its capabilities: {reason}")


def fault(capabilities: Capabilities) -> str:
    """Return the first fault of the declarations, "" if there is none."""
    for field, known in VOCABULARIES.items():
        words: Collection[str] = getattr(capabilities, field)
        if isinstance(words, str):
            return f"{field} is one string, expected several words"
        for word in sorted(set(words) - known):
            return f"{field} has {word!r}; {_hint(word, known)}"
    try:
        convert({name: _plain(value) for name, value in structs.asdict(capabilities).items()}, Capabilities)
    except ValidationError as error:
        return str(error)
    return (
        _contradiction(capabilities)
        or _bad_option(capabilities)
        or _bad_value(capabilities, "pressure")
        or _bad_together(capabilities)
        or _bad_value(capabilities, "documents")
        or _bad_value(capabilities, "features_with")
        or _bad_setting(capabilities)
        or _lacks_feature(capabilities)
    )


def _bad_events(events: Set[str]) -> str:
    if missing := {"arrive", "step"} - events:
        return f"events has no {' and no '.join(sorted(missing))}: every target understands arrive and step"
    needs = {tag_of(kind): kind.about.needs for kind in KINDS if kind.about.needs}
    if unmet := {tag for tag in needs.keys() & events if needs[tag] not in events}:
        return f"events has {min(unmet)!r} but no {needs[min(unmet)]!r}, without which it has no effect"
    return ""


def _contradiction(capabilities: Capabilities) -> str:
    if reason := _bad_events(capabilities.events):
        return reason
    if not (capabilities.modes and capabilities.block_sizes and capabilities.group_counts):
        return "modes, block_sizes and group_counts must not be empty"
    if not capabilities.has_pool:
        if of_pool := _NEEDS_POOL & capabilities.observes:
            return (
                f"observes has {min(of_pool)!r}, but features has neither 'block-tables' nor 'pool': "
                "a target with plain caches observes 'caches'"
            )
        if caching := [mode for mode in capabilities.modes if mode != "none"]:
            return f"modes has {caching[0]!r}, but features has neither 'block-tables' nor 'pool'"
    elif "caches" in capabilities.observes:
        return "observes has 'caches', which is for targets without a pool, but features names one"
    return ""


def _bad_together(capabilities: Capabilities) -> str:
    known = {"window", "drafts", *capabilities.usual_options}
    for name in (name for names in capabilities.together for name in names):
        if name not in known:
            return f"together has {name!r}; {_hint(name, known)}"
    return ""


def _bad_option(capabilities: Capabilities) -> str:
    for field in ("options", "accepts"):
        for name, values in getattr(capabilities, field).items():
            if name in _RESERVED:
                return f"{field} has {name!r}, which --config already has; choose another name"
            if field == "options" and not values:
                return f"{field} has no value for {name!r}"
    return ""


def _bad_value(capabilities: Capabilities, field: str) -> str:
    """Return the fault of a field that maps options and their values to what belongs to them."""
    declared: Mapping[str, Mapping[str, object]] = getattr(capabilities, field)
    for name, by_value in declared.items():
        values = {*capabilities.options.get(name, ()), *capabilities.accepts.get(name, ())}
        if not values:
            return f"{field} has {name!r}; {_hint(name, {*capabilities.options, *capabilities.accepts})}"
        for value in by_value:
            if value not in values:
                return f"{field} has {name}={value}; {_hint(value, values)}"
    return ""


def _bad_setting(capabilities: Capabilities) -> str:
    """Return the fault of a setting of the stock server."""
    for setting in capabilities.stock or ():
        for name, value in setting.stock.items():
            values = {*capabilities.options.get(name, ()), *capabilities.accepts.get(name, ())}
            if name not in _RESERVED and not values:
                return f"stock has {name!r} in {setting.name!r}; {_hint(name, {*capabilities.options, *_RESERVED})}"
            if values and value not in values:
                return f"stock has {name}={value} in {setting.name!r}; {_hint(value, values)}"
            try:
                convert(value, _FIELDS.get(name, str), strict=False)
            except ValidationError as error:
                return f"stock has {name}={value} in {setting.name!r}: {error}"
        if unknown := setting.events - EVENTS:
            return f"stock has {min(unknown)!r} in {setting.name!r}; {_hint(min(unknown), EVENTS)}"
    return ""


def _lacks_feature(capabilities: Capabilities) -> str:
    """Return the fault of a value of an option that needs a feature which the target does not have."""
    for name, documents_of in capabilities.documents.items():
        for value, documents in documents_of.items():
            for document in documents:
                if missing := features_of([document]) - capabilities.features:
                    return f"documents has {document!r} with {name}={value}, but features has no {min(missing)!r}"
    usual = frozenset[str](get_args(Usual)) - capabilities.lacks
    drafts = frozenset({"speculation"}) if capabilities.max_speculative_tokens else frozenset[str]()
    known = capabilities.features | capabilities.events | capabilities.extra_groups | usual | drafts
    for name, features_of_value in capabilities.features_with.items():
        for value, features in features_of_value.items():
            for feature in sorted(features - known):
                return f"features_with has {feature!r} with {name}={value}, but features does not"
    return ""


def _plain(value: object) -> object:
    """Return sets as sorted lists, so that messages do not depend on their order."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return sorted(value) if isinstance(value, frozenset | set) else value


def _hint(word: str, known: Collection[str]) -> str:
    close = get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
