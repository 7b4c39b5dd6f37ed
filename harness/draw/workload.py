"""The table of the workload: the ratios by which traces are drawn, each with a name and a line that says what it is.

`hybridfuzz targets --workload` prints it; `fuzz --workload name=value,...` changes it. The same seed and the same table
give the same traces. How often each kind of event is drawn stands beside its type instead: `About.percent`, in
`targets/base/trace.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert, field, structs

from ...targets.base.trace import KINDS, TraceError, tag_of
from ..suggestions import did_you_mean


def percent(line: str) -> Meta:
    """Return what is known of a ratio in percent."""
    return Meta(ge=0, le=100, description=line)


def numbers(line: str) -> Meta:
    """Return what is known of numbers of which one is picked; those that are more likely are in it several times."""
    return Meta(min_length=1, max_length=64, description=line)


Number = Annotated[int, Meta(ge=1, le=1000)]
GrammarSteps = Annotated[int, Meta(ge=1, le=8)]
Samples = Annotated[int, Meta(ge=2, le=8)]
RARE = {tag_of(kind): kind.about.percent for kind in KINDS if kind.about.percent}
"""Tag of each kind that is drawn at random -> its percent."""


class Workload(Struct, frozen=True, forbid_unknown_fields=True):
    """Ratios, and numbers to pick from. A ratio is a percentage of the cases in which the question comes up: where a
    target has limits for a request in a step, 12 % of the steps get one."""

    # configurations
    near_stock: Annotated[int, percent("configurations near the stock server, on a target with a server")] = 55
    pressed: Annotated[int, percent("configurations under pressure, on a target that declares what that is")] = 25
    subject: Annotated[int, percent("configurations that aim at one extra")] = 30
    speculation: Annotated[int, percent("configurations with drafts")] = 75
    speculation_pressed: Annotated[int, percent("configurations under pressure with drafts")] = 40
    window: Annotated[int, percent("configurations with a sliding window")] = 20
    window_small_blocks: Annotated[int, percent("sliding windows in blocks of at most 4 tokens")] = 33
    attention_chunk: Annotated[int, percent("configurations with attention in chunks")] = 12
    drafter: Annotated[int, percent("speculative configurations with a group for the drafter")] = 40
    drafter_unused: Annotated[int, percent("other configurations with a group for a drafter")] = 10
    block_drop: Annotated[int, percent("speculative configurations with EAGLE's rules")] = 30
    async_scheduling: Annotated[int, percent("configurations that plan ahead of execution")] = 50
    prefill_threshold: Annotated[int, percent("configurations with a limit for the chunks of long prompts")] = 30
    model_blocks: Annotated[tuple[Number, ...], numbers("blocks of the longest request")] = (3, 4, 5, 3, 4, 6, 8)
    seats: Annotated[tuple[Number, ...], numbers("requests that may run together")] = (
        4, 3, 6, 2, 8, 4, 3, 6, 4, 2, 8, 3, 4, 6, 1,
    )  # fmt: skip
    few_seats: Annotated[tuple[Number, ...], numbers("requests that may run together under pressure")] = (1, 2, 1, 3)

    # the whole trace
    events: Annotated[tuple[Number, ...], numbers("events before the ending")] = (8, 12, 12, 16, 25, 25, 50, 100)
    overtime: Annotated[tuple[Number, ...], numbers("events behind the estimated end of all requests")] = (8, 8, 16, 30)
    bursts: Annotated[tuple[Number, ...], numbers("requests that a burst of arrivals leads to")] = (
        3, 4, 6, 8, 12, 2, 6, 1,
    )  # fmt: skip
    short_answers: Annotated[int, percent("traces with short answers only")] = 35
    kind_used: Annotated[int, percent("traces that use a rare kind of event, for each kind")] = 50
    evictions_used: Annotated[int, percent("traces with evictions, where what is evicted may be loaded back")] = 80
    conversations: Annotated[int, percent("traces with sessions")] = 50
    few_sessions: Annotated[int, percent("traces in which sessions may keep half of the seats only")] = 75
    forks: Annotated[int, percent("traces with sessions that fork them")] = 40
    truncations: Annotated[int, percent("traces with sessions that truncate them")] = 50
    logprobs_used: Annotated[int, percent("traces in which requests may ask for the log-probabilities of prompts")] = 35
    structured_used: Annotated[int, percent("traces in which requests may have structured output")] = 30
    structured_drafted: Annotated[int, percent("traces with drafts that may have structured output, if more")] = 50
    bad_grammars_used: Annotated[int, percent("traces in which grammars of requests may not compile")] = 20
    samples_used: Annotated[int, percent("traces in which clients may want several samples of a prompt")] = 30
    accurate: Annotated[int, percent("speculative traces in which all drafts are right, but for single requests")] = 25
    aborted_at_end: Annotated[int, percent("traces that end with aborts instead of running to their end")] = 40
    dummy_at_end: Annotated[int, percent("traces that end with a dummy run")] = 50
    avoided: Annotated[int, percent("traces that may show a known bug and are drawn again")] = 80

    # what comes next
    load_follows: Annotated[int, percent("arrivals and turns that a load follows at once, where requests wait")] = 45
    idle_dummy: Annotated[int, percent("events of an idle engine that are dummy runs")] = 25
    switch_back: Annotated[int, percent("events of an idle engine with a detached storage that attach it again")] = 30
    idle_step: Annotated[int, percent("events of an engine idle for a moment that are steps")] = 25
    idle_turn: Annotated[int, percent("events of an idle engine with sessions that go on with one")] = 75
    arrival_in_burst: Annotated[int, percent("events after an arrival in a burst that are another one")] = 70
    arrival: Annotated[int, percent("other events in a burst that are arrivals")] = 30
    turn: Annotated[int, percent("events with a parked session that go on with one")] = 35
    turn_truncates: Annotated[int, percent("next turns that truncate the session instead")] = 40
    turn_aborted: Annotated[int, percent("aborts of a session with a turn that keep the session")] = 50
    turn_forks: Annotated[int, percent("next turns that fork the session instead")] = 25

    # requests
    length_anywhere: Annotated[int, percent("lengths that are not near a block boundary")] = 25
    answer_near_boundary: Annotated[int, percent("arrivals whose answers end near a boundary")] = 70
    session: Annotated[int, percent("arrivals that begin a session, where there is room for one")] = 60
    shared_prompt: Annotated[int, percent("arrivals that share an earlier prompt")] = 75
    short_prompt: Annotated[int, percent("new prompts of at most two blocks")] = 40
    full_length: Annotated[int, percent("arrivals that may run up to max_model_len and do")] = 45
    stop_token: Annotated[int, percent("answers that end by a stop token, where there is room for more")] = 75
    beyond_stop: Annotated[tuple[Number, ...], numbers("tokens that such an answer was allowed further")] = (1, 2, 8, 4)
    min_tokens: Annotated[int, percent("such answers that have a minimum number of tokens")] = 30
    exact_length: Annotated[int, percent("other answers that must have all their tokens")] = 15
    stop_behind: Annotated[
        int, percent("further ones beside drafts whose stop token a verification may find too late")
    ] = 25
    beyond_context: Annotated[int, percent("answers to the end of the context that must have more tokens")] = 10
    min_behind_stop: Annotated[int, percent("such numbers that are behind the place of the stop token")] = 30
    stop_string: Annotated[int, percent("stop tokens that the engine has to find in the text of the answer")] = 40
    long_stop_string: Annotated[int, percent("stop strings that begin with one to three tokens before it")] = 50
    prompt_logprobs: Annotated[int, percent("such a trace's requests that ask for the log-probabilities")] = 35
    logprobs_from: Annotated[int, percent("of these those that ask for the end of the prompt only")] = 50
    structured: Annotated[int, percent("such a trace's requests with structured output")] = 60
    structured_turn: Annotated[int, percent("such a trace's turns of sessions with structured output")] = 60
    reasoning: Annotated[int, percent("answers with structured output that begin with reasoning")] = 40
    bad_grammar: Annotated[int, percent("such a trace's requests whose grammar does not compile")] = 20
    grammar_steps: Annotated[tuple[GrammarSteps, ...], numbers("steps for which a grammar is compiled, and 1")] = (
        1, 1, 2, 1, 3, 5,
    )  # fmt: skip
    several_samples: Annotated[int, percent("such a trace's requests with several samples")] = 40
    samples: Annotated[tuple[Samples, ...], numbers("their samples")] = (2, 3, 2, 4)
    samples_aborted: Annotated[int, percent("aborts of one of several samples that abort them all")] = 60
    important: Annotated[int, percent("arrivals at least as important as the one before")] = 50

    # steps
    all_drafts: Annotated[int, percent("steps with as many drafts as possible")] = 70
    own_drafts: Annotated[int, percent("speculative steps with drafts of its own for a request")] = 40
    request_limit: Annotated[int, percent("steps with a limit for a request")] = 12
    smaller_budget: Annotated[int, percent("steps with a smaller budget")] = 20
    any_budget: Annotated[int, percent("smaller budgets that do not end at a row that decodes")] = 50
    padded: Annotated[int, percent("steps with a decode batch padded to a number of rows")] = 10

    # other events
    reset_preempts: Annotated[int, percent("resets of the prefix cache that preempt running requests")] = 50
    reset_paused: Annotated[int, percent("resets, where none is possible while requests run, that pause them")] = 50
    load_states: Annotated[int, percent("loads with states")] = 85
    load_fails: Annotated[int, percent("loads that break off")] = 20
    waited_load_fails: Annotated[int, percent("loads that break off, where requests wait for loads")] = 40
    evict_loadable: Annotated[int, percent("events that evict, where what is evicted may be loaded back")] = 20
    evicted_again: Annotated[int, percent("such evictions behind which an earlier prompt is asked for again")] = 60
    row_selected: Annotated[int, percent("rows that a selection keeps")] = 75
    rows_exchanged: Annotated[int, percent("reorders that exchange rows and copy none")] = 50
    dummy_uniform: Annotated[int, percent("dummy runs that replay a decode graph")] = 85
    rare: Annotated[
        Mapping[str, Annotated[int, percent("events of this kind, in traces that use it")]],
        Meta(description="percent of each rare kind of event"),
    ] = field(default_factory=RARE.copy)


DEFAULT = Workload()
"""The table of a campaign that was not given another."""


def rows_of(workload: Workload) -> dict[str, tuple[str, str]]:
    """Return the name of each ratio -> its value as text, and the line about it."""
    rows = {name: (_text(getattr(workload, name)), line) for name, line in _lines().items()}
    for tag, value in workload.rare.items():
        rows[tag] = (str(value), f"events that are {tag}, in traces that use it")
    return rows


@cache
def _lines() -> Mapping[str, str]:
    """Return the line about each ratio that is one number, or several to pick from."""
    return {
        one.name: str(next(mark.description for mark in one.type.__metadata__ if mark.description))
        for one in structs.fields(Workload)
        if one.name != "rare"
    }


def _text(value: int | tuple[int, ...]) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def differences(workload: Workload) -> dict[str, str]:
    """Return the names and values of the ratios that are not those of `DEFAULT`: `with_ratios` makes it of them."""
    usual = rows_of(DEFAULT)
    return {name: value for name, (value, _) in rows_of(workload).items() if value != usual[name][0]}


def with_ratios(changes: Mapping[str, object]) -> Workload:
    """Return the default table with other values for some names, as text: "30", or "3/4/6" for numbers to pick from.

    Raises TraceError for a name that is not in the table, or a value that does not fit.
    """
    table = structs.asdict(DEFAULT)
    rare = dict(DEFAULT.rare)
    for name, value in changes.items():
        if name in rare:
            rare[name] = value  # type: ignore[assignment]
        elif name in table and name != "rare":
            table[name] = str(value).split("/") if isinstance(table[name], tuple) else value
        else:
            hint = did_you_mean(name, rows_of(DEFAULT)) or "; `hybridfuzz targets --workload` lists what there is"
            raise TraceError(f"workload: there is no {name!r}{hint}")
    try:
        return convert({**table, "rare": rare}, Workload, strict=False)
    except ValidationError as error:
        raise TraceError(f"workload: {error}") from None
