"""Traces: a configuration and a list of events. Plain data, which is generated, reduced, stored and replayed.

Requests and documents have names. An event that names a request which is not alive is a no-op in every target
and in the reference, so every sub-list of a legal trace is a legal trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta, Struct, field

from ...reference.layout import Group as LayoutGroup
from ...reference.layout import smallest_pool
from ...reference.tokens import Truth, kind_of
from .alphabet import (
    About,
    AtMost,
    Defines,
    Draws,
    NeedsEvent,
    NeedsFeature,
    Refers,
    Says,
    Shrinks,
    Thins,
    Trait,
    Usual,
    Varies,
    changed,
)

SCHEMA_VERSION = 1

NAME_MAX = 64
"""Characters of a name. Names come from files of strangers, and go into scripts, reports and terminals."""
Name = Annotated[str, Meta(pattern=rf"\A[A-Za-z0-9_.-]{{1,{NAME_MAX}}}\Z")]
Document = Annotated[str, Meta(pattern=rf"\A(~|[A-Za-z0-9_.-]{{1,{NAME_MAX}}})\Z")]
Blocks = Annotated[int, Meta(ge=1, le=4096)]
Rows = Annotated[int, Meta(ge=1, le=4096)]
Priority = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
Count = Annotated[int, Meta(ge=0, le=1 << 20)]
Positive = Annotated[int, Meta(ge=1, le=1 << 20)]
Drafts = Annotated[int, Meta(ge=0, le=16)]
StopAt = Annotated[
    Count,
    Shrinks(0),
    NeedsFeature("stop-tokens"),
    Trait("a stop token"),
    Says(", stopped by new token {}"),
]
StopString = Annotated[
    bool,
    Usual(False),
    NeedsFeature("stop-strings"),
    Trait("a stop string"),
    Says(", the stop is found as a string"),
]
StringBefore = Annotated[
    int,
    Meta(ge=0, le=8),
    Shrinks(0),
    NeedsFeature("stop-strings"),
    Trait("a stop string of several tokens"),
    Says(", the stop string begins {:token} earlier"),
]
MinTokens = Annotated[
    Count,
    Shrinks(0),
    NeedsFeature("min-tokens"),
    Trait("a least number of new tokens"),
    Says(", at least {:new token}"),
]
PromptLogprobs = Annotated[
    bool,
    Usual(False),
    NeedsFeature("prompt-logprobs"),
    Trait("log-probabilities of a prompt"),
    Says(", with the log-probabilities of its prompt"),
]
LogprobsFrom = Annotated[
    int,
    Meta(ge=0),
    Shrinks(0),
    NeedsFeature("logprobs-from"),
    Trait("log-probabilities of the end of a prompt"),
    Says(", log-probabilities only after position {} of its prompt, counted from 0"),
]
Structured = Annotated[
    int,
    Meta(ge=0, le=8),
    Shrinks(0),
    NeedsFeature("structured-output"),
    Trait("structured output"),
    Says(", with structured output"),
]
Reasoning = Annotated[
    Count,
    Shrinks(0),
    NeedsFeature("reasoning"),
    Trait("reasoning before structured output"),
    Says(", its reasoning ends by new token {}"),
]
BadGrammar = Annotated[
    int,
    Meta(ge=0, le=8),
    Shrinks(0),
    NeedsFeature("failing-grammars"),
    Trait("a grammar that does not compile"),
    Says(", with a grammar that does not compile"),
]
Prompt = Annotated[tuple[tuple[Document, Positive], ...], Meta(min_length=1, max_length=16)]


class TraceError(Exception):
    """A trace or configuration is invalid; the message is one line: where, what, and the remedy."""


class Event(Struct, frozen=True, tag_field="event", forbid_unknown_fields=True, omit_defaults=True):
    """Base of all events. What grammar, reducer, lockstep and reports ask about a kind is in `about` and in the marks
    of its fields (`alphabet`)."""

    about: ClassVar[About] = About("Something happens")


class Arrive(Event, frozen=True, tag="arrive"):
    """A request arrives. `prompt` is a path in the prefix tree: (document, tokens) after one another.

    The document "~" stands for the model's own continuation of the path so far, so a multi-turn prompt is
    [("a", 20), ("~", 7), ("b", 5)]. Images, adapters and salts are documents, too (`reference.tokens`).

    With `session` it is the first turn of a session: when the turn ends its caches stay, until `Resume` starts the next
    turn or `Abort` closes the session.

    With `stop_at` the request has a stop token: the token at this place of its answer, 1 for the first. The answer ends
    with the first token that equals it. An engine cannot foresee that end; it plans for `max_new_tokens`.

    With `stop_string` the engine gets the text of this token as a stop string, and has to find it in the text of the
    answer. Each token has a text that is in no other, so the answer ends in the same place.

    With `string_before` the stop string is longer: it begins with that many tokens of the answer before this one, or
    with those that there are.

    With `min_tokens` no stop token may come before so many tokens, or before `max_new_tokens` if these are fewer: where
    the context ends an answer, it ends, however many tokens its client asked for. The token that the model would sample
    at that place is a stop token, too, so that an engine must take the model's next choice there (`Truth.stop_tokens`).

    With `prompt_logprobs` its client also wants the log-probability of each token of the prompt. They are known of
    computed tokens only, so the request reads nothing from the prefix cache. What it computes is published.

    With `logprobs_from` it wants only those of the tokens after that position, and may read what comes before it from
    the prefix cache.

    With `structured` a grammar restricts the answer (`reference.structured`). The request waits for it, for one step
    less than that.

    With `reasoning` beside `structured` the answer begins with reasoning, which no grammar restricts. It ends with the
    token that the model would sample at this place of an answer without a grammar, wherever that comes first
    (`Truth.stop_tokens`). The grammar holds for what follows.

    With `bad_grammar` its grammar does not compile, which the engine learns after one step less than that. The request
    gets nothing but an error.

    A client may want several samples of one prompt. Each of them is a request: those of r0 beside itself are r0.1, r0.2
    and so on (`reference.batch.copy_name`). They arrive together and ask for the same.
    """

    about = About("{name} arrives: {prompt:prompt token}, {max_new_tokens:new token}", acts="before")

    name: Annotated[Name, Defines()]
    prompt: Prompt
    max_new_tokens: Positive
    priority: Annotated[Priority, Usual(0), Trait("a priority"), Says(", priority {}")] = 0
    session: Annotated[bool, Usual(False), NeedsEvent("resume"), Says(", the first turn of a session")] = False
    stop_at: StopAt = 0
    prompt_logprobs: PromptLogprobs = False
    structured: Structured = 0
    stop_string: StopString = False
    bad_grammar: BadGrammar = 0
    min_tokens: MinTokens = 0
    string_before: StringBefore = 0
    reasoning: Reasoning = 0
    logprobs_from: LogprobsFrom = 0


class Step(Event, frozen=True, tag="step"):
    """The engine schedules and executes one step.

    budget   tokens that may be scheduled, None for the configured maximum
    chunks   most tokens scheduled for a named request (leftover budgets, encoder limits)
    drafts   drafts proposed at the end of this step for each decoding request
    right    how many of them, from the first, will be accepted
    per_request  (drafts, right) of single requests
    pad_to   rows to pad a decode batch to, 0 for the smallest captured graph
    """

    about = About("The engine takes a step")

    budget: Annotated[Positive | None, Shrinks(1), Varies((1,)), Trait("a step with a smaller budget")] = None
    chunks: Annotated[
        dict[Name, Positive],
        Meta(max_length=256),
        Refers(),
        Thins(),
        NeedsFeature("chunks"),
        Trait("a step with a limit for a request"),
    ] = field(default_factory=dict)
    drafts: Annotated[Drafts, Shrinks(0), Varies((1, -1)), AtMost("num_speculative_tokens")] = 0
    right: Annotated[
        Drafts, Shrinks(0), Varies((1, -1)), AtMost("num_speculative_tokens"), Trait("accepted drafts")
    ] = 0
    per_request: Annotated[dict[Name, tuple[Drafts, Drafts]], Meta(max_length=256), Refers(), Thins()] = field(
        default_factory=dict
    )
    pad_to: Count = 0


class Preempt(Event, frozen=True, tag="preempt"):
    """A running request loses its blocks and waits again; a parked session loses the blocks that it kept."""

    about = About("{name} is preempted", percent=12)

    name: Annotated[Name, Refers(parked=True)]


LATE_STEPS_MAX = 2
"""Steps whose tokens a request may get after its client aborted it: one in flight, and one that ends it."""


class Abort(Event, frozen=True, tag="abort"):
    """The client aborts a request, or closes a session. The requests in `together` are aborted in the same call, as the
    other samples of its prompt.

    With `keeps_session` it aborts the turn of a session that runs or waits, and the session goes on: the next turn
    follows what the client had before the aborted one, whose prompt and answer are forgotten. Nothing happens if no
    turn runs or waits."""

    about = About("The client of {name} aborts it", percent=8, acts="after")

    name: Annotated[Name, Refers(parked=True)]
    together: Annotated[
        tuple[Name, ...],
        Meta(max_length=64),
        Refers(),
        Thins(),
        NeedsFeature("samples"),
        Says(", together with {}"),
    ] = ()
    keeps_session: Annotated[
        bool,
        Usual(False),
        NeedsFeature("aborted-turns"),
        Trait("an aborted turn of a session that goes on"),
        Says(", and its session goes on"),
    ] = False


class Park(Event, frozen=True, tag="park"):
    """The client ends a running turn of a session before its length; its caches stay with the session.

    Steps in flight run first, and what they deliver counts.
    """

    about = About(
        "The client ends the turn of {name} early; the session keeps its cache",
        percent=8,
        acts="after",
        needs="resume",
        changes_answer=True,
    )

    name: Annotated[Name, Refers()]


class Evict(Event, frozen=True, tag="evict"):
    """Pool pressure: up to `blocks` free blocks lose their keys, oldest first."""

    about = About("Memory pressure: {blocks:free block} at most lose their keys, oldest first", percent=8)

    blocks: Annotated[Blocks, Shrinks(1), Draws(1, 6)]


class ResetPrefixCache(Event, frozen=True, tag="reset_prefix_cache"):
    """Forget all cached prefixes; with `preempt_running` the running requests are preempted first."""

    about = About("The prefix cache is reset", percent=5)

    preempt_running: Annotated[bool, Usual(False), Says("; running requests are preempted first")] = False


class Pause(Event, frozen=True, tag="pause"):
    """Generation is paused and continued: results in flight are awaited, and all requests that run, or whose prompts
    are computed in part, are preempted at once. Unlike with `ResetPrefixCache`, what is cached stays."""

    about = About("Generation is paused: all running requests are preempted at once", percent=4)


class SwitchStorage(Event, frozen=True, tag="switch_storage"):
    """The storage behind the cache is detached, or attached again if it is detached; refused while anything runs or
    waits. What it holds stays there, and what is cached stays in the cache."""

    about = About("The storage behind the cache is detached, or attached again", percent=8)


class ResetEncoderCache(Event, frozen=True, tag="reset_encoder_cache"):
    """Forget all outputs of the encoder, as behind an update of its weights: images that requests still need are
    encoded again. Weights stay the same here, and so do answers."""

    about = About("The encoder cache is reset", percent=8)


class CaptureGraphs(Event, frozen=True, tag="capture_graphs"):
    """Capture the decode graphs (again)."""

    about = About("The decode graphs are captured again", percent=3)


class Sleep(Event, frozen=True, tag="sleep"):
    """The pool's memory is released to the device; its content is lost."""

    about = About("The engine sleeps: the pool's memory is released", percent=3)


