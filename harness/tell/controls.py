"""Controls of a bug report: runs that differ from the failing trace in one factor, and pass.

First what concerns the cause: one event fewer, a turn as a request of its own, no hit, one setting that another server
has, or a larger limit. Those of events come first: a setting may switch off much more than what fails. Then what only
shows that the trace is small: one request fewer, other lengths. A control has to do
again what fails in the trace: the same request computes the same positions after a hit like the one before, or the same
content is published. A run in which that does not happen passes without saying anything; so does one without the
request that writes what is wrong, or without the call that is wrong itself. Where the factor is the failing request's
own length, it may hit something else, but has to come as far. A request that no longer fits the context is refused,
which is no control either. Which implementations pass is already known (`OtherRun`).

The same trace on other models is no control, but says which models a report is about (`on_other_models`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import NamedTuple, Protocol

from msgspec import structs

from ...reference.tokens import CONTINUATION
from ...targets.base.alphabet import Refers, fields_with
from ...targets.base.deployment import Deployment
from ...targets.base.protocol import Capabilities, TargetError
from ...targets.base.trace import (
    NAME_MAX,
    AnyEvent,
    Arrive,
    Config,
    ExternalLoad,
    Resume,
    Trace,
    TraceError,
    Turn,
    tag_of,
)
from ..draw.near_stock import departs
from ..draw.overrides import apply_overrides
from ..group.findings.measured_reach import setting_name
from ..judge.oracles.real_model import FIELDS as FIELDS_OF_A_MODEL
from ..judge.outcome import Outcome
from ..judge.verdict import owner_of
from ..judge.violation import Violation, wanted_depth
from ..record.history import History, RequestStep
from .headline import NOUNS
from .script import failure_of

REQUESTS_MAX = 6
"""Requests that are left out in turn."""
MAY_BE_DECLINED = ("on the batch", "with consent")
"""What an event may be that an engine declines with other settings: then nothing is done that could go wrong."""
CONTROLS_MAX = 5
"""Controls of a report that concern the cause."""
OF_EVENTS_FIRST = 3
"""Controls of events, if there are so many, that come before those of settings; more of them take the places that
settings leave."""
REDUCTIONS_MAX = 3
"""Controls that only show that the trace is small."""
EVENT_RUNS_MAX = 8
SETTING_RUNS_MAX = 12
REDUCTION_RUNS_MAX = 16
"""Runs in which controls of each kind are looked for."""
EVENTS: Mapping[type[AnyEvent], str] = {**NOUNS, ExternalLoad: "KV connector's load"}
"""Kind of an event without which a trace may be run -> what it is, where the engine has no word for it."""
AS_NEW = "-new"
"""Ends the name of a request that has the tokens of a turn."""


class Variant(NamedTuple):
    """A trace that differs from the failing one in one factor.

    words   the factor; `{}` stands for `number`, so that numbers of one factor are told together
    is_own  it changes what the failing request hits
    shorter by how many tokens the failing request's prompt is shorter
    has_other_rows  what fails is computed for other rows of the batch
    stands_for  a request -> the one that does again what that one does, {} if each does so itself
    """

    words: str
    trace: Trace
    is_own: bool = False
    number: int = -1
    shorter: int = 0
    has_other_rows: bool = False
    stands_for: Mapping[str, str] = {}


class Control(NamedTuple):
    """What is different in a run that passes. `reduces`: nothing but one request fewer, or other lengths."""

    words: str
    reduces: bool = False


class Runner(Protocol):
    """The part of a worker that is used here."""

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        """Run a trace and record its history."""
        ...


def controls(
    trace: Trace,
    history: History,
    engine: Runner,
    capabilities: Capabilities,
    server: Callable[[Trace], Deployment],
) -> Iterator[Control]:
    """Yield the controls of a trace with the history of its failure, first those that concern the cause. `server`
    returns the server that a trace stands for."""
    violation = history.violation
    if violation is None:
        return
    turns = _turns(trace, violation)

    def passing(variants: Iterator[Variant], most: int, *, reduces: bool = False) -> Iterator[Control]:
        fitting = (one for one in islice(variants, most) if _fits(one.trace))
        found = (one for one in fitting if _is_control(engine, one, history, violation, turns))
        yield from (Control(_told(words, [*group]), reduces) for words, group in groupby(found, lambda one: one.words))

    of_events = passing(_of_events(trace, violation, server(trace)), EVENT_RUNS_MAX)
    of_settings = passing(_of_settings(trace, history, violation, capabilities, server), SETTING_RUNS_MAX)
    first = [*islice(of_events, OF_EVENTS_FIRST)]
    settings = [*islice(of_settings, CONTROLS_MAX - len(first))]
    yield from (*first, *islice(of_events, CONTROLS_MAX - len(first) - len(settings)), *settings)
    yield from islice(passing(_reduced(trace, history, violation), REDUCTION_RUNS_MAX, reduces=True), REDUCTIONS_MAX)


def _told(words: str, found: Sequence[Variant]) -> str:
    """Return a factor with all the numbers that pass: "with 5 or 3 tokens in the prompt of r1 instead of 4"."""
    numbers = [str(one.number) for one in found]
    words = words.replace("(s)", "" if numbers == ["1"] else "s")
    return words.replace("{}", " or ".join(numbers))


def _fits(trace: Trace) -> bool:
    """Return True if no request is longer than the context: a target may refuse it, or end it early."""
    tokens = Counter[str]()
    for event in trace.events:
        if isinstance(event, Turn):
            tokens[event.name] += sum(length for _, length in event.prompt) + event.max_new_tokens
    return max(tokens.values(), default=0) <= trace.config.max_model_len


def on_other_models(
    trace: Trace, capabilities: Capabilities, server: Callable[[Trace], Deployment]
) -> Iterator[tuple[str, Trace]]:
    """Yield the model, in words, and the trace for each other model that the target has one option for."""
    seen = {server(trace).model_words, ""}
    for name, values in capabilities.options.items():
        for value in values:
            config = structs.replace(trace.config, options={**trace.config.options, name: value})
            words = server(other := _with(trace, config)).model_words
            if words not in seen:
                seen.add(words)
                yield words, other


def may_decline(trace: Trace) -> bool:
    """Return True for a trace of whose events an engine with other settings may decline one."""
    return any(event.about.acts in MAY_BE_DECLINED for event in trace.events)


def _of_events(trace: Trace, violation: Violation, server: Deployment) -> Iterator[Variant]:
    """Yield traces with events fewer, and with a turn as a request of its own."""
    yield from _fewer_events(trace, server, violation.event)
    if not may_decline(trace):
        yield from _as_new_requests(trace)


def _reduced(trace: Trace, history: History, violation: Violation) -> Iterator[Variant]:
    """Yield traces with requests fewer, and with other lengths of the other requests and of the failing one; none of a
    trace of whose events one may be declined with other rows or lengths: nothing is done then that could go wrong."""
    if may_decline(trace):
        return
    for name in _bystanders(trace, history, violation)[:REQUESTS_MAX]:
        events = tuple(event for event in trace.events if getattr(event, "name", "") != name)
        if not any(name in _referred(event) for event in events):
            yield Variant(f"without {name}", structs.replace(trace, events=events))
    yield from _other_lengths(trace, violation.request, of_others=True)
    yield from _other_lengths(trace, violation.request)


def _of_settings(
    trace: Trace,
    history: History,
    violation: Violation,
    capabilities: Capabilities,
    server: Callable[[Trace], Deployment],
) -> Iterator[Variant]:
    """Yield traces without a prefix cache if the failing request hits it, with settings as the stock server has them,
    other options, a larger pool and larger steps; none of a trace of whose events one may be declined then."""
    if may_decline(trace):
        return
    here = server(trace)
    if any(one.hit > 0 for one in history.request_steps if one.admitted and one.request == violation.request):
        other = _with(trace, structs.replace(trace.config, enable_prefix_caching=False))
        if flags := _new_switches(here, server(other)):
            yield Variant(f"with {' '.join(flags)} (no hit)", other, is_own=True)
    for setting in capabilities.stock or ():
        # In another schedule the same events meet other steps.
        if "async_depth" not in setting.stock and departs(setting, trace.config):
            other = _with(trace, apply_overrides(trace.config, setting.stock))
            name = setting_name(setting, trace.config)
            yield Variant(_instead(here, server(other), name.partition(" ")[0]) or f"without {name}", other)
    stock = {name for one in capabilities.stock or () for name in one.stock
                                  if departs(one, trace.config)}  # fmt: skip
    chosen = {name for one in here.implementations for name in one.options} | stock
    for name, values in capabilities.options.items():
        for value in values if name not in chosen else ():
            other = _with(trace, structs.replace(trace.config, options={**trace.config.options, name: value}))
            if value != trace.config.options.get(name) and (words := _differs(here, server(other))):
                yield Variant(words, other)
    yield from _larger(trace, here, server)


def _referred(event: AnyEvent) -> set[str]:
    """Return the requests that an event names."""
    found = set[str]()
    for field, _ in fields_with(type(event), Refers):
        value = getattr(event, field)
        found |= {value} if isinstance(value, str) else {*value, *(value.values() if isinstance(value, dict) else ())}
    return {one for one in found if isinstance(one, str)}


def _larger(trace: Trace, here: Deployment, server: Callable[[Trace], Deployment]) -> Iterator[Variant]:
    """Yield the trace in a pool twice as large, and in steps and batches that have room for more."""
    config = trace.config
    more = {
        "num_blocks": 2 * config.num_blocks,
        "max_num_batched_tokens": 2 * config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs + 1,
    }
    for name, value in more.items():
        larger, before = _with(trace, structs.replace(config, **{name: value})), getattr(config, name)
        if flags := here.limits.get(name, ()):
            told = f"{flags[0]} {server(larger).limits[name][1]} instead of {flags[1]}"
        elif name == "num_blocks" and before and here.has_sizes:
            told = f"a pool of {value} blocks instead of {before}"
        else:
            continue
        yield Variant(f"with {told}", larger)
    pages = {group.block_size for group in config.groups if group.kind == "attention"}
    if config.mamba_cache_mode == "slots" and max(pages, default=1) > 1:  # a page is no block of a state there
        size, groups = max(pages), [structs.replace(one, block_size=1) if one.kind == "attention" else one
                                    for one in config.groups]  # fmt: skip
        single = structs.replace(config, groups=tuple(groups), num_blocks=(config.num_blocks - 1) * size + 1)
        yield Variant(f"with pages of 1 token instead of {size}", _with(trace, single), is_own=True)


def _fewer_events(trace: Trace, server: Deployment, failing: int) -> Iterator[Variant]:
    """Yield the trace without each event of a kind in `EVENTS` or that is a call of the engine's interface, but that
    with the index `failing`: it goes wrong itself. After an operation on the batch the rows have other places, so that
    later forwards are of other rows, and it is enough that they run."""
    for index, event in enumerate(trace.events):
        call = server.calls.get(tag_of(event), "")
        noun = server.nouns.get(tag_of(event), EVENTS.get(type(event), ""))
        if index != failing and (noun or call):
            events = (*trace.events[:index], *trace.events[index + 1 :])
            name = getattr(event, "name", "")
            whose = f" {'for' if isinstance(event, ExternalLoad) else 'of'} {name}" if name else ""
            words = f"the {noun}{whose}" if noun else call
            fitted = f"{words} (later calls are for the rows that remain)" if call else words
            yield Variant(f"without {fitted}", structs.replace(trace, events=events), has_other_rows=bool(call))


def _as_new_requests(trace: Trace) -> Iterator[Variant]:
    """Yield the trace with the last turn of each session as a request of its own, with the same tokens; nothing for a
    session that a later event names."""
    for index, event in enumerate(trace.events):
        later = trace.events[index + 1 :]
        if not isinstance(event, Resume):
            continue
        if any(event.name in {getattr(one, "name", ""), *_referred(one)} for one in later):
            continue
        own = [one for one in trace.events[:index] if isinstance(one, Turn) and one.name == event.name]
        known = [part for turn in own for part in (*turn.prompt, (CONTINUATION, turn.stop_at or turn.max_new_tokens))]
        name = f"{event.name[: NAME_MAX - len(AS_NEW)]}{AS_NEW}"
        fields = {field: value for field, value in structs.asdict(event).items() if field not in ("name", "prompt")}
        arrival = Arrive(name, (*known, *event.prompt), **fields)
        events = (*trace.events[:index], arrival, *later)
        words = f"with the tokens of turn {len(own) + 1} of {event.name} sent as a new request"
        yield Variant(words, structs.replace(trace, events=events), is_own=True, stands_for={event.name: name})


def _other_lengths(trace: Trace, request: str, *, of_others: bool = False) -> Iterator[Variant]:
    """Yield the trace with a prompt or an answer of the failing request that is one token longer or shorter; of each,
    if it is no request that fails. `of_others`: of each request but that one, which has to fail at the same positions
    then; nothing if there is none."""
    turns_of, before = Counter(event.name for event in trace.events if isinstance(event, Turn)), Counter[str]()
    for index, event in enumerate(trace.events):
        before[event.name if isinstance(event, Turn) else ""] += 1
        if not isinstance(event, Turn) or (of_others and not request):
            continue
        if request and of_others == (event.name == request):
            continue
        who = f"turn {before[event.name]} of {event.name}" if turns_of[event.name] > 1 else event.name
        *parts, (document, length) = event.prompt
        whole, answer = sum(tokens for _, tokens in event.prompt), event.max_new_tokens
        turns: list[tuple[str, int, int, Turn]] = []
        for by in (1, -1):
            if length + by > 0:
                prompt = (*parts, (document, length + by))
                words = f"with {{}} token(s) in the prompt of {who} instead of {whole}"
                turns.append((words, whole + by, max(-by, 0) * (not of_others), structs.replace(event, prompt=prompt)))
        for by in (1, -1):
            if answer + by > 0:
                words = f"with {{}} new token(s) for {who} instead of {answer}"
                turns.append((words, answer + by, 0, structs.replace(event, max_new_tokens=answer + by)))
        for words, number, shorter, turn in turns:
            events = (*trace.events[:index], turn, *trace.events[index + 1 :])
            yield Variant(words, structs.replace(trace, events=events), not of_others, number, shorter)


def _with(trace: Trace, config: Config) -> Trace:
    return structs.replace(trace, config=config)


def _differs(one: Deployment, other: Deployment) -> str:
    """Return how the commands of two servers of one model differ, if the other one has no more than further switches,
    as for eager execution; else "", and if their models differ."""
    if (one.command, one.model, one.variables) != (other.command, other.model, other.variables):
        return ""
    gone = [flag for flag in one.shell[1:] if flag not in other.shell]
    new = [flag for flag in other.shell[1:] if flag not in one.shell]
    if any(" " in flag for flag in new):
        return ""
    return " ".join([*(["with", *new] if new else []), *(["without", *gone] if gone else [])])


def _new_switches(one: Deployment, other: Deployment) -> list[str]:
    """Return the flags without a value that only the other one of two servers has."""
    return [flag for flag in other.shell[1:] if flag not in one.shell and " " not in flag]


def _instead(one: Deployment, other: Deployment, flag: str) -> str:
    """Return the value of a flag that another server has instead, "" if it does not name one."""
    before, after = (
        next((each for each in server.shell[1:] if each.startswith(f"{flag} ")), "") for server in (one, other)
    )
    return f"with {after} instead of {before.removeprefix(f'{flag} ')}" if before and after else ""


def _bystanders(trace: Trace, history: History, violation: Violation) -> list[str]:
    """Return the requests that neither fail nor had a part in the block that is wrong or was copied there; none where
    that is not known, as of requests that wait."""
    if not violation.request or violation.block < 0 or violation.field in FIELDS_OF_A_MODEL:
        return []
    sources = {mark.other for mark in history.marks if mark.what == "copy" and mark.block == violation.block}
    blocks = {violation.block, *sources}
    users = [mark.who for mark in history.marks if mark.what in ("alloc", "hit", "write") and mark.block in blocks]
    involved = {violation.request, failure_of(trace, history, violation).holder, owner_of(violation.observed), *users}
    return [event.name for event in trace.events if isinstance(event, Arrive) and event.name not in involved]


def _turns(trace: Trace, violation: Violation) -> tuple[str, int]:
    """Return the request whose turn raises, and the number of that turn; "", 0 if no turn does."""
    event = trace.events[violation.event] if 0 <= violation.event < len(trace.events) else None
    if violation.oracle != "CRASH" or not isinstance(event, Turn):
        return "", 0
    before = trace.events[: violation.event]
    return event.name, 1 + sum(isinstance(one, Turn) and one.name == event.name for one in before)


def _is_control(
    engine: Runner, variant: Variant, history: History, violation: Violation, turns: tuple[str, int]
) -> bool:
    """Return True for a trace that passes and does again what fails; False also for one that cannot run. `turns`: a
    request, and how many turns of it have to be computed: one that does not follow the turn before is no control."""
    other = variant.trace
    if other.config.num_blocks < other.config.smallest_pool():
        return False
    try:
        outcome, after = engine.explain(other)
    except (TraceError, TargetError):
        return False
    request, count = turns
    if request in variant.stands_for:
        request, count = variant.stands_for[request], 1
    computed = sum(one.admitted and one.request == request for one in after.request_steps)
    return outcome.violation is None and computed >= count and _does_again(variant, history, after, violation)


def _does_again(variant: Variant, before: History, after: History, violation: Violation) -> bool:
    if violation.oracle == "CRASH":  # what raises is in no history: a control goes on behind it
        return _steps(after) > _steps(before)
    failing = [one for one in before.request_steps if one.request == violation.request and one.step <= violation.step]
    name = variant.stands_for.get(violation.request, violation.request)
    own = [one for one in after.request_steps if one.request == name]
    if failing and not variant.has_other_rows:
        depth = wanted_depth(violation)
        position = (failing[-1].start if depth < 0 else depth) - variant.shorter
        return (variant.is_own or _hits(failing) == _hits(own)) and any(_covers(one, position) for one in own)
    if violation.request:  # it was never scheduled, or it has other positions
        return bool(own)
    if variant.is_own or variant.has_other_rows:
        return bool(after.request_steps)
    keys = [mark.content for mark in before.marks if mark.what == "hash" and mark.block == violation.block]
    return not keys or any(mark.what == "hash" and mark.content == keys[-1] for mark in after.marks)


def _steps(history: History) -> int:
    return max((one.step + 1 for one in history.request_steps), default=0)


def _hits(steps: list[RequestStep]) -> list[tuple[int, bool]]:
    """Return the hit of the first admission, and whether anything was to be loaded."""
    return [(one.hit, one.external > 0) for one in steps if one.admitted][:1]


def _covers(step: RequestStep, position: int) -> bool:
    return step.start <= position < step.start + max(step.num_tokens, 1)
