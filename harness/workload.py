"""The workload: which configurations and events are worth trying.

What the grammar knows about hybrid caches, and nothing about single bugs:

    swarm       each trace switches whole features off, so that the others meet more often
    pressure    pools barely hold the largest request, so they wrap within some twenty steps
    sharing     2 to 4 requests share prefixes; prompts repeat, extend and fork earlier ones, and continue with an
                earlier request's own output (multi-turn)
    boundaries  lengths cluster at j * block + {-1, 0, 1, k, k + 1, w - 1}
    idleness    arrivals come in bursts, so that ranks run dry and dummy runs happen
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

import msgspec

from ..targets.base.protocol import Capabilities
from ..targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    CaptureGraphs,
    Config,
    DummyRun,
    Evict,
    ExternalLoad,
    Group,
    MoveTier,
    Preempt,
    ResetPrefixCache,
    Sleep,
    Step,
    Trace,
    TraceError,
    Wake,
    check_config,
)
from .choices import Choices, RandomChoices

EVENTS_MAX = 160
DOCUMENTS = ("a", "b", "c")
CONFIG_TRIES_MAX = 200


def apply_overrides(config: Config, overrides: Mapping[str, object]) -> Config:
    """`config` with fields replaced, as from `--config key=value`; unknown keys are options of the target.

    Values may be strings, which are converted to the field's type. TraceError names the key that does not fit.
    """
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
    known = [*Config.__struct_fields__, *capabilities.options]
    for key in overrides:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise TraceError(f"configuration: there is no {key!r}; {hint}")


def draw_config(choices: Choices, capabilities: Capabilities) -> Config:
    """A configuration that the capabilities allow; the pool is tight."""
    mode = choices.pick(capabilities.modes)
    mamba_size, attention_size = choices.pick(capabilities.block_sizes)
    mamba_groups, attention_groups = choices.pick(capabilities.group_counts)
    layers = choices.pick(capabilities.layers_per_group)
    groups = tuple(
        [Group("mamba", mamba_size, layers)] * mamba_groups
        + [Group("attention", attention_size, layers)] * attention_groups
    )
    k = 0
    if mode in capabilities.speculative_modes and choices.chance(60):
        k = choices.integer(0, min(capabilities.max_speculative_tokens, mamba_size - 1))
    groups += _extra_attention(choices, capabilities, attention_size, layers, k > 0)
    depth = choices.integer(0, capabilities.max_async_depth) if choices.chance(40) else 0
    unit = max(mamba_size, attention_size)
    config = Config(
        num_blocks=4096,
        groups=groups,
        mamba_cache_mode=mode,
        enable_prefix_caching=mode != "none",
        num_speculative_tokens=k,
        eagle_block_drop=bool(k) and capabilities.eagle_block_drop and choices.chance(30),
        conv_width=choices.pick(capabilities.conv_widths),
        max_model_len=min(choices.integer(3, 8) * unit, capabilities.max_model_len),
        max_num_seqs=choices.pick((3, 4, 4, 2, 6, 1)),
        max_num_batched_tokens=max(choices.pick((unit * 2, unit * 3, unit + 3, unit - 1, unit * 6)), k + 1),
        long_prefill_token_threshold=choices.integer(1, 2 * unit) if choices.chance(15) else 0,
        async_depth=depth,
        graph_sizes=choices.pick(((1, 2, 4, 8), (2, 4), (4,), ())),
        policy=choices.pick(capabilities.policies),
        options={name: choices.pick(values) for name, values in capabilities.options.items()},
    )
    spare = choices.integer(0, 4) if choices.chance(40) else choices.integer(4, 12 + config.smallest_pool() * 2)
    return msgspec.structs.replace(config, num_blocks=config.smallest_pool() + spare)


def _extra_attention(
    choices: Choices, capabilities: Capabilities, size: int, layers: int, speculative: bool
) -> tuple[Group, ...]:
    """Attention groups of their own for sliding windows and for a drafter, each in some traces only."""
    extra: list[Group] = []
    if capabilities.windows and choices.chance(20):
        window = choices.pick(capabilities.windows)
        extra.append(Group("attention", choices.pick((size, size, min(size, 4))), layers, window=window))
    if capabilities.draft_block_sizes and choices.chance(40 if speculative else 10):
        extra.append(Group("attention", choices.pick(capabilities.draft_block_sizes), draft=True))
    return tuple(extra)


class Grammar:
    """Draws one event after another for one configuration. It guesses which requests still run; guessing wrong only
    costs a no-op."""

    def __init__(self, config: Config, capabilities: Capabilities, choices: Choices) -> None:
        self.config = config
        self.choices = choices
        self.capabilities = capabilities
        self.left: dict[str, int] = {}
        """Steps that a request is guessed to need still."""
        self.history: list[Arrive] = []
        self.idle = 0
        self.unit = max(group.block_size for group in config.groups)
        self.rare = self._enabled()
        self.burst = choices.pick((1, 2, 3, 4, 6))
        self.short = choices.chance(50)

    def _enabled(self) -> list[tuple[int, Callable[[], AnyEvent]]]:
        """Rare events that this trace uses, with percentages: each feature is off in about half of the traces."""
        rare: dict[str, tuple[int, Callable[[], AnyEvent]]] = {
            "preempt": (12, lambda: Preempt(self.live_name())),
            "abort": (8, lambda: Abort(self.live_name())),
            "evict": (8, lambda: Evict(self.choices.integer(1, 6))),
            "reset_prefix_cache": (5, lambda: ResetPrefixCache(self.choices.chance(50))),
            "capture_graphs": (3, CaptureGraphs),
            "sleep": (3, Sleep),
            "external_load": (15, self.external_load),
            "move_tier": (6, lambda: MoveTier(self.live_name(), "host")),
        }
        return [rare[tag] for tag in rare if tag in self.capabilities.events and self.choices.chance(50)]

    def next_event(self) -> AnyEvent:
        """The next event of a trace."""
        if self.history and isinstance(self._last, Sleep):
            self._last = Wake()
            return self._last
        self._last = self._draw()
        return self._last

    _last: AnyEvent | None = None

    def _draw(self) -> AnyEvent:
        choices = self.choices
        if not self.left:
            self.idle += 1
            if self.history and "dummy_run" in self.capabilities.events and choices.chance(25):
                return self.dummy_run()
            if self.history and self.idle < 3 and choices.chance(25):
                return self.step()
            return self.arrive()
        if len(self.left) < self.burst and choices.chance(30):
            return self.arrive()
        for percent, draw in self.rare:
            if choices.chance(percent):
                return draw()
        return self.step()

    def live_name(self) -> str:
        """A request that is probably alive."""
        return self.choices.pick(list(self.left) or ["r0"])

    def length(self, most: int) -> int:
        """1..most, clustered around block boundaries."""
        choices, config = self.choices, self.config
        if choices.chance(25):
            return choices.integer(1, most)
        size = choices.pick(config.groups).block_size
        k = config.num_speculative_tokens
        near = choices.pick((0, -1, 1, k, k + 1, config.conv_width - 1))
        return min(max(choices.integer(0, most // size) * size + near, 1), most)

    def arrive(self) -> Arrive:
        """A request: a new prompt, or one that shares with earlier ones."""
        choices, config = self.choices, self.config
        name = f"r{len(self.history)}"
        new_max = min(config.max_model_len - 2, 6 if self.short else 3 * self.unit)
        max_new = self.length(new_max) if choices.chance(70) else choices.integer(1, min(4, new_max))
        room = config.max_model_len - max_new
        path = self._shared_path(room) if self.history and choices.chance(75) else None
        if path is None:
            path = ((choices.pick(DOCUMENTS), self.length(room)),)
        priority = choices.integer(0, 2) if config.policy == "priority" else 0
        event = Arrive(name, path, max_new, priority)
        self.history.append(event)
        total = sum(length for _, length in path)
        self.left[name] = total // max(config.max_num_batched_tokens // 2, 1) + 1 + max_new
        self.idle = 0
        return event

    def _shared_path(self, room: int) -> tuple[tuple[str, int], ...] | None:
        """The same prompt again, a prefix of it, or it with its own continuation and more; None if too long."""
        choices = self.choices
        earlier = choices.pick(self.history[-4:])
        path = earlier.prompt
        kind = choices.integer(0, 3)
        if kind == 1:
            document, length = path[-1]
            path = (*path[:-1], (document, self.length(max(length + self.unit, 1))))
        elif kind >= 2:
            said = min(choices.integer(1, earlier.max_new_tokens), earlier.max_new_tokens)
            path = (*path, ("~", said))
            if kind == 3:
                path = (*path, (choices.pick(DOCUMENTS), self.length(self.unit)))
        used = sum(length for _, length in path)
        return path if used <= room and len(path) <= 16 else None

    def step(self) -> Step:
        """One engine step, sometimes with a small budget, limits, few or wrong drafts."""
        choices, config = self.choices, self.config
        k = config.num_speculative_tokens
        drafts = right = 0
        per_request: dict[str, tuple[int, int]] = {}
        if k:
            drafts = k if not self.capabilities.variable_drafts or choices.chance(70) else choices.integer(0, k)
            right = choices.integer(0, drafts)
            if choices.chance(40):
                own = choices.integer(0, k) if self.capabilities.variable_drafts else drafts
                per_request[self.live_name()] = (own, choices.integer(0, own))
        chunks = {}
        if "chunks" in self.capabilities.reaches and choices.chance(12):
            chunks[self.live_name()] = choices.integer(1, self.unit + 2)
        budget = choices.integer(k + 1, config.max_num_batched_tokens) if choices.chance(20) else None
        for name in list(self.left):
            self.left[name] -= 1 + right
            if self.left[name] <= 0:
                del self.left[name]
        pad_to = choices.integer(1, 8) if choices.chance(10) else 0
        return Step(budget, chunks, drafts, right, per_request, pad_to)

    def external_load(self) -> ExternalLoad:
        """A connector holds the beginning of the latest request, which most probably still waits."""
        name, chance = list(self.left or ["r0"])[-1], self.choices.chance
        return ExternalLoad(name, self.length(self.config.max_model_len), chance(85), chance(20))

    def dummy_run(self) -> DummyRun:
        """What an idle data-parallel rank executes."""
        return DummyRun(self.choices.integer(1, self.config.max_num_seqs), self.choices.chance(85))


def draw_valid_config(choices: Choices, factory_supports: Callable[[Config], str], capabilities: Capabilities,
                      overrides: Mapping[str, object]) -> Config:  # fmt: skip
    """A configuration that fits the overrides and that the target supports. TraceError if none is found."""
    reason = ""
    for _ in range(CONFIG_TRIES_MAX):
        config = apply_overrides(draw_config(choices, capabilities), overrides)
        if "num_blocks" not in overrides and config.num_blocks < config.smallest_pool():
            config = msgspec.structs.replace(config, num_blocks=config.smallest_pool() + choices.integer(0, 12))
        try:
            check_config(config)
        except TraceError as error:
            reason = str(error)
            continue
        reason = factory_supports(config)
        if not reason:
            return config
    raise TraceError(f"no configuration fits the target and the overrides: {reason}")


def draw_trace(
    capabilities: Capabilities,
    seed: int,
    index: int,
    overrides: Mapping[str, object] | None = None,
    supports: Callable[[Config], str] = lambda config: "",
) -> Trace:
    """Trace `index` of a campaign with this seed: a pure function of its arguments."""
    choices = RandomChoices(seed, index)
    config = draw_valid_config(choices, supports, capabilities, overrides or {})
    grammar = Grammar(config, capabilities, choices)
    count = choices.pick((12, 25, 50, 50, 100, EVENTS_MAX))
    events: tuple[AnyEvent, ...] = tuple(grammar.next_event() for _ in range(count))
    return Trace(config, events, origin=f"seed {seed}, trace {index}")