class Wake(Event, frozen=True, tag="wake"):
    """The pool's memory is allocated again, with undefined content."""

    about = About("The engine wakes: the pool's memory is allocated again, with undefined content")


class ExternalLoad(Event, frozen=True, tag="external_load"):
    """From now on a KV connector holds the first `length` tokens of `name`: attention content and, with `states`, the
    recurrent state at the last block boundary among them. With `breaks_off` the first load for `name` is announced to
    the scheduler but never completes. `delay` is the number of steps that a load takes longer, where requests wait
    for loads while others run ("async-loads")."""

    about = About("A KV connector holds the first {length:token} of {name}", percent=15, acts="before")

    name: Annotated[Name, Refers()]
    length: Annotated[Positive, Shrinks(1)]
    states: Annotated[bool, Usual(True), Says(" and the state at the last boundary among them")] = True
    breaks_off: Annotated[bool, Usual(False), Says("; the first load fails")] = False
    delay: Annotated[int, Meta(ge=0, le=4), Shrinks(0), Says("; a load takes {:step} more")] = 0


class MoveTier(Event, frozen=True, tag="move_tier"):
    """Move the cached content of `name` to another memory tier."""

    about = About("The cached content of {name} moves to tier {tier}", percent=6)

    name: Annotated[Name, Refers()]
    tier: Annotated[Name, Usual("host")]


