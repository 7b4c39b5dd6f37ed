"""Fields of a configuration that somebody fixed, as with `--config key=value`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from ..targets.base.protocol import Capabilities
from ..targets.base.trace import Config, TraceError

RANKS = "dp"
"""Data-parallel ranks, as an option: every target has it, since the harness runs them (`ranks`)."""


def apply_overrides(config: Config, overrides: Mapping[str, object]) -> Config:
    """`config` with fields replaced, as from `--config key=value`; unknown keys are options of the target.

    Values may be strings, which are converted to the field's type. TraceError names the key that does not fit.
    """
    if not overrides:
        return config
    fields = {field.name: field for field in msgspec.structs.fields(Config)}
    changes: dict[str, object] = {}
    options = dict(config.options)
    for key, value in overrides.items():
        if key not in fields:
            options[key] = str(value)
            continue
        try:
            changes[key] = msgspec.convert(value, fields[key].type, strict=False)
        except msgspec.ValidationError as error:
            raise TraceError(f"configuration: {key}={value}: {error}") from None
    return msgspec.structs.replace(config, **changes, options=options)


def check_keys(overrides: Mapping[str, object], capabilities: Capabilities) -> None:
    """TraceError if an override is neither a field of the configuration nor an option of the
    target.
    """
    known = [*Config.__struct_fields__, *capabilities.options, RANKS]
    for key in overrides:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise TraceError(f"configuration: there is no {key!r}; {hint}")
