"""The workload grammar: draws the events of a trace.

It uses what is known about hybrid caches, and nothing about single bugs:

    swarm       each trace switches whole features off, so that the others meet more often
    sharing     2 to 4 requests share prefixes; prompts repeat, extend and fork earlier ones, and continue with an
                earlier request's own output (multi-turn)
    boundaries  lengths cluster at j * block + {-1, 0, 1, k, k + 1, w - 1}, and some requests run up to max_model_len
    company     arrivals come in bursts: most of what can go wrong in a batch needs two rows that differ, and a request
                that runs alone triggers none of them. Between bursts ranks become idle, and dummy runs happen
    endings     a trace goes on without arrivals until its requests have ended: the lockstep would end them by plain
                steps, which are all alike. In some traces the rest is aborted instead. What requests leave behind in
                an engine's buffers shows in a dummy run
    short       what a configuration can fail with, it mostly fails with in its first steps: most traces are short,
                so that there are many
    turns       sessions are parked while other requests need their blocks, and resume before or after losing them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import structs

from ...reference.batch import copy_name, original_name, repeated
from ...targets.base.alphabet import Draws, Refers, Usual, defaults, fields_with
from ...targets.base.protocol import Capabilities
from ...targets.base.trace import (
    KINDS,
    Abort,
    AnyEvent,
    Arrive,
    Config,
    DummyRun,
    Evict,
    ExternalLoad,
    Fork,
    Reorder,
    Repeat,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Select,
    Sleep,
    Step,
    SwitchStorage,
    Trace,
    Truncate,
    Turn,
    Wake,
    features_of,
    has_stop_string,
    tag_of,
)
from .aim import CANDIDATES, Aim, likeness
from .avoid import REDRAWS_MAX, Circumstances
from .choices import Choices, RandomChoices
from .configurations import draw_valid_config, is_pressed
from .workload import DEFAULT, Workload

OneTurn = TypeVar("OneTurn", Arrive, Resume)
ENDING_MAX = 100
"""Most events that follow until the requests have ended."""
SHORT_PER_SEAT = 3
"""Most short requests between an eviction and one for what was evicted, for each that may run: pools of states have
about as many slots, and what is stored elsewhere locks one."""
SHORT_MAX = 12
REQUESTS_LEFT_MAX = 12
"""Latest requests that a trace may end with an abort of."""
SESSIONS_MAX = 6
BEYOND_MAX = 3
"""Tokens that an answer must have beyond its context, if it must have more than that holds."""
IDLE_STEPS = 4
"""Events from the estimated end of all requests to an event that needs an idle engine, itself included: the estimate is
too low."""
PRIORITY_MAX = 7
"""Least important priority: large enough that most requests differ."""


class Grammar:
    """Draws one event after another for one configuration. It guesses which requests still run; a wrong guess costs
    only a no-op."""

    def __init__(
        self,
        config: Config,
        capabilities: Capabilities,
        choices: Choices,
        workload: Workload = DEFAULT,
        apart: Choices | None = None,
    ) -> None:
        """`apart` makes the choices of what requests ask for beside tokens, if these are not to shift the others."""
        self.config = config
        self.choices = choices
        self.apart = apart
        self.workload = workload
        self.capabilities = capabilities
        off = capabilities.switched_off(config.options)
        features = capabilities.features - off
        self.events = capabilities.events - off
        """Tags of the events that are drawn."""
        self.is_brief = "long-answers" in off
        """True if each answer has one token."""
        self.is_accurate = config.num_speculative_tokens > 0 and self._asking.chance(workload.accurate)
        """True if drafts are right where a request has none of its own. Two verifications in a row then cross
        boundaries, and answers end inside a verification. Drawn first, so that no feature changes it."""
        self.is_pressed = is_pressed(config, capabilities)
        """True if memory is to run short: requests then run to the end of their context from short prompts, too."""
        self.left: dict[str, int] = {}
        """Requests that probably still run or wait, in order of arrival -> the output tokens that each still needs."""
        self.uncomputed: dict[str, int] = {}
        """Tokens of their prompts that are probably not computed yet."""
        self.history: list[Arrive] = []
        self.sessions: dict[str, int] = {}
        """Sessions that are not closed -> the most tokens that they can have."""
        self.before_turn: dict[str, int] = {}
        """Sessions in a later turn than their first -> the most tokens that they had before it."""
        self.aborts_turns = "aborted-turns" in capabilities.features
        self.idle = 0
        self.detached = False
        """True if the storage is detached: another switch attaches it again."""
        self.unit = max(group.block_size for group in config.groups)
        self.documents = capabilities.documents_with(config.options)
        self.loads_back = "evict" in self.events and bool(features & {"loads-back", "reloads"})
        """True if what is evicted may be loaded back: requests then often ask for it."""
        acts_on = {SwitchStorage: "storage" in features, ResetEncoderCache: "images" in features_of(self.documents)}
        self.without_effect = {kind for kind, is_there in acts_on.items() if not is_there}
        """Kinds of events for which a trace of this configuration has nothing to act on."""
        self.after_evict: tuple[int, tuple[tuple[str, int], ...] | None] | None = None
        """After an eviction, short requests still to arrive, and the earlier prompt that arrives then."""
        self.rare = self._enabled()
        self.idle_left = 0
        """Events still to draw once all requests have probably ended, `behind_idle` included; 0 if nothing is due."""
        self.behind_idle: Callable[[], AnyEvent] = self.reset_prefix_cache
        """Draws the event that has an effect only then."""
        self.burst = choices.pick(workload.bursts)
        self.short = choices.chance(workload.short_answers)
        self.talks = "resume" in self.events and choices.chance(workload.conversations)
        # A parked session may keep a seat: most traces leave seats to others.
        self.sessions_max = max(config.max_num_seqs // 2, 1) if choices.chance(workload.few_sessions) else SESSIONS_MAX
        self.forks = self.talks and "fork" in self.events and choices.chance(workload.forks)
        self.waits = "async-loads" in capabilities.features and "external_load" in self.events
        """True if requests wait for loads. A load then often follows an arrival or a turn directly, before the request
        runs."""
        self.cuts = self.talks and "truncate" in self.events and choices.chance(workload.truncations)
        self.stops = bool("stop-tokens" in features and workload.stop_token)
        self.asks_for_logprobs = self._is_asked("prompt-logprobs", workload.logprobs_used)
        self.asks_for_ends = "logprobs-from" in capabilities.features
        drafts = config.num_speculative_tokens > 0
        # Grammars are walked, rolled back and waited for beside drafts only.
        most_structured = max(workload.structured_used, workload.structured_drafted * drafts)
        self.is_structured = self._is_asked("structured-output", most_structured)
        self.reasons = "reasoning" in capabilities.features
        self.samples = self._is_asked("samples", workload.samples_used)
        self.is_exact = drafts and "least-beside-drafts" in capabilities.lacks
        """True if an answer with a minimum number of tokens must have all that it may have."""
        # What a step in flight behind such an end samples then depends on how the engine counts.
        unknown_behind_the_end = self.is_exact and config.async_depth > 0
        self.has_least = self.stops and "min-tokens" in capabilities.features and not unknown_behind_the_end
        self.finds_strings = self.stops and "stop-strings" in capabilities.features
        self.finds_strings_everywhere = "strings-everywhere" not in capabilities.lacks
        self.verifies_past_length = self.stops and drafts and "drafts-past-length" in capabilities.features
        """True if a verification may accept tokens, and a stop token among them, behind the longest answer."""
        self.has_least_by_grammar = "least-by-grammar" not in capabilities.lacks
        """True if an answer may have a minimum number of tokens and a grammar that is complete before it."""
        self.fails_grammars = self._is_asked("failing-grammars", workload.bad_grammars_used)
        self.others: list[Arrive] = []
        """Further samples of the prompt that arrived last: they arrive next."""

    def _is_asked(self, feature: str, percent: int) -> bool:
        """Return True if requests of this trace may ask for something that needs a feature."""
        return feature in self.capabilities.features and self._asking.chance(percent)

    @property
    def _asking(self) -> Choices:
        return self.apart or self.choices

    def _enabled(self) -> list[tuple[int, Callable[[], AnyEvent]]]:
        """Return the rare events that this trace uses, with percentages. Each is off in some of the traces."""
        drawn_by: dict[type[AnyEvent], Callable[[], AnyEvent]] = {}
        if "reset-when-idle" in self.capabilities.features:
            drawn_by[ResetPrefixCache] = self.idle_reset
        drawn_by[SwitchStorage] = partial(self.when_idle, SwitchStorage)
        kinds = [kind for kind in KINDS if kind not in self.without_effect]
        rare, chance, workload = dict(self.workload.rare), self.choices.chance, self.workload
        used = dict.fromkeys(rare, workload.kind_used)
        if self.loads_back:
            rare[tag_of(Evict)], used[tag_of(Evict)] = workload.evict_loadable, workload.evictions_used
        return [
            (rare[tag], drawn_by.get(kind, partial(self.draw, kind)))
            for kind in kinds
            if (tag := tag_of(kind)) in rare and tag in self.events and chance(used[tag])
        ]

    def draw(self, kind: type[AnyEvent]) -> AnyEvent:
        """Return a rare event: with a method of its own if its kind depends on what happened before, else field by
        field, as their marks say."""
        own: dict[type[AnyEvent], Callable[[], AnyEvent]] = {
            Abort: self.abort,
            ResetPrefixCache: self.reset_prefix_cache,
            ExternalLoad: self.external_load,
            Select: self.select,
            Reorder: self.reorder,
            Repeat: self.repeat,
        }
        if kind in own:
            return own[kind]()
        values = {**defaults(kind), **{field: usual.value for field, usual in fields_with(kind, Usual)}}
        values |= {field: self.choices.integer(draws.low, draws.high) for field, draws in fields_with(kind, Draws)}
        for field, refers in fields_with(kind, Refers):
            values[field] = self.holder() if refers.parked else self.live_name()
        return kind(**values)

    def next_event(self) -> AnyEvent:
        """Return the next event of the trace."""
        if self.history and isinstance(self._last, Sleep):
            self._last = Wake()
            return self._last
        self._last = self._draw()
        self.detached ^= isinstance(self._last, SwitchStorage)
        return self._last

    def all_events(self) -> tuple[AnyEvent, ...]:
        """Return the events of a trace: a number of them, then aborts, or more with few arrivals until all requests
        have probably ended, and some beyond that."""
        count = self.choices.pick(self.workload.events)
        events = [self.next_event() for _ in range(count)]
        if isinstance(self._last, Sleep):
            events.append(self.next_event())
        self.burst = 0
        if "abort" in self.events and self.choices.chance(self.workload.aborted_at_end):
            events += self.aborts()
        else:
            while self.left and len(events) < count + ENDING_MAX:
                events.append(self.next_event())
            events += self.overtime()
        if "dummy_run" in self.events and self.choices.chance(self.workload.dummy_at_end):
            events.append(self.dummy_run())
        return tuple(events)

    def overtime(self) -> list[AnyEvent]:
        """Return events for the latest requests, as if they still ran: the estimate knows no pool. If none runs any
        more, steps of an idle engine cost little."""
        events: list[AnyEvent] = []
        for _ in range(self.choices.pick(self.workload.overtime)):
            nothing_due = not (self.left or self.idle_left)
            for event in self.history[-self.config.max_num_seqs :] if nothing_due else ():
                self.expect(event.name, 0, self.unit)
            events.append(self.next_event())
        if isinstance(self._last, Sleep):
            events.append(self.next_event())
        return events

    _last: AnyEvent | None = None

    def _draw(self) -> AnyEvent:
        choices, workload = self.choices, self.workload
        if self.others:
            return self.others.pop(0)
        if self.idle_left:
            return self.next_due()
        arriving = isinstance(self._last, Arrive | ExternalLoad)
        if self.waits and isinstance(self._last, Turn) and choices.chance(workload.load_follows):
            return self.external_load()
        if (
            self.loads_back
            and isinstance(self._last, Evict)
            and self.history
            and choices.chance(workload.evicted_again)
        ):
            before = choices.integer(0, min(SHORT_PER_SEAT * self.config.max_num_seqs, SHORT_MAX))
            self.after_evict = before, self._shared_path(self.config.max_model_len - 2)
        if self.after_evict is not None:
            return self.arrive_after_evict(*self.after_evict)
        if not self.left:
            self.idle += 1
            if self.detached and self._asking.chance(workload.switch_back):
                return self.when_idle(SwitchStorage)
            if self.history and "dummy_run" in self.events and choices.chance(workload.idle_dummy):
                return self.dummy_run()
            if self.history and self.idle < 3 and choices.chance(workload.idle_step):
                return self.step()
            if self.sessions and choices.chance(workload.idle_turn):
                return self.turn()
            return self.arrive()
        if len(self.left) < self.burst and choices.chance(workload.arrival_in_burst if arriving else workload.arrival):
            return self.arrive()
        if self.parked() and choices.chance(workload.turn):
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
        """Return an abort of a request, a session, or the turn of a session that goes on."""
        name = self.holder()
        is_turn = self.aborts_turns and name in self.sessions and name in self.left
        if is_turn and self.choices.chance(self.workload.turn_aborted):
            self.left.pop(name)
            self.sessions[name] = self.before_turn.get(name, 0)
            return Abort(name, keeps_session=True)
        self.sessions.pop(name, None)
        self.left.pop(name, None)
        family = tuple(one for one in self.left if original_name(one) == original_name(name)) if self.samples else ()
        if not family or not self._asking.chance(self.workload.samples_aborted):
            return Abort(name)
        for one in family:
            self.left.pop(one)
        return Abort(name, family)

    def aborts(self) -> list[Abort]:
        """Return aborts of all that may still run or wait. The estimate of what does knows no pool and is too low; the
        abort of a request that has ended has no effect."""
        recent = (event.name for event in self.history[-REQUESTS_LEFT_MAX:])
        names = dict.fromkeys([*recent, *self.sessions])
        samples: dict[str, list[str]] = {}
        for name in self.left if self.samples else ():
            if original_name(name) != name:
                samples.setdefault(original_name(name), []).append(name)
        self.left.clear()
        self.sessions.clear()
        return [Abort(name, tuple(samples.get(name, ()))) for name in {**names, **dict.fromkeys(samples)}]

    def reset_prefix_cache(self) -> ResetPrefixCache:
        """Return a reset of the prefix cache."""
        return ResetPrefixCache(self.choices.chance(self.workload.reset_preempts))

    def idle_reset(self) -> AnyEvent:
        """Return what leads to a reset that has no effect while requests run; or a reset at once, by a server that can
        be paused for it."""
        if self.left and "pause" in self.events and self.choices.chance(self.workload.reset_paused):
            return ResetPrefixCache(preempt_running=True)
        return self.when_idle(self.reset_prefix_cache)

    def when_idle(self, draw: Callable[[], AnyEvent]) -> AnyEvent:
        """Return the first of the events that lead to one which has no effect while requests run."""
        self.idle_left, self.behind_idle = IDLE_STEPS, draw
        return self.next_due()

    def next_due(self) -> AnyEvent:
        """Return the next step until all requests have ended, then the event that is due."""
        if self.left:
            return self.step()
        self.idle_left -= 1
        return self.step() if self.idle_left else self.behind_idle()

    def parked(self, room: int = 0) -> list[str]:
        """Return the sessions that are probably parked and have room for as many tokens more."""
        return [name for name in self.sessions if name not in self.left and self.room(name) >= room]

    def cuttable(self) -> list[str]:
        """Return the sessions of `parked` that have tokens: one whose first turn was aborted has none."""
        return [name for name in self.parked() if self.sessions[name]]

    def pick_parked(self, room: int = 0) -> str:
        """Return one of `parked`, which must not be empty."""
        return self.choices.pick(self.parked(room))

    def may_fork(self) -> bool:
        """Return True if a session can be forked and there are not too many."""
        return bool(self.parked()) and len(self.sessions) < self.sessions_max

    def turn(self) -> Resume | Truncate | Fork | Abort | Step:
        """Return the next turn, a truncation or a fork of a session that is probably parked. A session without room
        for another turn is closed by an abort, or forgotten where there are none: it would keep its blocks and seat."""
        name = self.pick_parked()
        if self.cuts and self.sessions[name] and self.choices.chance(self.workload.turn_truncates):
            return self.truncate(name)
        if self.forks and self.may_fork() and self.choices.chance(self.workload.turn_forks):
            return self.fork(name)
        if self.room(name) < 2:
            del self.sessions[name]
            return Abort(name) if "abort" in self.events else self.step()
        return self.resume(name)

    def room(self, name: str) -> int:
        """Return the number of tokens that another turn of a session may have, its output included."""
        return self.config.max_model_len - self.sessions[name]

    def truncate(self, name: str) -> Truncate:
        """Return a truncation of a session that has tokens."""
        self.sessions[name] = self.length(self.sessions[name])
        return Truncate(name, self.sessions[name])

    def fork(self, name: str) -> Fork:
        """Return a fork of a session."""
        fork = f"{name}f{len(self.sessions)}"
        self.sessions[fork] = self.sessions[name]
        return Fork(fork, name)

    def resume(self, name: str) -> Resume:
        """Return the next turn of a session that has room for one."""
        room = self.room(name)
        max_new = self.length(min(room - 1, 6 if self.short else self.unit))
        prompt = self.length(min(room - max_new, 2 * self.unit))
        self.before_turn[name] = self.sessions[name]
        self.sessions[name] += prompt + max_new
        self.expect(name, prompt, max_new)
        document = self.choices.pick(self.documents)
        most, stop_at = self.answer(max_new, self.room(name))
        event = self.ending(Resume(name, ((document, prompt),), most, stop_at), self.room(name) - most + max_new)
        return self.asking_of_turn(event)

    def answer(self, length: int, room: int) -> tuple[int, int]:
        """Return (most tokens, place of the stop token) for an answer of a length with `room` tokens behind it."""
        if not self.stops or not room or not self.choices.chance(self.workload.stop_token):
            return length, 0
        return length + min(self.choices.pick(self.workload.beyond_stop), room), length

    def ending(self, event: OneTurn, room: int) -> OneTurn:
        """Return a turn whose stop token may be found in the text of the answer, or may have a minimum number of tokens
        before it. `room`: tokens that the context holds behind the longest answer."""
        choices, workload, stop_at = self._asking, self.workload, event.stop_at
        if self.has_least and not room and choices.chance(workload.beyond_context):
            return structs.replace(event, min_tokens=event.max_new_tokens + choices.integer(1, BEYOND_MAX))
        if not stop_at:  # as benchmarks of servers ask for it
            if self.has_least and choices.chance(workload.exact_length):
                return structs.replace(event, min_tokens=event.max_new_tokens)
            if self.verifies_past_length and choices.chance(workload.stop_behind):
                behind = choices.integer(1, self.config.num_speculative_tokens)
                return structs.replace(event, stop_at=event.max_new_tokens + behind)
            return event
        if self.may_have_string(event) and choices.chance(workload.stop_string):
            is_long = choices.chance(workload.long_stop_string)
            return structs.replace(event, stop_string=True, string_before=choices.integer(1, 3) if is_long else 0)
        if not self.has_least or not choices.chance(workload.min_tokens):
            return event
        if self.is_exact:
            return structs.replace(event, min_tokens=event.max_new_tokens)
        behind = stop_at == 1 or choices.chance(workload.min_behind_stop)
        least = choices.integer(stop_at, event.max_new_tokens) if behind else choices.integer(1, stop_at - 1)
        return structs.replace(event, min_tokens=least)

    def may_have_string(self, event: Turn) -> bool:
        """Return True if a turn of this trace may have a stop string."""
        in_session = isinstance(event, Resume) or event.session
        return self.finds_strings and (self.finds_strings_everywhere or not in_session)

    def expect(self, name: str, prompt: int, max_new: int) -> None:
        """Expect a request, or the next turn of a session, to compute a prompt and an output of these lengths."""
        self.left[name] = max_new
        self.uncomputed[name] = prompt
        self.idle = 0

    def advance(self, budget: int, right: int) -> None:
        """Estimate what a step computes: the first `max_num_seqs` requests share its budget, the others wait. It
        ignores the pool and prefix hits."""
        for name in list(self.left)[: self.config.max_num_seqs]:
            prompt = self.uncomputed[name]
            tokens = min(prompt or 1 + self.config.num_speculative_tokens, budget)
            budget -= tokens
            self.uncomputed[name] = max(prompt - tokens, 0)
            if tokens and not self.uncomputed[name]:
                self.left[name] -= 1 if prompt else 1 + right
            if self.left[name] <= 0:
                del self.left[name]

    def length(self, most: int, before: int = 0) -> int:
        """Return a length in 1..most. Behind `before` tokens it ends near a block boundary: what meets a boundary is a
        sequence, not the last part of it."""
        choices, config = self.choices, self.config
        if choices.chance(self.workload.length_anywhere):
            return choices.integer(1, most)
        size = choices.pick(config.groups).block_size
        k = config.num_speculative_tokens
        near = choices.pick((0, -1, 1 - k or 1, 1, k, k + 1, config.conv_width - 1))
        length = choices.integer(before // size, (before + most) // size) * size + near - before
        if before and not 1 <= length <= most:  # no boundary is within reach
            return choices.integer(1, most)
        return min(max(length, 1), most)

    def arrive_after_evict(self, before: int, path: tuple[tuple[str, int], ...] | None) -> Arrive:
        """Return the next arrival after an eviction. What short requests leave takes the room that a load needs."""
        self.after_evict = (before - 1, path) if before else None
        return self.arrive(brief=True) if before else self.arrive(path)

    def arrive(self, path: tuple[tuple[str, int], ...] | None = None, *, brief: bool = False) -> Arrive:
        """Return an arrival with this prompt, if there is room for it; with a new prompt, or with one that shares a
        prefix with earlier ones. A `brief` one has a short new prompt, and one token as its answer."""
        choices, config, workload = self.choices, self.config, self.workload
        name = f"r{len(self.history)}"
        new_max = 1 if self.is_brief else min(config.max_model_len - 2, 6 if self.short else 3 * self.unit)
        near = choices.chance(workload.answer_near_boundary) and not brief
        max_new = self.length(new_max) if near else 1 if brief else choices.integer(1, min(4, new_max))
        talks = self.talks and not brief and len(self.sessions) < self.sessions_max
        session = talks and choices.chance(workload.session)
        room = (config.max_model_len - max_new) // (2 if session else 1)
        if path is not None and sum(length for _, length in path) > room:
            path = None
        if path is None and not brief and self.history and choices.chance(workload.shared_prompt):
            path = self._shared_path(room)
        if path is None:
            # Short prompts meet boundaries as well, and leave the pool room for others.
            most = min(room, 2 * self.unit) if brief or choices.chance(workload.short_prompt) else room
            path = ((choices.pick(self.documents), self.length(most)),)
        priority = self.priority() if config.policy == "priority" else 0
        total = sum(length for _, length in path)
        rest = config.max_model_len - total
        may_fill = self.is_pressed or rest <= 2 * self.unit
        if not session and not brief and not self.is_brief and may_fill and choices.chance(workload.full_length):
            max_new = rest
        elif near:
            max_new = self.length(max_new if session else min(new_max, rest), total)
        most, stop_at = self.answer(max_new, rest - max_new)
        event = self.ending(Arrive(name, path, most, priority, session, stop_at), rest - most)
        event = self.asking_of_turn(event) if session else self.asking(event)
        self.history.append(event)
        if session:
            self.sessions[name] = total + max_new
        self.expect(name, total, max_new)
        for other in self.others:
            self.expect(other.name, total, max_new)
        return event

    def asking_of_turn(self, event: OneTurn) -> OneTurn:
        """Return a turn of a session that may ask for structured output."""
        choices, workload = self._asking, self.workload
        if self.may_be_structured(event) and choices.chance(workload.structured_turn):
            return self.structured(event)
        return event

    def structured(self, event: OneTurn) -> OneTurn:
        """Return a turn that asks for structured output, perhaps behind reasoning."""
        choices, workload = self._asking, self.workload
        steps, reasoning = choices.pick(workload.grammar_steps), 0
        if self.reasons and choices.chance(workload.reasoning):
            reasoning = choices.integer(1, event.stop_at or event.max_new_tokens)
        return structs.replace(event, structured=steps, reasoning=reasoning)

    def may_be_structured(self, event: Turn) -> bool:
        """Return True if a request of this trace may ask for structured output."""
        has_least, has_string = event.min_tokens > 0, has_stop_string(event)
        return (
            self.is_structured
            and (self.has_least_by_grammar or not has_least)
            and (self.finds_strings_everywhere or not has_string)
        )

    def asking(self, event: Arrive) -> Arrive:
        """Return a request that may ask for more than tokens, and queue further samples of its prompt."""
        choices, workload = self._asking, self.workload
        if self.asks_for_logprobs and choices.chance(workload.prompt_logprobs):
            event = structs.replace(event, prompt_logprobs=True)
            if self.asks_for_ends and choices.chance(workload.logprobs_from):
                last = sum(length for _, length in event.prompt) - 1
                event = structs.replace(event, logprobs_from=choices.integer(0, last))
        if self.may_be_structured(event) and choices.chance(workload.structured):
            event = self.structured(event)
        if self.fails_grammars and choices.chance(workload.bad_grammar):
            return structs.replace(event, structured=0, reasoning=0, bad_grammar=choices.pick(workload.grammar_steps))
        if self.samples and choices.chance(workload.several_samples):
            count = choices.pick(workload.samples)
            self.others = [structs.replace(event, name=copy_name(event.name, index)) for index in range(1, count)]
        return event

    def priority(self) -> int:
        """Return a priority; a smaller number is more important. Half of the arrivals are drawn to be at
        least as important as the one before: only a request that is more important than one that runs displaces it."""
        most = (
            self.history[-1].priority if self.history and self.choices.chance(self.workload.important) else PRIORITY_MAX
        )
        return self.choices.integer(0, most)

    def _shared_path(self, room: int) -> tuple[tuple[str, int], ...] | None:
        """Return an earlier prompt again, a prefix or extension of it, or it with its own output and more; None if it
        is too long."""
        choices = self.choices
        earlier = choices.pick(self.history[-4:])
        path = earlier.prompt
        kind = choices.integer(0, 3)
        if kind == 1:
            document, length = path[-1]
            before = sum(length for _, length in path[:-1])
            path = (*path[:-1], (document, self.length(max(length + self.unit, 1), before)))
        elif kind >= 2:
            before = sum(length for _, length in path)
            path = (*path, ("~", self.length(earlier.stop_at or earlier.max_new_tokens, before)))
            if kind == 3:
                before += path[-1][1]
                path = (*path, (choices.pick(self.documents), self.length(self.unit, before)))
        used = sum(length for _, length in path)
        return path if used <= room and len(path) <= 16 else None

    def step(self) -> Step:
        """Return an engine step, sometimes with a small budget, limits for requests, few or wrong drafts."""
        choices, config, workload = self.choices, self.config, self.workload
        k = config.num_speculative_tokens
        drafts = right = 0
        per_request: dict[str, tuple[int, int]] = {}
        if k:
            drafts = (
                k
                if not self.capabilities.variable_drafts or choices.chance(workload.all_drafts)
                else choices.integer(0, k)
            )
            right = choices.integer(0, drafts)
            if self.is_accurate:
                right = drafts
            if choices.chance(workload.own_drafts):
                own = choices.integer(0, k) if self.capabilities.variable_drafts else drafts
                per_request[self.live_name()] = (own, choices.integer(0, own))
        chunks = {}
        if "chunks" in self.capabilities.features and choices.chance(workload.request_limit):
            chunks[self.live_name()] = choices.integer(1, self.unit + 2)
        budget = self.budget() if choices.chance(workload.smaller_budget) else None
        self.advance(budget or config.max_num_batched_tokens, right)
        pad_to = choices.integer(1, 8) if choices.chance(workload.padded) else 0
        return Step(budget, chunks, drafts, right, per_request, pad_to)

    def budget(self) -> int:
        """Return a token budget. Half of them end among rows that decode, or right behind them: a budget leaves rows
        out, or cuts a prompt short, only if it is smaller than what the batch wants."""
        choices, most = self.choices, self.config.max_num_batched_tokens
        decode = 1 + self.config.num_speculative_tokens
        if choices.chance(self.workload.any_budget):
            return choices.integer(decode, most)
        return min(choices.integer(1, max(len(self.left), 1)) * decode + choices.pick((0, 1, decode)), most)

    def external_load(self) -> ExternalLoad:
        """Return a KV connector that holds the beginning of the latest request, which is probably still waiting."""
        name, chance, workload = list(self.left or ["r0"])[-1], self.choices.chance, self.workload
        length, states = self.length(self.config.max_model_len), chance(workload.load_states)
        if not self.waits:
            return ExternalLoad(name, length, states, chance(workload.load_fails))
        return ExternalLoad(name, length, states, chance(workload.waited_load_fails), self.choices.integer(0, 4))

    def select(self) -> Select:
        """Return a selection of most of the requests that are probably in the batch, in any order."""
        names = list(self.left) or ["r0"]
        kept = [name for name in names if self.choices.chance(self.workload.row_selected)] or names
        order = sorted(kept, key=lambda name: self.choices.integer(0, 3))
        self.left = {name: steps for name, steps in self.left.items() if name in order}
        return Select(tuple(order))

    def reorder(self) -> Reorder:
        """Return beams: rows are exchanged, or take over another row. Names of requests that are no longer, or not yet,
        in the batch have no effect: an engine whose batches take no requests while they run is behind the estimate."""
        recent = [event.name for event in self.history[-2 * self.config.max_num_seqs :]]
        names = list(dict.fromkeys([*recent, *self.left])) or ["r0"]
        if self.choices.chance(self.workload.rows_exchanged):
            shift = self.choices.integer(1, max(len(names) - 1, 1))
            return Reorder(dict(zip(names, names[shift:] + names[:shift], strict=True)))
        return Reorder({name: self.choices.pick(names) for name in names})

    def repeat(self) -> Repeat:
        """Return two or three of each row."""
        times = self.choices.integer(2, 3)
        batch = repeated(list(self.left), times, self.config.max_num_seqs, set())
        self.left |= {name: self.left[source] for name, (source, _) in batch.items()}
        self.uncomputed |= {name: self.uncomputed[source] for name, (source, _) in batch.items()}
        return Repeat(times)

    def dummy_run(self) -> DummyRun:
        """Return a dummy run, as of an idle data-parallel rank."""
        return DummyRun(
            self.choices.integer(1, self.config.max_num_seqs), self.choices.chance(self.workload.dummy_uniform)
        )


def draw_trace(
    capabilities: Capabilities,
    seed: int,
    index: int,
    overrides: Mapping[str, object] | None = None,
    supports: Callable[[Config], str] = lambda config: "",
    avoid: Sequence[Circumstances] = (),
    workload: Workload = DEFAULT,
    aim: Aim | None = None,
) -> Trace:
    """Return trace `index` of a campaign with this seed: a pure function of its arguments.

    With an `aim` it is the best of several (`aim`). Most traces to which circumstances in `avoid` apply are drawn again
    (`avoid`).
    """
    shared = capabilities.traces_per_configuration

    def draw(key: str, origin: str) -> Trace:
        choices, apart = RandomChoices(seed, key), RandomChoices(seed, f"{key}/asked")
        configured_by = choices if shared == 1 else RandomChoices(seed, -1 - index // shared)
        config = draw_valid_config(configured_by, supports, capabilities, overrides or {}, workload)
        return Trace(config, Grammar(config, capabilities, choices, workload, apart).all_events(), origin=origin)

    trace = draw(f"{index}", f"seed {seed}, trace {index}")
    if aim:
        others = (
            draw(f"{index}/aim {number}", f"seed {seed}, trace {index}, aimed ({number})")
            for number in range(1, CANDIDATES)
        )
        trace = max((trace, *others), key=lambda one: likeness(one, aim))
    if not any(each.apply_to(trace) for each in avoid):
        return trace
    choices = RandomChoices(seed, f"{index}/avoid")
    if not choices.chance(workload.avoided):
        return trace
    for number in range(1, REDRAWS_MAX + 1):
        trace = draw(f"{index}/{number}", f"seed {seed}, trace {index}, drawn again ({number})")
        if not any(each.apply_to(trace) for each in avoid):
            break
    return trace