class Select(Event, frozen=True, tag="select"):
    """The batch keeps the rows in `names`, in this order; the requests of the other rows end, as if aborted. Names that
    are not in the batch are ignored; without any that is, nothing happens."""

    about = About(
        "The batch keeps the rows of {names}, in this order; the others end",
        percent=6,
        acts="on the batch",
        changes_answer=True,
    )

    names: Annotated[tuple[Name, ...], Meta(max_length=64), Refers(), Thins(1)]


class Reorder(Event, frozen=True, tag="reorder"):
    """Each row in `sources` gets the caches and tokens of its source, as in beam search: see `reference.batch`."""

    about = About("Beam search reorders the batch: {sources}", percent=12, acts="on the batch", changes_answer=True)

    sources: Annotated[dict[Name, Name], Meta(max_length=64), Refers(), Thins()]


class Repeat(Event, frozen=True, tag="repeat"):
    """Each row is repeated, so that there are `times` of it next to each other: see `reference.batch`."""

    about = About("Each row is repeated {times} times", percent=8, acts="on the batch", changes_answer=True)

    times: Annotated[int, Meta(ge=2, le=4), Shrinks(2)]


class Crop(Event, frozen=True, tag="crop"):
    """Each row forgets the last `tokens` tokens that it computed; the next step computes them again. Nothing happens
    unless each row has computed more than that. An engine refuses it if its states cannot follow."""

    about = About(
        "The last {tokens:token} of each row are cropped and computed again",
        percent=8,
        acts="on the batch",
        changes_answer=True,
    )

    tokens: Annotated[Positive, Shrinks(1), Draws(1, 4)]


