"""Where traces come from, for comparisons: the workload as it is, plain uniform randomness, and the workload with
feedback from reached states.

A source draws the next trace and is told how it ended. All are deterministic from their seed.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, combinations
from typing import Any, Protocol

import msgspec

from hybridfuzz.harness.draw.choices import RandomChoices
from hybridfuzz.harness.draw.configurations import draw_config
from hybridfuzz.harness.draw.grammar import ENDING_MAX, Grammar, draw_trace
from hybridfuzz.harness.draw.workload import DEFAULT
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.targets.base import trace as events
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Config, Group, Step, Trace, TraceError, check_config

NAMES = tuple(f"r{index}" for index in range(10))


class Source(Protocol):
    """Draws traces."""

    def draw(self) -> Trace:
        """The next one."""
        ...

    def learn(self, trace: Trace, outcome: Outcome) -> None:
        """How it ended."""
        ...


class Workload:
    """The product's own source."""

    def __init__(self, factory: TargetFactory, seed: int) -> None:
        self.factory, self.seed, self.index = factory, seed, 0

    def draw(self) -> Trace:
        self.index += 1
        factory = self.factory
        return draw_trace(factory.capabilities, self.seed, self.index - 1, {}, factory.supports)

    def learn(self, trace: Trace, outcome: Outcome) -> None:
        pass


class Uniform:
    """Every kind of event equally likely, every number uniform, every prompt a document of its own; configurations
    uniform over what the target declares, with pools of any size. No swarm, no clusters, no sharing, no pressure."""

    def __init__(self, factory: TargetFactory, seed: int) -> None:
        self.factory, self.seed, self.index = factory, seed, 0

    def draw(self) -> Trace:
        self.index += 1
        choices = RandomChoices(self.seed, self.index)
        config = self.config(choices)
        tags = sorted(self.factory.capabilities.events)
        drawn: list[AnyEvent] = []
        for number in range(50):
            drawn.append(self.event(choices, config, choices.pick(tags), f"r{number}"))
        return Trace(config, tuple(drawn), origin=f"uniform, seed {self.seed}, trace {self.index}")

    def learn(self, trace: Trace, outcome: Outcome) -> None:
        pass

    def config(self, choices: RandomChoices) -> Config:
        capabilities = self.factory.capabilities
        while True:
            mode = choices.pick(capabilities.modes)
            mamba, attention = choices.pick(capabilities.block_sizes)
            mambas, attentions = choices.pick(capabilities.group_counts)
            layers = choices.pick(capabilities.layers_per_group)
            groups = [Group("mamba", mamba, layers)] * mambas + [Group("attention", attention, layers)] * attentions
            if capabilities.windows and choices.chance(50):
                groups.append(Group("attention", attention, layers, window=choices.pick(capabilities.windows)))
            if capabilities.draft_block_sizes and choices.chance(50):
                groups.append(Group("attention", choices.pick(capabilities.draft_block_sizes), draft=True))
            k = choices.integer(0, capabilities.max_speculative_tokens)
            config = Config(
                num_blocks=choices.integer(8, 256),
                groups=tuple(groups),
                mamba_cache_mode=mode,
                enable_prefix_caching=mode != "none",
                num_speculative_tokens=k,
                eagle_block_drop=bool(k) and capabilities.eagle_block_drop and choices.chance(50),
                conv_width=choices.pick(capabilities.conv_widths),
                max_model_len=choices.integer(8, capabilities.max_model_len),
                max_num_seqs=choices.integer(1, 8),
                max_num_batched_tokens=choices.integer(k + 1, 96),
                long_prefill_token_threshold=choices.integer(0, 48),
                async_depth=choices.integer(0, capabilities.max_async_depth),
                policy=choices.pick(("fcfs", "priority") if "priority" in capabilities.policies else ("fcfs",)),
                options={name: choices.pick(values) for name, values in capabilities.options.items()},
            )
            try:
                check_config(config)
            except TraceError:
                continue
            if not self.factory.supports(config):
                return config

    def event(self, choices: RandomChoices, config: Config, tag: str, fresh: str) -> AnyEvent:
        k = config.num_speculative_tokens
        if tag == "arrive":
            new = choices.integer(1, config.max_model_len - 1)
            prompt = ((fresh, choices.integer(1, config.max_model_len - new)),)
            return Arrive(fresh, prompt, new, choices.integer(0, 2))
        if tag == "step":
            drafts = choices.integer(0, k)
            return Step(choices.integer(1, config.max_num_batched_tokens), {}, drafts, choices.integer(0, drafts))
        kind = next(kind for kind in vars(events).values() if _tag(kind) == tag)
        numbers: dict[str, Callable[[], Any]] = {
            "name": lambda: choices.pick(NAMES),
            "parent": lambda: choices.pick(NAMES),
            "slot": lambda: choices.pick(NAMES),
            "tier": lambda: "host",
            "order": lambda: (choices.pick(NAMES),),
            "prompt": lambda: ((fresh, choices.integer(1, config.max_model_len)),),
        }
        values = {}
        for field in msgspec.structs.fields(kind):
            if field.name in numbers:
                values[field.name] = numbers[field.name]()
            elif field.type is bool:
                values[field.name] = choices.chance(50)
            else:
                values[field.name] = choices.integer(1, config.max_model_len)
        event: AnyEvent = kind(**values)
        return event


