"""The workload grammar: draws the events of a trace.

It uses what is known about hybrid caches, and nothing about single bugs:

    swarm       each trace switches whole features off, so that the others meet more often
    sharing     2 to 4 requests share prefixes; prompts repeat, extend and fork earlier ones, and continue with an
                earlier request's own output (multi-turn)
    boundaries  lengths cluster at j * block + {-1, 0, 1, k, k + 1, w - 1}
    idleness    arrivals come in bursts, so that ranks become idle and dummy runs happen
    turns       sessions are parked while other requests need their blocks, and resume before or after losing them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    CaptureGraphs,
    Config,
    DummyRun,
    Evict,
    ExternalLoad,
    Fork,
    MoveTier,
    Park,
    Preempt,
    ResetPrefixCache,
    Resume,
    Sleep,
    Step,
    Trace,
    Truncate,
    Wake,
)
from .choices import Choices, RandomChoices
from .configurations import draw_valid_config

EVENTS_MAX = 160
DOCUMENTS = ("a", "b", "c")


class Grammar:
    """Draws one event after another for one configuration. It guesses which requests still run; a wrong guess costs
    only a no-op."""

    def __init__(self, config: Config, capabilities: Capabilities, choices: Choices) -> None:
        self.config = config
        self.choices = choices
        self.capabilities = capabilities
        self.left: dict[str, int] = {}
        """Estimated number of steps that each request still needs."""
        self.history: list[Arrive] = []
        self.sessions: dict[str, int] = {}
        """Sessions that are not closed -> the most tokens that they can have."""
        self.idle = 0
        self.unit = max(group.block_size for group in config.groups)
        self.rare = self._enabled()
        self.burst = choices.pick((1, 2, 3, 4, 6))
        self.short = choices.chance(50)
        self.talks = "resume" in capabilities.events and choices.chance(50)
        self.forks = self.talks and "fork" in capabilities.events and choices.chance(40)
        self.cuts = self.talks and "truncate" in capabilities.events and choices.chance(50)

    def _enabled(self) -> list[tuple[int, Callable[[], AnyEvent]]]:
        """Return the rare events that this trace uses, with percentages. Each is off in about half of the traces."""
        rare: dict[str, tuple[int, Callable[[], AnyEvent]]] = {
            "preempt": (12, lambda: Preempt(self.holder())),
            "abort": (8, self.abort),
            "park": (8, lambda: Park(self.live_name())),
            "evict": (8, lambda: Evict(self.choices.integer(1, 6))),
            "reset_prefix_cache": (5, lambda: ResetPrefixCache(self.choices.chance(50))),
            "capture_graphs": (3, CaptureGraphs),
            "sleep": (3, Sleep),
            "external_load": (15, self.external_load),
            "move_tier": (6, lambda: MoveTier(self.live_name(), "host")),
        }
        return [rare[tag] for tag in rare if tag in self.capabilities.events and self.choices.chance(50)]

    def next_event(self) -> AnyEvent:
        """Return the next event of the trace."""
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
            if self.sessions and choices.chance(75):
                return self.turn()
            return self.arrive()
        if len(self.left) < self.burst and choices.chance(30):
            return self.arrive()
        if any(name not in self.left for name in self.sessions) and choices.chance(35):
            return self.turn()
        for percent, draw in self.rare:
            if choices.chance(percent):
                return draw()
        return self.step()

    def live_name(self) -> str:
        """Return a request that is probably alive."""
        return self.choices.pick(list(self.left) or ["r0"])

    def holder(self) -> str:
        """Return a request that is probably alive, or a session."""
        return self.choices.pick(list({**self.left, **self.sessions}) or ["r0"])

    def abort(self) -> Abort:
        """Return an abort of a request or a session."""
        name = self.holder()
        self.sessions.pop(name, None)
        return Abort(name)

    def turn(self) -> Resume | Truncate | Fork | Step:
        """Return the next turn, a truncation or a fork of a session that is probably parked. A session without room
        for another turn stays parked until the end of the trace."""
        name = self.choices.pick([name for name in self.sessions if name not in self.left])
        if self.cuts and self.choices.chance(40):
            self.sessions[name] = self.length(self.sessions[name])
            return Truncate(name, self.sessions[name])
        if self.forks and len(self.sessions) < 6 and self.choices.chance(25):
            fork = f"{name}f{len(self.sessions)}"
            self.sessions[fork] = self.sessions[name]
            return Fork(fork, name)
        room = self.config.max_model_len - self.sessions[name]
        if room < 2:
            del self.sessions[name]
            return self.step()
        max_new = self.length(min(room - 1, 6 if self.short else self.unit))
        prompt = self.length(min(room - max_new, 2 * self.unit))
        self.sessions[name] += prompt + max_new
        self.expect(name, prompt, max_new)
        return Resume(name, ((self.choices.pick(DOCUMENTS), prompt),), max_new)

    def expect(self, name: str, prompt: int, max_new: int) -> None:
        """Estimate the steps that a request or a turn needs."""
        self.left[name] = prompt // max(self.config.max_num_batched_tokens // 2, 1) + 1 + max_new
        self.idle = 0

    def length(self, most: int) -> int:
        """Return a length in 1..most, clustered around block boundaries."""
        choices, config = self.choices, self.config
        if choices.chance(25):
            return choices.integer(1, most)
        size = choices.pick(config.groups).block_size
        k = config.num_speculative_tokens
        near = choices.pick((0, -1, 1, k, k + 1, config.conv_width - 1))
        return min(max(choices.integer(0, most // size) * size + near, 1), most)

    def arrive(self) -> Arrive:
        """Return an arrival with a new prompt, or with one that shares a prefix with earlier ones."""
        choices, config = self.choices, self.config
        name = f"r{len(self.history)}"
        new_max = min(config.max_model_len - 2, 6 if self.short else 3 * self.unit)
        max_new = self.length(new_max) if choices.chance(70) else choices.integer(1, min(4, new_max))
        session = self.talks and choices.chance(60)
        room = (config.max_model_len - max_new) // (2 if session else 1)
        path = self._shared_path(room) if self.history and choices.chance(75) else None
        if path is None:
            path = ((choices.pick(DOCUMENTS), self.length(room)),)
        priority = choices.integer(0, 2) if config.policy == "priority" else 0
        event = Arrive(name, path, max_new, priority, session)
        self.history.append(event)
        total = sum(length for _, length in path)
        if session:
            self.sessions[name] = total + max_new
        self.expect(name, total, max_new)
        return event

    def _shared_path(self, room: int) -> tuple[tuple[str, int], ...] | None:
        """Return an earlier prompt again, a prefix or extension of it, or it with its own output and more; None if it
        is too long."""
        choices = self.choices
        earlier = choices.pick(self.history[-4:])
        path = earlier.prompt
        kind = choices.integer(0, 3)
        if kind == 1:
            document, length = path[-1]
            path = (*path[:-1], (document, self.length(max(length + self.unit, 1))))
        elif kind >= 2:
            output = min(choices.integer(1, earlier.max_new_tokens), earlier.max_new_tokens)
            path = (*path, ("~", output))
            if kind == 3:
                path = (*path, (choices.pick(DOCUMENTS), self.length(self.unit)))
        used = sum(length for _, length in path)
        return path if used <= room and len(path) <= 16 else None

    def step(self) -> Step:
        """Return an engine step, sometimes with a small budget, limits for requests, few or wrong drafts."""
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
        if "chunks" in self.capabilities.features and choices.chance(12):
            chunks[self.live_name()] = choices.integer(1, self.unit + 2)
        budget = choices.integer(k + 1, config.max_num_batched_tokens) if choices.chance(20) else None
        for name in list(self.left):
            self.left[name] -= 1 + right
            if self.left[name] <= 0:
                del self.left[name]
        pad_to = choices.integer(1, 8) if choices.chance(10) else 0
        return Step(budget, chunks, drafts, right, per_request, pad_to)

    def external_load(self) -> ExternalLoad:
        """Return a KV connector that holds the beginning of the latest request, which is probably still waiting."""
        name, chance = list(self.left or ["r0"])[-1], self.choices.chance
        return ExternalLoad(name, self.length(self.config.max_model_len), chance(85), chance(20))

    def dummy_run(self) -> DummyRun:
        """Return a dummy run, as of an idle data-parallel rank."""
        return DummyRun(self.choices.integer(1, self.config.max_num_seqs), self.choices.chance(85))


def draw_trace(
    capabilities: Capabilities,
    seed: int,
    index: int,
    overrides: Mapping[str, object] | None = None,
    supports: Callable[[Config], str] = lambda config: "",
) -> Trace:
    """Return trace `index` of a campaign with this seed: a pure function of its arguments."""
    choices = RandomChoices(seed, index)
    shared = capabilities.traces_per_configuration
    source = choices if shared == 1 else RandomChoices(seed, -1 - index // shared)
    config = draw_valid_config(source, supports, capabilities, overrides or {})
    grammar = Grammar(config, capabilities, choices)
    count = choices.pick((12, 25, 50, 50, 100, EVENTS_MAX))
    events: tuple[AnyEvent, ...] = tuple(grammar.next_event() for _ in range(count))
    return Trace(config, events, origin=f"seed {seed}, trace {index}")