class Reset(Event, frozen=True, tag="reset"):
    """The caches of the batch are emptied in place; its requests wait again, ahead of the others, with nothing
    computed."""

    about = About("The caches of the batch are emptied; its requests start again", percent=3, acts="on the batch")


class DummyRun(Event, frozen=True, tag="dummy_run"):
    """An idle data-parallel rank executes `rows` dummy rows, replaying a decode graph if `uniform_decode`."""

    about = About("Dummy run of {rows:row} ({graph}): this data-parallel rank is idle, another is not")

    rows: Annotated[Rows, Shrinks(1), AtMost("max_num_seqs")]
    uniform_decode: Annotated[bool, Usual(True)] = True


class Fork(Event, frozen=True, tag="fork"):
    """`name`, which must be new, becomes a copy of the parked session `parent`: the same tokens, in copied blocks or in
    shared ones that will not be written to. An engine refuses it if it lacks the memory."""

    about = About(
        "Session {parent} is forked: {name} begins as a copy of it",
        acts="with consent",
        needs="resume",
        changes_answer=True,
    )

    name: Annotated[Name, Defines()]
    parent: Annotated[Name, Refers(parked=True)]


class Truncate(Event, frozen=True, tag="truncate"):
    """A parked session loses its tokens from position `length` on; at least one stays.

    Attention can be cut anywhere, a state cannot be rolled back: the engine resumes from a checkpoint at or before
    `length` and computes the rest again, or refuses and leaves the session as it is.
    """

    about = About(
        "Session {name} is cut to its first {length:token}", acts="with consent", needs="resume", changes_answer=True
    )

    name: Annotated[Name, Refers(parked=True)]
    length: Annotated[Count, Shrinks(0)]


