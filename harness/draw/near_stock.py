"""Configurations near the stock server: what most servers run differs from it by two settings at most.

A target declares the settings (`Capabilities.stock`). A configuration departs from the stock server by each of them
that has another value. Which model it is, and all sizes, are no departures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...targets.base.protocol import Capabilities
from ...targets.base.stock import Setting
from ...targets.base.trace import Config
from .choices import Choices
from .overrides import FIELDS, RANKS, apply_overrides, converted

GRAPH_SIZES = ((1, 2, 4, 8), (2, 4), (4,))
"""Rows of captured graphs to draw from. A stock server has graphs."""
NEAR = 2
"""Most settings by which a configuration near the stock server departs from it."""
DRAWN_AS = {
    "mamba_cache_mode": "mode",
    "num_speculative_tokens": "drafts",
    "eagle_block_drop": "block drop",
    "async_depth": "depth",
    "long_prefill_token_threshold": "threshold",
    "policy": "policy",
}
"""Field of a configuration -> what `configurations` draws it as. Other fields of settings follow from these."""


def departs(setting: Setting, config: Config) -> bool:
    """Return True if a configuration has other values than the stock server. One without an option departs, too: which
    value the target takes then is not known here."""
    stock = apply_overrides(config, setting.stock)
    return any(value_of(config, name) != value_of(stock, name) for name in setting.stock)


def value_of(config: Config, name: str) -> object:
    """Return the value of a field or an option, "" for an option that the configuration does not have."""
    return getattr(config, name) if name in FIELDS else config.options.get(name, "1" if name == RANKS else "")


def is_near(config: Config, capabilities: Capabilities) -> bool:
    """Return True if a configuration departs from the stock server by `NEAR` settings at most."""
    if not (capabilities.has_server and config.graph_sizes):
        return False
    return sum(departs(setting, config) for setting in capabilities.stock or ()) <= NEAR


def with_unreached(defaults: Mapping[str, int], capabilities: Capabilities) -> dict[str, int]:
    """Return the steps with each setting of the stock server, 0 for those that never had its value."""
    return dict.fromkeys((one.name for one in settings_of_server(capabilities)), 0) | dict(defaults)


_PREFIX = "default: "
"""Begins the names under which a trace counts its steps with settings of the stock server, beside reached states."""


def at_default(config: Config, capabilities: Capabilities) -> tuple[str, ...]:
    """Return the settings that a configuration has as the stock server has them."""
    return tuple(one.name for one in settings_of_server(capabilities) if not departs(one, config))


def settings_of_server(capabilities: Capabilities) -> tuple[Setting, ...]:
    """Return the settings of the stock server; none for a target without a server. Those that only events need are left
    out."""
    settings = capabilities.stock or () if capabilities.has_server else ()
    return tuple(one for one in settings if one.stock)


def without_defaults(reached: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the reached states, and the steps with each setting of the stock server, by its name."""
    states = {name: count for name, count in reached.items() if not name.startswith(_PREFIX)}
    return states, {name.removeprefix(_PREFIX): n for name, n in reached.items() if name.startswith(_PREFIX)}


def as_reached(defaults: Mapping[str, int]) -> dict[str, int]:
    """Return the steps with each setting of the stock server as they stand beside reached states."""
    return {f"{_PREFIX}{name}": steps for name, steps in defaults.items()}


def may_be_near(overrides: Mapping[str, object], capabilities: Capabilities) -> bool:
    """Return True if configurations with these overrides can be near the stock server of the target."""
    config = Config(2, ())
    for setting in capabilities.stock or ():
        config = apply_overrides(config, setting.stock)
    return is_near(apply_overrides(config, overrides), capabilities)


def draw_fixed(choices: Choices, capabilities: Capabilities) -> dict[str, Any]:
    """Return what is fixed in a configuration near the stock server: all settings but up to `NEAR`, by the names that
    `configurations` draws them under."""
    settings = [setting for setting in capabilities.stock or () if setting.stock]
    apart = {setting.name for setting in settings if setting.is_common and choices.chance(50)}
    apart |= {choices.pick(settings).name for _ in range(choices.integer(0, max(NEAR - len(apart), 0)))}
    fixed: dict[str, Any] = {"graphs": choices.pick(GRAPH_SIZES)}
    for setting in settings:
        if setting.name not in apart:
            values = {**setting.stock, **converted(setting.stock)}
            fixed |= {DRAWN_AS[name]: value for name, value in values.items() if name in DRAWN_AS}
            fixed |= {f"option {name}": value for name, value in values.items() if name in capabilities.options}
    return fixed
