"""Tokens that clients receive if a failing trace runs to its end: what users see of a violation.

A trace ends at its first violation. Here it runs on, without oracles, until every request has ended. Then each prompt
is sent once more, together with its right answer, as a multi-turn client does: a wrong entry of the prefix cache
changes no answer before that. Behaviour after a broken invariant is undefined, so this describes one run of the target,
nothing that must happen.

Reduced traces have few tokens, and a wrong state yields the right token by chance, once in 126 times. If every answer
is right, the run is repeated with documents of other names (other tokens, the same schedule), then with more new tokens
for the violation's request. The result names the variation.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs

from ...reference.tokens import CONTINUATION, Truth
from ...targets.base.observe import Delivered
from ...targets.base.protocol import Target, TargetFactory
from ...targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Event,
    Prompt,
    Resume,
    Sleep,
    Step,
    Trace,
    TraceError,
    Turn,
    Wake,
    fits,
    stop_tokens_of,
)
from ..draw.adapt import refusal
from ..judge.lockstep import DRAIN_STEPS_PER_TOKEN
from ..judge.ranks import ranks_of
from ..judge.target_exception import text_of
from ..quoting import clean

AGAIN = "-again"
"""Ends the name of a request whose prompt is sent once more."""
AGAIN_TOKENS = 4
"""Most new tokens of a prompt that is sent again."""
NAME_MAX = 58
RENAMINGS = (".2", ".3")
"""Suffixes of the documents' names in further runs."""
MORE_TOKENS = 6
MORE_BLOCKS = 16
"""What the violation's request gets in the last variation."""


class Answer(Struct, frozen=True):
    """Tokens that the client of one request, or of one turn of a session, should have received and did receive.

    prompt   number of prompt tokens
    again    True for a prompt that was sent once more after the trace
    end      "" if it ended as it should, else the reason: "aborted", "not finished", or an exception
    """

    request: str
    prompt: int
    expected: tuple[int, ...]
    observed: tuple[int, ...]
    again: bool = False
    end: str = ""

    @property
    def wrong_from(self) -> int:
        """Return the index of the first wrong token, -1 if all that were received are right."""
        pairs = zip(self.expected, self.observed, strict=False)
        at = next((index for index, (wanted, seen) in enumerate(pairs) if wanted != seen), -1)
        return len(self.expected) if at < 0 and len(self.observed) > len(self.expected) else at

    @property
    def is_right(self) -> bool:
        """Return True if the client got all of its tokens, or all until it aborted."""
        return self.wrong_from < 0 and (self.end == "aborted" or len(self.observed) == len(self.expected))


class Answers(Struct, frozen=True):
    """Answers in order of arrival, prompts that were sent again last.

    variation  what differs from the trace
    unsent     requests, once for each turn that was never sent: the run ended before, or their session was not idle
    """

    rows: tuple[Answer, ...] = ()
    variation: str = ""
    unsent: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Return True if there are answers, and all of them are right."""
        return bool(self.rows) and all(row.is_right for row in self.rows)


def collect_answers(factory: TargetFactory, trace: Trace, request: str = "") -> Answers:
    """Run a trace without oracles, and variations of it as long as every answer is right; `request` is the violation's.

    None for a trace with several ranks, or with an event that changes which tokens a client has. An exception of the
    target ends a run. TraceError for a trace that the target refuses.
    """
    if ranks_of(trace.config) > 1 or any(event.about.changes_answer for event in trace.events):
        return Answers()
    if reason := refusal(trace, factory):
        raise TraceError(reason)
    first = _answers(factory, trace)
    if not first.is_right:
        return first
    for varied, variation in _variations(trace, request):
        if not refusal(varied, factory):
            answers = structs.replace(_answers(factory, varied), variation=variation)
            if any(row.wrong_from >= 0 for row in answers.rows):
                return answers
    return first


def _answers(factory: TargetFactory, trace: Trace) -> Answers:
    run = _Run(factory.open(trace.config), trace.config)
    try:
        run.serve(trace)
    except Exception as error:  # the answers up to it are the result
        run.fail(clean(f"{type(error).__name__}: {text_of(error)}"))
    finally:
        run.target.close()
    return Answers(tuple(run.answers()), unsent=tuple(run.unsent))


def _variations(trace: Trace, request: str) -> Iterator[tuple[Trace, str]]:
    """Yield variations with a clause about each."""
    for suffix in RENAMINGS:
        yield _renamed(trace, suffix), "other prompt tokens, the same lengths"
    config = trace.config
    longer = structs.replace(
        config, max_model_len=config.max_model_len + MORE_TOKENS, num_blocks=config.num_blocks + MORE_BLOCKS
    )
    events = [
        structs.replace(event, max_new_tokens=event.max_new_tokens + MORE_TOKENS)
        if isinstance(event, Arrive) and event.name == request
        else event
        for event in trace.events
    ]
    if request:
        more = f"{request} has {MORE_TOKENS} new tokens more, max_model_len and the pool are larger"
        yield structs.replace(trace, config=longer, events=tuple(events)), more


def _renamed(trace: Trace, suffix: str) -> Trace:
    """Return the trace with a suffix on every document's name."""

    def path(prompt: Prompt) -> Prompt:
        return tuple((name if name == CONTINUATION else f"{name[:NAME_MAX]}{suffix}", size) for name, size in prompt)

    events = [
        structs.replace(event, prompt=path(event.prompt)) if isinstance(event, Turn) else event
        for event in trace.events
    ]
    return structs.replace(trace, events=tuple(events))