class Resume(Event, frozen=True, tag="resume"):
    """The next turn of a parked session: everything that its client has seen, then `prompt`. An engine may drop tokens
    at the end of what the client has seen (`reference.layout.Layout.resume_drops`). `stop_at`, `min_tokens`,
    `structured`, `reasoning`, `stop_string` and `string_before` as of `Arrive`: each turn has its own."""

    about = About(
        "The next turn of {name} arrives: {prompt:further prompt token}, {max_new_tokens:new token}", acts="before"
    )

    name: Annotated[Name, Defines()]
    prompt: Prompt
    max_new_tokens: Positive
    stop_at: StopAt = 0
    structured: Structured = 0
    stop_string: StopString = False
    min_tokens: MinTokens = 0
    string_before: StringBefore = 0
    reasoning: Reasoning = 0


class Shift(Event, frozen=True, tag="shift"):
    """The positions of all tokens that a request, or a parked session, has in its sequence move up by `by`, as a client
    moves them that makes room in its context. What is stored stays, and so does what follows from it: the distances
    between tokens are what they were. An engine refuses it if its positions cannot move."""

    about = About("The positions of {name} move up by {by}", percent=8, acts="with consent")

    name: Annotated[Name, Refers(parked=True)]
    by: Annotated[Positive, Shrinks(1), Draws(1, 40)]


AnyEvent = (
    Arrive | Step | Preempt | Abort | Park | Evict | ResetPrefixCache | CaptureGraphs | Sleep | Wake | ExternalLoad
    | MoveTier | Select | Reorder | Repeat | Crop | Reset | DummyRun | Fork | Truncate | Resume
    | Shift | Pause | SwitchStorage | ResetEncoderCache
)  # fmt: skip
"""In the order in which the grammar offers the rare ones: put a new kind at the end, so that a seed draws as before."""
KINDS: tuple[type[AnyEvent], ...] = get_args(AnyEvent)
Turn = Arrive | Resume
"""Events with a prompt: a request, or the next turn of a session."""


def least_tokens(turn: Turn) -> int:
    """Return how many tokens the answer to a turn has at least: not more than it may have."""
    return min(turn.min_tokens, turn.max_new_tokens)


def stop_tokens_of(turn: Turn, truth: Truth) -> tuple[int, ...]:
    """Return the stop tokens, or the stop string, of the answer to a turn (`Truth.stop_tokens`)."""
    asked = turn.string_before, turn.structured > 0, turn.reasoning
    return truth.stop_tokens(turn.stop_at, least_tokens(turn), *asked)


def has_stop_string(turn: Turn) -> bool:
    """Return True if an engine gets the stop token of an answer as a string, perhaps with tokens before it."""
    return turn.stop_string or turn.string_before > 0


