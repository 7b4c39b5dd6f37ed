"""Configuration fields and options that the user fixes for all traces, as with `--config key=value`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import msgspec

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Config, TraceError
from ..suggestions import did_you_mean

RANKS = "dp"
"""The option for data-parallel ranks: every target has it, since the harness runs them (`lockstep/ranks`)."""
FIELDS = {field.name: field.type for field in msgspec.structs.fields(Config)}


def apply_overrides(config: Config, overrides: Mapping[str, object]) -> Config:
    """Return `config` with overrides applied; keys that are no field are options of the target.

    Values may be strings, which are converted to the field's type. TraceError names the value that does not fit.
    """
    if not overrides:
        return config
    options = {key: str(value) for key, value in overrides.items() if key not in FIELDS}
    return msgspec.structs.replace(config, **converted(overrides), options={**config.options, **options})


def converted(overrides: Mapping[str, object]) -> dict[str, object]:
    """Return the overrides that are fields, converted to the field's type. TraceError names one that does not fit."""
    values: dict[str, object] = {}
    for key, value in overrides.items():
        try:
            if key in FIELDS:
                values[key] = msgspec.convert(value, FIELDS[key], strict=False)
        except msgspec.ValidationError as error:
            choices = f"; known: {', '.join(map(str, known))}" if (known := get_args(FIELDS[key])) else ""
            raise TraceError(f"configuration: {key}={value}: {error}{choices}") from None
    return values


def check_overrides(overrides: Mapping[str, object], capabilities: Capabilities) -> None:
    """Raise TraceError if an override is neither a field of the configuration nor an option of the target, or has a
    value that does not fit."""
    converted(overrides)
    known = list(dict.fromkeys((*FIELDS, *capabilities.options, *capabilities.accepts, RANKS)))
    for key in overrides:
        if key not in known:
            hint = did_you_mean(key, known) or f"; known: {', '.join(known)}"
            raise TraceError(f"configuration: there is no {key!r}{hint}")
    options = {key: str(value) for key, value in overrides.items() if key not in FIELDS}
    if reason := foreign_option(options, capabilities):
        raise TraceError(f"configuration: {reason}")


def foreign_option(options: Mapping[str, str], capabilities: Capabilities) -> str:
    """Return the reason why a target does not accept one of these options, "" if it accepts all."""
    for name, value in options.items():
        if name == RANKS:
            continue
        values = (*capabilities.options.get(name, ()), *capabilities.accepts.get(name, ()))
        if not values:
            return f"there is no option {name!r}; known: {', '.join([*capabilities.options, RANKS])}"
        if value not in values:
            return f"there is no {name}={value}; known: {', '.join(dict.fromkeys(values))}"
    return ""