class _Turn:
    """One request, or one turn of a session, while it runs."""

    def __init__(self, event: Turn, truth: Truth, *, session: bool = False, before: Truth | None = None) -> None:
        """`before`: what its client had when it began, if it is not the first of a session."""
        stops = stop_tokens_of(event, truth)
        self.new = truth.answer_length(event.max_new_tokens, stops, event.string_before > 0)
        truth.reach(truth.prompt_length + self.new)
        self.name, self.truth, self.session, self.again = event.name, truth, session, False
        self.fails = isinstance(event, Arrive) and bool(event.bad_grammar)
        """Its grammar does not compile: an error is all that its client should get."""
        self.received: list[int] = []
        self.end = "not finished"
        self.before = before or Truth(())
        self.is_forgotten = False
        """True if it was aborted, and its session goes on without it."""

    @property
    def left(self) -> Truth:
        """What its client has once it is over."""
        if self.is_forgotten:
            return self.before
        return self.truth.continued(self.truth.prompt_length + len(self.received), ())


class _Run:
    """A target, and what the clients of its requests have received."""

    def __init__(self, target: Target, config: Config) -> None:
        self.target = target
        self.config = config
        self.turns: list[_Turn] = []
        self.live: dict[str, _Turn] = {}
        """The last turn of each name."""
        self.unsent: list[str] = []
        """Names of turns that were not sent."""

    def serve(self, trace: Trace) -> None:
        asleep = False
        self.unsent = [event.name for event in trace.events if isinstance(event, Turn)]
        for event in trace.events:
            self.apply(event)
            asleep = isinstance(event, Sleep) or (asleep and not isinstance(event, Wake))
        if asleep:
            self.apply(Wake())
        self.drain()
        if not any(turn.session for turn in self.turns):
            for event in list(self.prompts_again(trace)):
                self.apply(event)
                self.live[event.name].again = True
                self.drain()

    def apply(self, event: Event) -> None:
        if isinstance(event, Arrive) and event.name not in self.live and fits(self.config, event):
            self.begin(_Turn(event, Truth(event.prompt), session=event.session))
        elif isinstance(event, Resume) and event.name in self.live and event.name in self.target.view().parked:
            before = self.live[event.name].left
            known = before.prompt_length
            if fits(self.config, event, known):
                truth = before.continued(known - self.target.layout.resume_drops, event.prompt)
                self.begin(_Turn(event, truth, session=True, before=before))
        elif isinstance(event, Abort):
            for name in (event.name, *event.together):
                if name in self.live and self.live[name].end:
                    self.live[name].end = "aborted"
                    self.live[name].is_forgotten = event.keeps_session
        for record in self.target.apply(event).records:
            if isinstance(record, Delivered):
                self.deliver(record)

    def begin(self, turn: _Turn) -> None:
        self.turns.append(turn)
        if turn.name in self.unsent:
            self.unsent.remove(turn.name)
        self.live[turn.name] = turn

    def deliver(self, delivered: Delivered) -> None:
        for name, tokens in delivered.outputs:
            if name in self.live:
                self.live[name].received += tokens
        for name in delivered.finished:
            if name in self.live and self.live[name].end != "aborted":
                self.live[name].end = "ended without an error" if self.live[name].fails else ""
        for name in delivered.failed:
            if name in self.live and self.live[name].end != "aborted":
                self.live[name].end = "" if self.live[name].fails else "ended with an error"

    def drain(self) -> None:
        """Step until no request runs or waits, and once for each step in flight; up to a bound."""
        bound = DRAIN_STEPS_PER_TOKEN * sum(turn.truth.prompt_length + turn.new for turn in self.live.values()) + 4
        for _ in range(bound):
            view = self.target.view()
            if not view.running and not view.waiting:
                break
            self.apply(Step())
        for _ in range(self.config.async_depth + 1):
            self.apply(Step())

    def prompts_again(self, trace: Trace) -> Iterator[Arrive]:
        """Yield an arrival for each different prompt of the trace, continued by its right answer."""
        seen: set[Prompt] = set()
        for event in trace.events:
            if isinstance(event, Arrive) and event.name in self.live:
                answer = CONTINUATION, event.stop_at or event.max_new_tokens
                path = _cut((*event.prompt, answer), self.config.max_model_len - 1)
                if path not in seen:
                    seen.add(path)
                    left = self.config.max_model_len - sum(length for _, length in path)
                    yield Arrive(f"{event.name[:NAME_MAX]}{AGAIN}", path, min(left, AGAIN_TOKENS), event.priority)

    def fail(self, reason: str) -> None:
        """Give the reason to every request that has not ended."""
        for turn in self.turns:
            if turn.end == "not finished":
                turn.end = reason

    def answers(self) -> Iterator[Answer]:
        for turn in self.turns:
            start = turn.truth.prompt_length
            wanted = () if turn.fails else tuple(turn.truth.tokens[start : start + turn.new])
            yield Answer(turn.name, start, wanted, tuple(turn.received), turn.again, turn.end)


def _cut(path: Prompt, length: int) -> Prompt:
    """Return the first `length` tokens of a path."""
    parts = []
    for document, tokens in path:
        if length > 0:
            parts.append((document, min(tokens, length)))
            length -= tokens
    return tuple(parts)