def has_string_beside(turn: Turn) -> bool:
    """Return True if a turn has a stop string in a session or beside a grammar, which not every engine takes."""
    return has_stop_string(turn) and (isinstance(turn, Resume) or turn.session or turn.structured > 0)


def has_drafts(events: Iterable[Event]) -> bool:
    """Return True if drafts are proposed in a step."""
    steps = (event for event in events if isinstance(event, Step))
    return any(step.drafts or any(drafts for drafts, _ in step.per_request.values()) for step in steps)


def has_reasoning(events: Iterable[Event]) -> bool:
    """Return True if reasoning comes before the structured output of an answer."""
    return any(isinstance(event, Turn) and event.structured and event.reasoning for event in events)


def has_grammar(turn: Turn) -> bool:
    """Return True if a grammar is compiled for a request, or for a session's turn."""
    return bool(turn.structured or (isinstance(turn, Arrive) and turn.bad_grammar))


def tag_of(event: Event | type[Event]) -> str:
    """Return the tag of an event or of a kind of event."""
    return str(event.__struct_config__.tag)


BATCH_EVENTS = frozenset(tag_of(kind) for kind in KINDS if kind.about.acts == "on the batch")
"""Tags of the events that act on a whole batch of plain caches. The batch is `View.running`, in the order of its rows;
a target may execute them only between two steps."""


class Group(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One KV cache group; `draft`, `window` and `chunk` (tokens, 0 for full) are for attention, see
    `reference.layout.Group`."""

    kind: Literal["attention", "mamba"]
    block_size: Positive
    layers: Annotated[int, Meta(ge=1, le=8)] = 1
    draft: bool = False
    window: Count = 0
    chunk: Count = 0


BLOCKS_MIN = 2
"""Of a pool: block 0 is nobody's."""
LENGTH_MIN = 4
"""Tokens of the shortest `max_model_len`."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of one trace. Field names follow vLLM. `options` are a target's own switches.

    In mode slots states have a pool of their own, and `num_blocks` counts attention blocks only.
    """

    num_blocks: Annotated[int, Meta(ge=BLOCKS_MIN, le=4096)]
    groups: Annotated[tuple[Group, ...], Meta(min_length=1, max_length=8)]
    mamba_cache_mode: Literal["none", "align", "all", "slots"] = "align"
    enable_prefix_caching: bool = True
    num_speculative_tokens: Drafts = 0
    eagle_block_drop: bool = False
    conv_width: Annotated[int, Meta(ge=2, le=8)] = 4
    max_model_len: Annotated[int, Meta(ge=LENGTH_MIN, le=4096)] = 96
    max_num_seqs: Annotated[int, Meta(ge=1, le=64)] = 4
    max_num_batched_tokens: Annotated[int, Meta(ge=1, le=4096)] = 48
    long_prefill_token_threshold: Count = 0
    async_depth: Annotated[int, Meta(ge=0, le=2)] = 0
    graph_sizes: Annotated[tuple[Rows, ...], Meta(max_length=64)] = (1, 2, 4, 8)
    policy: Literal["fcfs", "priority"] = "fcfs"
    options: Annotated[dict[Name, Name], Meta(max_length=64)] = field(default_factory=dict)

    def layout_groups(self) -> tuple[LayoutGroup, ...]:
        """Return the groups as the reference's `Group`."""
        return tuple(
            LayoutGroup(group.kind, group.block_size, group.layers, group.draft, group.window, chunk=group.chunk)
            for group in self.groups
        )

    @property
    def hash_block_size(self) -> int:
        """Tokens per hash: the largest unit that divides every block size."""
        return gcd(*(group.block_size for group in self.groups))

    def smallest_pool(self) -> int:
        """Fewest blocks with which a request of `max_model_len` tokens can always finish."""
        k, ahead = self.num_speculative_tokens, self.async_depth
        return smallest_pool(self.layout_groups(), self.mamba_cache_mode, self.longest_span, k, ahead)

    @property
    def longest_span(self) -> int:
        """Most tokens that a table must cover: the longest request and every draft in flight or being verified."""
        return self.max_model_len + (self.num_speculative_tokens + 1) * (self.async_depth + 1)


class Trace(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that is needed to repeat a run. `origin` is where it came from (seed, reduction, ...), `target` the
    target string on which it failed, if it did."""

    config: Config
    events: tuple[AnyEvent, ...]
    schema: int = SCHEMA_VERSION
    origin: Annotated[str, Meta(max_length=1000)] = ""
    target: Annotated[str, Meta(max_length=1000)] = ""


def check_config(config: Config) -> None:
    """Raise TraceError if fields contradict each other, or if the pool cannot hold the longest request."""
    if config.enable_prefix_caching == (config.mamba_cache_mode == "none"):
        wanted = "align or all" if config.enable_prefix_caching else "none"
        raise TraceError(
            f"configuration: mamba_cache_mode={config.mamba_cache_mode} contradicts enable_prefix_caching="
            f"{str(config.enable_prefix_caching).lower()}; set mamba_cache_mode={wanted}"
        )
    for group in config.groups:
        if (group.draft or group.window or group.chunk) and (group.kind != "attention" or group.window == 1):
            raise TraceError("configuration: draft, window (at least 2 tokens) and chunk are for attention groups")
        if group.chunk % group.block_size or (group.chunk and group.window):
            raise TraceError("configuration: chunk is a multiple of the group's block_size, and excludes a window")
    if config.num_blocks < config.smallest_pool():
        raise TraceError(
            f"configuration: num_blocks={config.num_blocks} cannot hold one request of max_model_len="
            f"{config.max_model_len}; it needs at least {config.smallest_pool()}"
        )
    if config.eagle_block_drop and not config.num_speculative_tokens:
        raise TraceError("configuration: eagle_block_drop needs num_speculative_tokens of at least 1")
    if config.max_num_batched_tokens < config.num_speculative_tokens + 1:
        raise TraceError(
            f"configuration: max_num_batched_tokens={config.max_num_batched_tokens} is less than one decode with "
            f"{config.num_speculative_tokens} drafts; set it to at least {config.num_speculative_tokens + 1}"
        )


def needed_events(events: Iterable[Event]) -> set[str]:
    """Return the event tags that a target must know to run these events; a session may need "resume"."""
    return {tag_of(event) for event in events} | {
        needs.tag for event in events for _, needs in changed(event, NeedsEvent)
    }


def needed_kinds(events: Iterable[Event]) -> set[str]:
    """Return the features that a target must have for the documents of these events."""
    prompts = [event.prompt for event in events if isinstance(event, Turn)]
    return features_of(document for prompt in prompts for document, _ in prompt)


def needed_features(events: Iterable[Event]) -> set[str]:
    """Return the features that a target must have for these requests: for their documents and what they ask for."""
    asked = [event for event in events if isinstance(event, Turn | Abort)]
    return needed_kinds(asked) | {needs.feature for event in asked for _, needs in changed(event, NeedsFeature)}


def features_of(documents: Iterable[str]) -> set[str]:
    """Return the features that a target must have for documents: images, or adapters and salts."""
    return {"images" if kind == "image" else "adapters" for document in documents if (kind := kind_of(document))}


def logprob_start(event: Arrive) -> int | None:
    """Return SGLang's `logprob_start_len`: the position after which a client wants the log-probabilities of its prompt,
    None if it wants none."""
    length = sum(length for _, length in event.prompt)
    return min(event.logprobs_from, length - 1) if event.prompt_logprobs else None


def fits(config: Config, event: Turn, known: int = 0) -> bool:
    """Return True if a request, or the next turn of a session with `known` tokens, is within `max_model_len`. A target
    ignores one that is not."""
    return known + sum(length for _, length in event.prompt) + event.max_new_tokens <= config.max_model_len
