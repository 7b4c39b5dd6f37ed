"""Draws the configuration of a trace.

Each trace has its own, with whole features switched off (swarm testing). Pools have room for one request of
`max_model_len` and for up to six more. Most are tight, so that blocks are reused within some twenty
steps and running requests take them from each other. (If all pools held barely one request, few would run together.)

Settings are drawn independently of each other. If the target refuses the result, extras that do not fit are left out
(`_plain`). An extra often excludes much: if what every configuration has (the kind of state layer, drafts, asynchronous
scheduling) gave way to it, combinations of these would become rare. If that does not help, as few settings as possible
are drawn again and the others stay. Drawing everything again would make each setting rare that excludes many others,
and rarer still the combinations of such settings.

Some configurations are under pressure (`Capabilities.pressure`): few requests run, and the target's own switches make
memory short. What an engine does when a step or a load gets no memory then happens more often in a short trace.

Some configurations aim at one extra (`_subject`). All other settings give way to it, in the end also stock and pressure
settings: an extra that fits few of the others would be rare otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Config, Group, TraceError, check_config
from .choices import Choices
from .near_stock import GRAPH_SIZES, draw_fixed
from .overrides import apply_overrides
from .workload import DEFAULT, Workload

CONFIG_TRIES_MAX, LAST_TRIES_MAX = 400, 800
"""Attempts to draw a configuration: of a kind that may be given up, and of any kind, which a target with many options
finds late."""
TRIES_PER_SIZE = 40
"""Attempts that draw one setting again. As many draw two again, then four, and so on; the last ones draw all."""
SUBJECT_TRIES = 60
"""Attempts to draw a value of the subject that switches it on, and then to draw all settings beside it."""
VALUES_TRIED = 3
"""Values of an extra that are tried before a configuration does without it."""
SEATS_IN_POOL_MAX = 6
"""Running requests that the size of a pool accounts for."""
EXTRAS = ("window", "chunk", "drafter's group", "block drop")
"""Settings that are extras on every target that has them."""
PARTS = 1 << 10
"""A setting in 0..PARTS - 1 is a fraction of a size that depends on other settings."""

Settings = dict[str, Any]


def draw_config(choices: Choices, capabilities: Capabilities) -> Config:
    """Return a configuration that the capabilities allow, with a tight pool."""
    draws = _draws(choices, capabilities, DEFAULT)
    return _build({name: draw() for name, draw in draws.items()}, capabilities, DEFAULT)


def draw_valid_config(
    choices: Choices,
    factory_supports: Callable[[Config], str],
    capabilities: Capabilities,
    overrides: Mapping[str, object],
    workload: Workload = DEFAULT,
) -> Config:
    """Return a configuration that fits the overrides and that the target supports. TraceError if none is found.

    On a target with a server, part of them are near its stock server (`near_stock`).
    """
    draws = _draws(choices, capabilities, workload)
    kinds = [(draws, LAST_TRIES_MAX)]
    if capabilities.pressure and choices.chance(workload.pressed):
        pressed = {**draws, **_pressed_draws(choices, capabilities, workload)}
        kinds.insert(0, (pressed, CONFIG_TRIES_MAX))
    elif capabilities.has_server and choices.chance(workload.near_stock):
        fixed = {name: partial(_given, value) for name, value in draw_fixed(choices, capabilities).items()}
        kinds.insert(0, ({**draws, **fixed}, CONFIG_TRIES_MAX))
    subject = _subject(choices, kinds[0][0], capabilities) if choices.chance(workload.subject) else {}
    fits = _Fits(choices, factory_supports, capabilities, overrides, workload)
    attempts = [(subject, *kind) for kind in kinds] if subject else []
    # Overrides may rule out this kind; with restrictive ones a fresh start may help.
    attempts += [({}, *kind) for kind in (*kinds, kinds[-1])]
    for kept, these, tries in attempts:
        if found := _search(choices, these, kept, fits, capabilities.usual_options, tries):
            return found
    raise TraceError(f"no configuration fits the target and the overrides: {fits.reason}")


def _given(value: Any) -> Any:
    return value


class _Fits:
    """Builds a configuration from settings; None, and a `reason`, if it is refused."""

    def __init__(
        self,
        choices: Choices,
        factory_supports: Callable[[Config], str],
        capabilities: Capabilities,
        overrides: Mapping[str, object],
        workload: Workload,
    ) -> None:
        self._choices = choices
        self._supports = factory_supports
        self._capabilities = capabilities
        self._overrides = overrides
        self._workload = workload
        self.reason = ""

    def __call__(self, settings: Settings) -> Config | None:
        overrides = self._overrides
        config = apply_overrides(_build(settings, self._capabilities, self._workload), overrides)
        most = self._capabilities.depth_with(config.options)
        if config.async_depth > most and "async_depth" not in overrides:
            config = msgspec.structs.replace(config, async_depth=most)
        resized = overrides and "num_blocks" not in overrides  # a pool that is drawn is large enough for what is drawn
        if resized and config.num_blocks < config.smallest_pool():
            spare = self._choices.integer(0, 12)
            config = msgspec.structs.replace(config, num_blocks=config.smallest_pool() + spare)
        try:
            check_config(config)
        except TraceError as error:
            self.reason = str(error)
        else:
            self.reason = self._supports(config)
        return None if self.reason else config


def _search(
    choices: Choices,
    draws: Mapping[str, Callable[[], Any]],
    kept: Settings,
    fits: _Fits,
    usual: Mapping[str, str],
    tries: int,
) -> Config | None:
    """Return a configuration that has the settings in `kept`, None if no attempt finds one."""
    for trial in _trials(choices, draws, kept, tries):
        if found := fits(trial) or _without_extras(trial, kept, fits, choices, draws, usual):
            return found
    return None


def _trials(choices: Choices, draws: Mapping[str, Callable[[], Any]], kept: Settings, tries: int) -> Iterator[Settings]:
    """Yield settings that include `kept`: if it is not empty, first with all others redrawn each time; then `tries`
    times with as few as possible redrawn."""
    for _ in range(SUBJECT_TRIES if kept else 0):
        yield {name: draw() for name, draw in draws.items()} | kept
    trial = settings = {name: draw() for name, draw in draws.items()} | kept
    names = [name for name in draws if name not in kept]
    for attempt in range(tries):
        yield trial
        number = 1 << attempt // TRIES_PER_SIZE
        again = [choices.pick(names) for _ in range(number)] if number < len(names) else names
        trial = settings | {name: draws[name]() for name in again}


def _subject(choices: Choices, draws: Mapping[str, Callable[[], Any]], capabilities: Capabilities) -> Settings:
    """Return an extra, or several that are seldom drawn together (`Capabilities.together`), each as likely as the
    others, with one of its values. It has no effect if it is among `EXTRAS` and the target does not have it."""
    settings = {name: draw() for name, draw in draws.items()}
    usual = capabilities.usual_options
    single = [(name,) for name in (*EXTRAS, *(f"option {name}" for name in usual))]
    several = [tuple(name if name in draws else f"option {name}" for name in names) for names in capabilities.together]
    found: Settings = {}
    for name in choices.pick([*single, *several]):
        for _ in range(SUBJECT_TRIES):
            value = draws[name]()
            if (name == "drafts" and value) or name in _plain(settings | {name: value}, usual):
                found[name] = value
                break
        else:
            return {}
    return found


def _without_extras(
    settings: Settings,
    kept: Settings,
    fits: _Fits,
    choices: Choices,
    draws: Mapping[str, Callable[[], Any]],
    usual: Mapping[str, str],
) -> Config | None:
    """Return the configuration without some of its extras, as few as possible, None if it is refused without any.

    They are added again one by one, in any order, each with its value or with another one that fits. `kept` stay.
    """
    plain = {name: value for name, value in _plain(settings, usual).items() if name not in kept}
    names = list(plain)
    fewer = settings | plain
    found = fits(fewer) if plain else None
    while found and names:
        name = choices.pick(names)
        names.remove(name)
        value = settings[name]
        for _ in range(VALUES_TRIED):
            if more := fits(fewer | {name: value}):
                found, fewer = more, fewer | {name: value}
                break
            value = draws[name]()
    return found


def _plain(settings: Settings, usual: Mapping[str, str]) -> Settings:
    """Return the extras among settings, with the values that switch them off.

    Extras are groups besides those that every configuration has, EAGLE's rules, and options that have a `usual` value
    (`Capabilities.usual_options`).
    """
    plain: Settings = {}
    if settings["window"][0]:
        plain["window"] = (False, *settings["window"][1:])
    if settings["chunk"][0]:
        plain["chunk"] = (False, settings["chunk"][1])
    if settings["drafter's group"][1] is not None:
        plain["drafter's group"] = (PARTS, None)
    if settings["block drop"]:
        plain["block drop"] = False
    for name, value in usual.items():
        if settings[f"option {name}"] != value:
            plain[f"option {name}"] = value
    return plain


def _draws(choices: Choices, capabilities: Capabilities, workload: Workload) -> dict[str, Callable[[], Any]]:
    """Return a function for each setting that draws it."""
    pick, integer, chance = choices.pick, choices.integer, choices.chance

    def mode() -> str:
        """Draw a mode. Without a prefix cache no block is hit, shared or published, so fewer traces do without."""
        first = pick(capabilities.modes)
        return pick(capabilities.modes) if first == "none" else first

    draws: dict[str, Callable[[], Any]] = {
        "mode": mode,
        "block sizes": lambda: pick(capabilities.block_sizes),
        "group counts": lambda: pick(capabilities.group_counts),
        "layers": lambda: pick(capabilities.layers_per_group),
        # Drafts add rows with none, some or all of them accepted to those that any batch has.
        "drafts": _drafts_draw(choices, capabilities, workload.speculation),
        "window": lambda: (
            chance(workload.window),
            pick(capabilities.windows or (0,)),
            chance(workload.window_small_blocks),
        ),
        "chunk": lambda: (chance(workload.attention_chunk), pick(capabilities.attention_chunks or (0,))),
        "drafter's group": lambda: (integer(0, PARTS - 1), pick(capabilities.draft_block_sizes or (None,))),
        "depth": lambda: integer(1, max(capabilities.max_async_depth, 1)) if chance(workload.async_scheduling) else 0,
        "block drop": lambda: chance(workload.block_drop),
        "conv width": lambda: pick(capabilities.conv_widths),
        # A few blocks: what happens at a boundary or at the limit happens more often in short requests.
        "length": lambda: pick(workload.model_blocks),
        "seats": lambda: pick(workload.seats),
        # Beside rows that decode, a budget of one block has no room for a block of another prompt, which then waits.
        "tokens": lambda: pick(((3, 0), (4, 0), (2, 3), (8, 0), (1, 3), (6, 0), (2, -1))),
        # Prompts in chunks that leave the rest of the budget to other rows: their blocks are not reserved.
        "threshold": lambda: integer(1, PARTS) if chance(workload.prefill_threshold) else 0,
        "graphs": lambda: pick((*GRAPH_SIZES, ())),
        "policy": lambda: pick(capabilities.policies),
        "spare blocks": lambda: integer(0, PARTS - 1),
    }
    for name, values in capabilities.options.items():
        draws[f"option {name}"] = partial(pick, values)
    return draws


def _pressed_draws(choices: Choices, capabilities: Capabilities, workload: Workload) -> dict[str, Callable[[], Any]]:
    """Return a function for each setting that is drawn otherwise under pressure. The options are fixed: other
    settings give way to them."""
    draws: dict[str, Callable[[], Any]] = {
        "seats": lambda: choices.pick(workload.few_seats),
        "drafts": _drafts_draw(choices, capabilities, workload.speculation_pressed),
    }
    for name, values in capabilities.pressure.items():
        draws[f"option {name}"] = partial(_given, choices.pick(values))
    return draws


def _drafts_draw(choices: Choices, capabilities: Capabilities, percent: int) -> Callable[[], int]:
    """Return a function that draws a number of drafts, not 0 in `percent` of the cases."""
    most = max(capabilities.max_speculative_tokens, 1)
    return lambda: (choices.integer(1, 2 * most - 1) + 2) // 2 if choices.chance(percent) else 0


def is_pressed(config: Config, capabilities: Capabilities) -> bool:
    """Return True if a configuration is under pressure as far as options go, on a target that declares what that is."""
    values = capabilities.pressure
    return bool(values) and all(config.options.get(name) in values[name] for name in values)


def _build(settings: Settings, capabilities: Capabilities, workload: Workload) -> Config:
    """Return the configuration with these settings. A setting that means nothing beside the others has no effect."""
    mode = settings["mode"]
    mamba_size, attention_size = settings["block sizes"]
    mamba_groups, attention_groups = settings["group counts"]
    layers = settings["layers"]
    k = 0
    if mode in capabilities.speculative_modes:
        k = min(settings["drafts"], capabilities.max_speculative_tokens, mamba_size - 1)
    groups = [Group("mamba", mamba_size, layers)] * mamba_groups
    groups += [Group("attention", attention_size, layers)] * attention_groups
    drafter = workload.drafter if k else workload.drafter_unused
    groups += _extra_attention(settings, attention_size, layers, drafter)
    unit = max(mamba_size, attention_size)
    units, more = settings["tokens"]
    config = Config(
        num_blocks=4096,
        groups=tuple(groups),
        mamba_cache_mode=mode,
        enable_prefix_caching=mode != "none",
        num_speculative_tokens=k,
        eagle_block_drop=bool(k) and capabilities.eagle_block_drop and settings["block drop"],
        conv_width=settings["conv width"],
        max_model_len=min(settings["length"] * unit, capabilities.max_model_len),
        max_num_seqs=settings["seats"],
        max_num_batched_tokens=max(units * unit + more, k + 1),
        long_prefill_token_threshold=-(-settings["threshold"] * 2 * unit // PARTS),
        async_depth=min(settings["depth"], capabilities.max_async_depth),
        graph_sizes=settings["graphs"],
        policy=settings["policy"],
        options={name: settings[f"option {name}"] for name in capabilities.options},
    )
    least = config.smallest_pool()
    if not capabilities.has_pool:
        return msgspec.structs.replace(config, num_blocks=least)
    most = 4 + least * min(config.max_num_seqs, SEATS_IN_POOL_MAX)
    return msgspec.structs.replace(config, num_blocks=least + settings["spare blocks"] ** 2 * most // PARTS**2)


def _extra_attention(settings: Settings, size: int, layers: int, drafter: int) -> list[Group]:
    """Return additional attention groups, for a window, for chunks and for a drafter, each in some traces only; one for
    a drafter in `drafter` percent of them."""
    extra: list[Group] = []
    on, window, small = settings["window"]
    if on and window:
        extra.append(Group("attention", min(size, 4) if small else size, layers, window=window))
    on, blocks = settings["chunk"]
    if on and blocks:
        extra.append(Group("attention", size, layers, chunk=size * blocks))
    part, own = settings["drafter's group"]
    if own is not None and part < PARTS * drafter // 100:
        extra.append(Group("attention", own or size, draft=True))
    return extra