def _tag(kind: object) -> str:
    return str(getattr(getattr(kind, "__struct_config__", None), "tag", ""))


class Entry:
    """A trace worth mutating, and the features that no earlier one had."""

    def __init__(self, trace: Trace, features: set[object]) -> None:
        self.trace, self.features, self.picked = trace, features, 0


class Feedback:
    """The workload, and traces that reached something new mutated: half and half.

    A feature is a reached state with the size of its count (powers of two), or a pair of states in one trace. A trace
    with a feature that no earlier one had is kept. Energy: the rarer the rarest of these features still is and the less
    often the trace was picked, the likelier it is picked.
    """

    mutated_percent = 50
    kept_max = 400

    def __init__(self, factory: TargetFactory, seed: int) -> None:
        self.factory = factory
        self.blind = Workload(factory, seed)
        self.seen: Counter[object] = Counter()
        self.entries: list[Entry] = []
        self.number, self.seed = 0, seed

    def draw(self) -> Trace:
        self.number += 1
        choices = RandomChoices(self.seed, -self.number)
        if not self.entries or not choices.chance(self.mutated_percent):
            return self.blind.draw()
        for _ in range(20):
            mutated = self.mutate(choices)
            try:
                check_config(mutated.config)
            except TraceError:
                continue
            if not self.factory.supports(mutated.config):
                return mutated
        return self.blind.draw()

    def learn(self, trace: Trace, outcome: Outcome) -> None:
        states = sorted(state for state, count in outcome.reached.items() if count)
        features: set[object] = {(state, outcome.reached[state].bit_length()) for state in states}
        features |= set(combinations(states, 2))
        new = features - self.seen.keys()
        self.seen.update(features)
        if new:
            self.entries.append(Entry(trace, new))
            if len(self.entries) > self.kept_max:
                self.entries.remove(min(self.entries, key=self.energy))

    def energy(self, entry: Entry) -> float:
        return 1.0 / (min(self.seen[feature] for feature in entry.features) * (entry.picked + 1))

    def pick(self, choices: RandomChoices) -> Entry:
        energies = list(accumulate(self.energy(entry) for entry in self.entries))
        point = choices.integer(0, 1 << 30) / (1 << 30) * energies[-1]
        entry = self.entries[min(bisect(energies, point), len(energies) - 1)]
        entry.picked += 1
        return entry

    def mutate(self, choices: RandomChoices) -> Trace:
        trace = self.pick(choices).trace
        for _ in range(choices.integer(1, 4)):
            trace = choices.pick((self.splice, self.insert, self.insert, self.delete, self.lengths, self.configure))(
                choices, trace
            )
        events = trace.events[: max(DEFAULT.events) + ENDING_MAX]
        return msgspec.structs.replace(trace, events=events, origin=f"feedback {self.number}")

    def splice(self, choices: RandomChoices, trace: Trace) -> Trace:
        """The first part of one, the last part of another, its requests renamed."""
        other = self.pick(choices).trace.events
        tail = tuple(_renamed(event, "s") for event in other[choices.integer(0, len(other)) :])
        return msgspec.structs.replace(trace, events=trace.events[: choices.integer(0, len(trace.events))] + tail)

    def insert(self, choices: RandomChoices, trace: Trace) -> Trace:
        """A few new events that know the requests so far."""
        at = choices.integer(0, len(trace.events))
        grammar = Grammar(trace.config, self.factory.capabilities, choices)
        for event in trace.events[:at]:
            if isinstance(event, Arrive):
                grammar.history.append(event)
                grammar.expect(event.name, sum(length for _, length in event.prompt), event.max_new_tokens)
        new = []
        for _ in range(choices.integer(1, 6)):
            event = grammar.next_event()
            new.append(_renamed(event, "i") if isinstance(event, Arrive) else event)
        return msgspec.structs.replace(trace, events=(*trace.events[:at], *new, *trace.events[at:]))

    def delete(self, choices: RandomChoices, trace: Trace) -> Trace:
        """Without a few events."""
        at = choices.integer(0, len(trace.events))
        return msgspec.structs.replace(
            trace, events=trace.events[:at] + trace.events[at + choices.integer(1, 6) :] or trace.events
        )

    def lengths(self, choices: RandomChoices, trace: Trace) -> Trace:
        """Other lengths, around block boundaries."""
        grammar = Grammar(trace.config, self.factory.capabilities, choices)

        def changed(event: AnyEvent) -> AnyEvent:
            if isinstance(event, Arrive) and choices.chance(30):
                (document, _), *rest = event.prompt
                room = trace.config.max_model_len - event.max_new_tokens - sum(length for _, length in rest)
                if room > 0:
                    return msgspec.structs.replace(event, prompt=((document, grammar.length(room)), *rest))
            return grammar.step() if isinstance(event, Step) and choices.chance(15) else event

        return msgspec.structs.replace(trace, events=tuple(changed(event) for event in trace.events))

    def configure(self, choices: RandomChoices, trace: Trace) -> Trace:
        """One field of the configuration drawn again; the pool stays as tight as it was."""
        other = draw_config(choices, self.factory.capabilities)
        field = choices.pick(
            ("max_num_seqs", "max_num_batched_tokens", "async_depth", "graph_sizes", "policy", "conv_width",
             "long_prefill_token_threshold", "groups", "num_speculative_tokens", "num_blocks")
        )  # fmt: skip
        spare = trace.config.num_blocks - trace.config.smallest_pool()
        if field == "num_blocks":
            spare = choices.integer(0, 4)
        else:
            trace = msgspec.structs.replace(
                trace, config=msgspec.structs.replace(trace.config, **{field: getattr(other, field)})
            )
        config = trace.config
        return msgspec.structs.replace(
            trace, config=msgspec.structs.replace(config, num_blocks=config.smallest_pool() + max(spare, 0))
        )


def _renamed(event: AnyEvent, prefix: str) -> AnyEvent:
    """Requests under other names, so that they do not collide."""
    changes: dict[str, object] = {}
    if isinstance(event, Step):
        changes = {
            "chunks": {prefix + name: limit for name, limit in event.chunks.items()},
            "per_request": {prefix + name: pair for name, pair in event.per_request.items()},
        }
    for field in ("name", "parent"):
        if hasattr(event, field):
            changes[field] = (prefix + getattr(event, field))[:64]
    return msgspec.structs.replace(event, **changes)
