"""Messages between coordinator and worker: one JSON object a line, tagged by kind.

coordinator  draw · supports · port · run · explain · answer · summarize · observe · fuzz · expand ·
             compare
worker       ready (once, unasked) · eventstarted · busy · done · drawn · supported · ported · explained · answered ·
             summarized · observed · expanded · compared · failed · forked

The first line that a worker gets is its seal; each of its lines begins with it (`outbox`). The second one has the lines
of the engine that it watches (`record.watched_lines`), as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Struct

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Config, Trace
from ..draw.avoid import Circumstances
from ..draw.workload import DEFAULT, Workload
from ..explore.expand import Compare, Compared, Expand, Expanded
from ..judge.differential import EventSummary
from ..judge.environment_fault import EnvironmentFault
from ..judge.outcome import Outcome
from ..record.activity import Observation
from ..record.answers import Answers
from ..record.history import History

Overrides = dict[str, object]
"""`--config key=value`: fields that are fixed in every drawn configuration."""


class Draw(Struct, frozen=True, tag="draw"):
    """Draw one trace and return it, without running it."""

    seed: int
    index: int
    overrides: Overrides
    avoid: Sequence[Circumstances] = ()
    workload: Workload = DEFAULT
    aim: Mapping[str, float] = {}


class Supports(Struct, frozen=True, tag="supports"):
    """Return the reason why the target does not support a configuration."""

    config: Config


class Port(Struct, frozen=True, tag="port"):
    """Change a trace so that the target takes it, without running it."""

    trace: Trace


class Run(Struct, frozen=True, tag="run"):
    """Run one trace; an `EventStarted` before each event, so that a crash has a place."""

    trace: Trace
    twice: bool = False


class Explain(Struct, frozen=True, tag="explain"):
    """Run one trace and record its history."""

    trace: Trace


class Answer(Struct, frozen=True, tag="answer"):
    """Run one trace to its end, without oracles, and return what its clients receive; `request` is the violation's."""

    trace: Trace
    request: str = ""


class Summarize(Struct, frozen=True, tag="summarize"):
    """Run one trace and summarize each event, for a comparison."""

    trace: Trace


class Observe(Struct, frozen=True, tag="observe"):
    """Run one trace and record its steps and, with `lines`, the engine's lines executed in its first `most` events."""

    trace: Trace
    lines: bool = False
    most: int | None = None


class Fuzz(Struct, frozen=True, tag="fuzz"):
    """Draw and run up to `count` traces, numbers `first`, `first + stride`, ..., ending with the first violation.

    Every `twice_every`-th of them (by index) is run twice, 0 for none. A trace that reaches a state in `wanted` comes
    back with its result. Most traces to which circumstances in `avoid` apply are drawn again, and with an `aim` each is
    the best of several (`draw.aim`). Lines of `modules` (`Scope.modules`) that a trace reaches come with its result;
    none are recorded without any. Every trace comes back from a worker that watches lines. With `traces`, these are
    run, in this order, and none is drawn. A trace that the target refuses when it is opened ends the request with an
    error, unless it `takes_unopened`: then the refusal is the result, and the next trace runs. Likewise for a trace
    that cannot run for want of memory or a device, but then the request ends with that result, as with a violation.
    """

    seed: int
    first: int
    count: int
    overrides: Overrides
    twice_every: int = 0
    wanted: Sequence[str] = ()
    stride: int = 1
    avoid: Sequence[Circumstances] = ()
    modules: Sequence[str] = ()
    traces: Sequence[Trace] = ()
    takes_unopened: bool = False
    workload: Workload = DEFAULT
    aim: Mapping[str, float] = {}

    @property
    def indexes(self) -> range:
        """Return the numbers of all traces."""
        return range(self.first, self.first + self.count * self.stride, self.stride)


class Ready(Struct, frozen=True, tag="ready"):
    """The target is loaded."""

    name: str
    capabilities: Capabilities


class EventStarted(Struct, frozen=True, tag="eventstarted"):
    """An event is about to happen."""

    event: int


class Busy(Struct, frozen=True, tag="busy"):
    """What the worker waits for before the trace goes on, in a few words; until the next reply of another kind."""

    what: str


class Done(Struct, frozen=True, tag="done"):
    """A trace has ended. `trace` comes with a violation, if it was not opened, or if it is wanted.

    `seconds` is the worker's CPU time for drawing and running it. `lines` are those, by module, that no earlier trace
    of this process has reached; `species` those that it has not reported often enough (`SpeciesReporter`). `took` are
    seconds by what they went into (`stopwatch`).
    """

    outcome: Outcome
    trace: Trace | None = None
    seconds: float = 0.0
    lines: Mapping[str, Sequence[int]] = {}
    species: Sequence[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]] = ()
    took: Mapping[str, float] = {}


class Drawn(Struct, frozen=True, tag="drawn"):
    """Answer to `draw`; in `fuzz` sent before each trace that is drawn runs."""

    trace: Trace


class Supported(Struct, frozen=True, tag="supported"):
    """Answer to `supports`: "" if the target supports the configuration."""

    reason: str


class Ported(Struct, frozen=True, tag="ported"):
    """Answer to `port`. `changes` has one line for each change, none if there are none."""

    trace: Trace
    changes: tuple[str, ...]


class Explained(Struct, frozen=True, tag="explained"):
    """Answer to `explain`."""

    outcome: Outcome
    history: History


class Answered(Struct, frozen=True, tag="answered"):
    """Answer to `serve`."""

    answers: Answers


class Summarized(Struct, frozen=True, tag="summarized"):
    """Answer to `Summarize`."""

    outcome: Outcome
    summaries: list[EventSummary]


class Failed(Struct, frozen=True, tag="failed"):
    """The request cannot be served. "internal" is an error of hybridfuzz and has a traceback; "refused" is that of a
    trace whose configuration the target refused when it was opened; "misfit" of an adapter that does not fit its
    engine; "environment" has a `fault`."""

    kind: Literal["target", "misfit", "trace", "refused", "environment", "internal"]
    message: str
    details: str = ""
    fault: EnvironmentFault | None = None


class Forked(Struct, frozen=True, tag="forked"):
    """The target has forked, and this is the copy: it came back into the worker, and ends. `event` is the one that had
    started last when it was made: the worker itself may have gone on."""

    event: int


Request = Draw | Supports | Port | Run | Explain | Answer | Summarize | Observe | Fuzz | Expand | Compare
Reply = (
    Ready
    | EventStarted
    | Busy
    | Done
    | Drawn
    | Supported
    | Ported
    | Explained
    | Answered
    | Summarized
    | Observation
    | Expanded
    | Compared
    | Failed
    | Forked
)

encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode
