"""What a user sees of a failure, and under which circumstances: the title of a report.

Derived from the violated invariant, the answers of a run to the end (`harness/record/answers.py`) and the reduced
trace. No title is written for one bug.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ...reference.batch import original_name
from ...targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    Config,
    DummyRun,
    Evict,
    ExternalLoad,
    Pause,
    Preempt,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    SwitchStorage,
    Trace,
    tag_of,
)
from ..judge.oracles import consequence_of
from ..judge.verdict import owner_of
from ..judge.violation import Violation
from ..record.answers import Answer
from ..record.history import History, RequestStep
from ..units import listed, plural
from .scenario import requests_of, steps_of

ASKED = {
    "session": "sessions",
    "prompt_logprobs": "log-probabilities of prompts",
    "structured": "structured output",
    "reasoning": "reasoning before it",
    "bad_grammar": "a grammar that does not compile",
    "stop_string": "stop strings",
    "min_tokens": "a minimum number of new tokens",
}
"""Field of a request -> what its client asks for."""


NOUNS: Mapping[type[AnyEvent], str] = {
    DummyRun: "data-parallel dummy run",
    ResetPrefixCache: "prefix-cache reset",
    Preempt: "preemption",
    Pause: "pause of generation",
    SwitchStorage: "switch of the storage",
    ResetEncoderCache: "reset of the encoder cache",
    Abort: "abort",
    Evict: "eviction",
}
"""Kind of an event -> what it is, where the engine has no word of its own (`Deployment.nouns`)."""
VOWELS = "aeiou"
OF_THE_RUN = "In the run below "
"""Begins what a client of the run sees."""


class Headline(Struct, frozen=True):
    """What a report begins with, in lines without markup.

    title   what a client gets (`what`), the `situation` with it, and settings
    impact  one paragraph of sentences
    search  terms by which a tracker of issues is searched
    events  the events before the failure, "after an abort"; "" for none
    circumstances  the situation without what the client gets
    settings, asked  in words: those that the trace has, and what its clients ask for
    """

    title: str
    impact: str
    search: tuple[str, ...]
    what: str = ""
    situation: str = ""
    settings: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    events: str = ""
    circumstances: str = ""


def headline_of(
    trace: Trace,
    history: History,
    violation: Violation,
    answers: Sequence[Answer],
    calls: Mapping[str, str] = {},
    *,
    nouns: Mapping[str, str] = {},
    is_synchronous: bool = False,
    has_numbers: bool = True,
) -> Headline:
    """Return the title of a report and its first paragraph. `calls` and `nouns` are what the engine calls events
    (`Deployment`); `is_synchronous`: it fails with synchronous scheduling, too; `has_numbers` is False if the
    answers are not those that a reader sees."""
    what, follows = consequence_of(violation)
    details = [*_seen(answers, has_numbers)]
    wrong = [one for one in answers if one.wrong_from >= 0]
    if violation.oracle != "CRASH":
        if any(not one.again for one in wrong):
            what = "Wrong tokens"
        elif wrong:
            what = "Wrong tokens from a prefix-cache hit"
        elif late := next((one for one in answers if one.end not in ("", "aborted", "not finished")), None):
            details.append(f"Later the engine raises: {late.end}.")
    if violation.field == "logprobs":
        what, seen = _numbers(violation, what)
        details.append(seen)
    if violation.oracle == "M8" and violation.field == "stall":
        what = _stall(trace, history, violation)
    if owner := _other_owner(trace, violation):
        details.append(f"{violation.request} reads {_left(history, violation, owner)}.")
    situation = [*_situation(trace, history, violation, nouns)]
    events = [*_events(trace, history, violation, calls, nouns)]
    # A user of a server that stalls sees what happened before, not which request is the first to wait.
    circumstances = events if _stalls(violation) else [*situation, *events]
    settings = tuple(_settings(trace.config, is_synchronous))
    asked, seen = tuple(_asked(trace)), " ".join([what, *circumstances])
    kind = ["hybrid model"] if any(group.kind == "mamba" for group in trace.config.groups) else []
    words = ", ".join([*kind, *settings, *asked])
    title = f"{seen} ({words})" if words else seen
    if not details:
        is_clean = answers and not any(one.end not in ("", "aborted") for one in answers)
        who = "every client that stays" if any(one.end for one in answers) else "every client"
        clean = f"In the run below {who} receives the right tokens." if is_clean else ""
        details = [text for text in (follows, clean) if text]
    called = dict.fromkeys(calls[tag_of(event)] for event in trace.events if tag_of(event) in calls)
    terms = (*_search_terms(trace, history, violation), *called)
    return Headline(
        title, " ".join(details), terms, what, seen, settings, asked, " ".join(events), " ".join(circumstances)
    )


def is_same_token(violation: Violation) -> bool:
    """Return True for wrong log-probabilities of which the same token is the largest."""
    return violation.field == "logprobs" and violation.expected == violation.observed


def _numbers(violation: Violation, what: str) -> tuple[str, str]:
    """Return what is wrong with log-probabilities, and whether the token shows it."""
    expected, observed = violation.expected_words, violation.observed_words
    if is_same_token(violation):
        return what, (
            f"Expected: {expected}. Found: {observed}. The token does not show it here. A client that reads "
            "log-probabilities sees it, and so does one that samples, or whose two best tokens are close."
        )
    return "Wrong tokens", f"Expected: {expected}. Found: {observed}. No error is raised."


def _seen(answers: Sequence[Answer], has_numbers: bool) -> Iterator[str]:
    """Yield a sentence for the first wrong answer, and for requests that do not end."""
    if one := next((one for one in answers if one.wrong_from >= 0), None):
        at = one.wrong_from
        got = _token(one.observed, at)
        again = (
            f"{OF_THE_RUN}a later request with the same prefix"
            if one.again
            else f"{OF_THE_RUN}the client of {one.request}"
        )
        if one.observed[: len(one.expected)] == one.expected:
            yield f"{again} receives {len(one.observed)} tokens instead of {len(one.expected)}. No error is raised."
            return
        numbers = f": token {at + 1} is {got}, expected {_token(one.expected, at)}"
        which = numbers if has_numbers else f", from token {at + 1} on"
        yield f"{again} receives wrong tokens{which}. No error is raised."
    stuck = [one.request for one in answers if one.end == "not finished" and not one.again]
    if stuck:
        them = f"{listed(stuck)} {'wait' if len(stuck) > 1 else 'waits'}"
        after = ", and so do requests that are sent later" if _are_stuck_again(answers) else ""
        yield f"{them} until the client gives up{after}. No error is raised."


def _are_stuck_again(answers: Sequence[Answer]) -> bool:
    """Return True if no request that was sent again ended."""
    again = [one for one in answers if one.again]
    return bool(again) and all(one.end == "not finished" for one in again)


def _token(tokens: Sequence[int], index: int) -> str:
    return str(tokens[index]) if index < len(tokens) else "none"


def _other_owner(trace: Trace, violation: Violation) -> str:
    """Return the request whose content the violation's request reads, "" if it is its own or no request's."""
    names = {event.name for event in trace.events if isinstance(event, Arrive)}
    owner = owner_of(violation.observed)
    return owner if violation.request and owner in names - {violation.request} else ""


def _left(history: History, violation: Violation, owner: str) -> str:
    """Return what a request reads that is of another one: of one that still has the block, or what it left there."""
    of_block = [mark for mark in history.marks if mark.block == violation.block]
    kinds = [
        mark.what
        for mark in of_block
        if mark.what in ("free", "release") or (mark.who == owner and mark.what in ("alloc", "hit"))
    ]
    what = "the state" if violation.group_kind == "mamba" else "keys and values"
    if kinds and kinds[-1] in ("free", "release"):
        return f"{what} that {owner} left in a block that was freed since"
    return f"{what} of another request, {owner}"


def _stalls(violation: Violation) -> bool:
    """Return True if no request makes progress, or one gets lost."""
    return violation.oracle in ("M8", "HANG") and violation.field in ("stall", "lost", "")


def _stall(trace: Trace, history: History, violation: Violation) -> str:
    """Return what a user sees of an engine that schedules nothing although requests wait."""
    if len(history.moments[-1].waiting) > 1:
        return "Requests wait forever"
    subject = next((one for one in requests_of(trace, history) if one.name == violation.request), None)
    return "A request is never admitted" if subject and subject.hit < 0 else "A request waits forever"


def _situation(trace: Trace, history: History, violation: Violation, nouns: Mapping[str, str]) -> Iterator[str]:
    """Yield the situation of the violation's request."""
    subject = next((one for one in requests_of(trace, history) if one.name == violation.request), None)
    steps = steps_of(history)
    own = steps.get(violation.request, [])
    first = own[0].step if own else -1
    k = trace.config.num_speculative_tokens
    if subject:
        kind = "a request"
        if any(one.step == violation.step and one.start >= subject.prompt for one in own):
            kind = "a request that decodes"
        elif subject.prompt == 1:
            kind = "a one-token prompt"
        elif k and subject.prompt == 1 + k:
            kind = f"a prompt of {1 + k} tokens, with {plural(k, 'draft')} in a step,"
        elif len(subject.chunks) > 1 and len(own) <= len(subject.chunks):
            kind = "a prompt that is prefilled in chunks"
        others = [name for name, all_steps in steps.items() if name != subject.name and _has(all_steps, first)]
        resumed = sum(one.admitted for one in own) > 1
        yield f"for {kind}" + (
            " that joins a running batch" if others and not resumed and "decodes" not in kind else ""
        )
        if any(isinstance(event, Resume) and event.name == subject.name for event in trace.events):
            yield "in a later turn of its session"
        elif resumed and not any(isinstance(event, Pause | Preempt | ResetPrefixCache) for event in trace.events):
            yield f"that resumes after a {nouns.get(tag_of(Preempt), NOUNS[Preempt])}"
        if subject.hit > 0:
            yield "after a prefix-cache hit"


def _events(
    trace: Trace, history: History, violation: Violation, calls: Mapping[str, str], nouns: Mapping[str, str]
) -> Iterator[str]:
    """Yield the events that are left in the trace."""
    last = len(history.moments)
    happened = [type(event) for event in trace.events[:last]]
    names = {kind: nouns.get(tag_of(kind), noun) for kind, noun in NOUNS.items()}
    if violation.event_kind == "dummy_run":  # of the trace, or of a rank without requests
        del names[DummyRun]
        yield "in a data-parallel dummy run"
    earlier = [f"{'an' if noun[0] in VOWELS else 'a'} {noun}" for kind, noun in names.items() if kind in happened]
    loads = [event for event in trace.events[:last] if isinstance(event, ExternalLoad)]
    if any(event.breaks_off for event in loads):
        earlier.append("a failed load of a KV connector")
    elif loads:
        earlier.append("a KV connector's load" if len(loads) == 1 else "loads of a KV connector")
    earlier += dict.fromkeys(calls[tag_of(event)] for event in trace.events[:last] if tag_of(event) in calls)
    if earlier:
        yield f"after {listed(earlier)}"


def _search_terms(trace: Trace, history: History, violation: Violation) -> Iterator[str]:
    """Yield the terms by which a tracker of issues is searched: the kind of cache, and what the failure needs."""
    config, happened = trace.config, {type(event) for event in trace.events[: len(history.moments)]}
    subject = next((one for one in requests_of(trace, history) if one.name == violation.request), None)
    needed = {
        "speculative decoding": config.num_speculative_tokens,
        "priority scheduling": config.policy == "priority",
        "dummy run data parallel": DummyRun in happened or violation.event_kind == "dummy_run",
        "preemption": Preempt in happened,
        "pause generation": Pause in happened,
        "reset prefix cache": ResetPrefixCache in happened,
        "attach storage": SwitchStorage in happened,
        "reset encoder cache": ResetEncoderCache in happened,
        "abort": Abort in happened,
        "KV connector": ExternalLoad in happened,
        "session": any(isinstance(event, Arrive) and event.session for event in trace.events),
        "prefix caching": subject and subject.hit > 0,
        "chunked prefill": subject and len(subject.chunks) > 1,
        "one token prompt": subject and subject.prompt == 1,
        "async scheduling": config.async_depth,  # by default, and so least telling
    }
    yield "mamba" if violation.group_kind != "attention" else "kv cache"
    yield from (term for term, is_needed in needed.items() if is_needed)


def _has(steps: Sequence[RequestStep], number: int) -> bool:
    return any(one.step == number for one in steps)


def _settings(config: Config, is_synchronous: bool) -> Iterator[str]:
    if config.num_speculative_tokens:
        yield "speculative decoding"
    if config.async_depth and not is_synchronous:
        yield "asynchronous scheduling"
    if config.policy == "priority":
        yield "priority scheduling"


def _asked(trace: Trace) -> Iterator[str]:
    """Yield what clients ask for that few do."""
    turns = [event for event in trace.events if isinstance(event, Arrive | Resume)]
    yield from (words for field, words in ASKED.items() if any(getattr(turn, field, 0) for turn in turns))
    if any(original_name(turn.name) != turn.name for turn in turns):
        yield "several samples of a prompt"
