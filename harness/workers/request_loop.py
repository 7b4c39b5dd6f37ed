"""The worker's side: loads the target that `sys.argv[1]` names and serves requests.

It runs in the target's own interpreter, so it imports only what every engine's environment has: msgspec and NumPy.
Engines may print: file descriptor 1 leads to standard error, and the protocol uses a copy of the original one.
"""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

import msgspec
from msgspec import structs

from ...targets.base.protocol import MisfitError, Narrator, TargetError, TargetFactory, Waits
from ...targets.base.registry import load_factory, parse
from ...targets.base.trace import Trace, TraceError
from ..draw.adapt import port
from ..draw.grammar import draw_trace
from ..explore.expand import Compare, Expand, Expander
from ..judge.differential import run_summarized
from ..judge.engines import RefusedError
from ..judge.environment_fault import FaultyEnvironment, fault_of
from ..judge.lockstep import unobserved
from ..judge.outcome import Outcome
from ..judge.run import run_taken, run_trace
from ..judge.situations import SpeciesReporter
from ..judge.target_exception import NotATarget, importable, innermost, is_of_target, owner, text_of
from ..judge.verdict import Quoted
from ..judge.violation import Violation, cleaned
from ..quoting import DETAILS_MAX, clean, one_line
from ..record.activity import record_activity
from ..record.answers import collect_answers
from ..record.line_recorder import LineRecorder
from ..record.recorder import record_history
from ..record.watched_lines import WatchedLines
from .checked_factory import CheckedFactory, described
from .descendants import end_descendants
from .messages import (
    Answer,
    Answered,
    Busy,
    Done,
    Draw,
    Drawn,
    EventStarted,
    Explain,
    Explained,
    Failed,
    Fuzz,
    Observe,
    Port,
    Ported,
    Ready,
    Request,
    Run,
    Summarize,
    Summarized,
    Supported,
    Supports,
    decode_request,
)
from .outbox import Outbox
from .own_code import OwnCode
from .stopwatch import Stopwatch
from .worker_environment import remove_home

BUSY_MAX = 80
"""Characters of what a target says that it waits for."""


def claim_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return copies of standard input and output; then make 0 empty and 1 standard error, also for child processes."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return inbox, outbox


def listen(inbox: BinaryIO) -> SimpleQueue[bytes]:
    """Return a queue of requests, filled by a thread: a worker ends with its coordinator, also within a trace."""
    requests: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in inbox:
            requests.put(line)
        end_descendants(os.getpid())
        remove_home(Path(os.environ.get("HOME", "")))  # the coordinator may have been killed
        os._exit(0)

    Thread(target=read, daemon=True).start()
    return requests


def run(
    factory: TargetFactory,
    trace: Trace,
    *,
    twice: bool,
    drawn: bool = False,
    on_event: Callable[[int], None] = unobserved,
) -> Outcome:
    """Run a trace; if `twice`, a clean result counts only if a second run has the same digest. One that was `drawn`
    here has a configuration that the target supports."""
    outcome = run_taken(factory, trace, on_event) if drawn else run_trace(factory, trace, on_event)
    if outcome.violation:
        return structs.replace(outcome, violation=cleaned(outcome.violation))
    if not twice:
        return outcome
    again = run_taken(factory, trace, on_event)
    if again.digest == outcome.digest and not again.violation:
        return outcome
    violation = Violation(
        oracle="DETERMINISM",
        field="violation" if again.violation else "digest",
        relation="second-run-fails" if again.violation else "second-run-differs",
        details={"again": Quoted(again.violation.message) if again.violation else None},
        expected=f"{outcome.digest:08x}",
        observed=f"{again.digest:08x}",
    )
    return structs.replace(outcome, violation=cleaned(violation))


def serve(
    request: Request,
    factory: Stopwatch,
    outbox: Outbox,
    recorder: LineRecorder,
    lines: WatchedLines,
    expander: Expander,
    reporter: SpeciesReporter,
) -> None:
    """Answer one request."""
    send = outbox.send
    if isinstance(request, Run):
        on_event = lambda index: send(EventStarted(index))  # noqa: E731
        lines.clear()
        outcome = run(factory, request.trace, twice=request.twice, on_event=on_event)
        send(Done(structs.replace(outcome, ran=lines.ran())))
    elif isinstance(request, Explain):
        outcome, history = record_history(factory, request.trace, lambda index: send(EventStarted(index)))
        violation = outcome.violation and cleaned(outcome.violation)
        send(Explained(structs.replace(outcome, violation=violation), structs.replace(history, violation=violation)))
    elif isinstance(request, Answer):
        send(Answered(collect_answers(factory, request.trace, request.request)))
    elif isinstance(request, Summarize):
        outcome, summaries = run_summarized(factory, request.trace)
        violation = outcome.violation and cleaned(outcome.violation)
        send(Summarized(structs.replace(outcome, violation=violation), summaries))
    elif isinstance(request, Observe):
        on_event = lambda index: send(EventStarted(index))  # noqa: E731
        seen = record_activity(factory, request.trace, on_event, lines=request.lines, most=request.most)
        violation = seen.outcome.violation and cleaned(seen.outcome.violation)
        send(structs.replace(seen, outcome=structs.replace(seen.outcome, violation=violation)))
    elif isinstance(request, Draw):
        send(Drawn(_draw(factory, request, request.index)))
    elif isinstance(request, Supports):
        send(Supported(clean(factory.supports(request.config))))
    elif isinstance(request, Expand):
        send(expander.expand(request, lambda index: send(EventStarted(index))))
    elif isinstance(request, Compare):
        send(expander.compare(request, lambda index: send(EventStarted(index))))
    elif isinstance(request, Port):
        send(Ported(*port(request.trace, factory)))
    else:
        draw = factory.timed("drawing", _draw)
        for number, index in enumerate(request.indexes):
            began = time.process_time()
            factory.begin()
            if request.traces:
                trace = request.traces[number]
            else:
                trace = draw(factory, request, index)
                send(Drawn(trace))  # without it a crash would have no trace if the target cannot be started again
            twice = bool(request.twice_every) and index % request.twice_every == 0
            lines.clear()
            with recorder.recording(request.modules):
                outcome = _run_drawn(factory, trace, request, outbox, twice=twice)
            reached = recorder.new()
            outcome = structs.replace(outcome, ran=lines.ran())
            seconds = time.process_time() - began
            wanted = lines.watched or not outcome.reached.keys().isdisjoint(request.wanted)
            back = outcome.violation or not outcome.opened or wanted
            species = reporter.report(outcome.together)
            kept, told = trace if back else None, structs.replace(outcome, together=())
            send(Done(told, kept, seconds, reached, species, factory.took()))
            if outcome.violation or outcome.fault:
                return


def _run_drawn(factory: TargetFactory, trace: Trace, request: Fuzz, outbox: Outbox, *, twice: bool) -> Outcome:
    """Run a drawn trace. One that is not opened is an outcome if the request takes that."""
    try:
        return run(factory, trace, twice=twice, drawn=not request.traces, on_event=lambda _: outbox.end_copy())
    except RefusedError as error:
        if not request.takes_unopened:
            raise TargetError(text_of(error)) from error
        return Outcome(None, 0, 0, {}, {}, 0, refused=clean(text_of(error)))
    except FaultyEnvironment as error:
        if not request.takes_unopened:
            raise
        return Outcome(None, 0, 0, {}, {}, 0, fault=error.fault)


def _draw(factory: TargetFactory, request: Draw | Fuzz, index: int) -> Trace:
    return draw_trace(
        factory.capabilities,
        request.seed,
        index,
        request.overrides,
        factory.supports,
        request.avoid,
        request.workload,
        request.aim,
    )


def failure(error: Exception, spec: str, code: OwnCode) -> Failed:
    """Return an error as a reply; its text may be a target's. It is internal if the target has no part in it."""
    if fault := fault_of(error):
        return Failed("environment", str(fault), fault=fault)
    if isinstance(error, TargetError):
        return Failed("misfit" if isinstance(error, MisfitError) else "target", clean(text_of(error)))
    if isinstance(error, TraceError):
        return Failed("refused" if isinstance(error, RefusedError) else "trace", clean(text_of(error)))
    if isinstance(error, NotATarget) or is_of_target(error):
        return Failed("target", clean(f"target {spec!r}: it raised {described(error)}"))
    if replaced := code.replaced():
        return Failed("target", clean(f"target {spec!r}: it replaced {replaced[0]}, then came {described(error)}"))
    details = clean(traceback.format_exc()[-DETAILS_MAX:], DETAILS_MAX)
    return Failed("internal", clean(f"{type(error).__name__}: {text_of(error)}"), details)


def load(spec: str) -> CheckedFactory:
    """Return the factory. An engine that cannot be imported is a TargetError, not an internal error; one whose adapter
    raised is a MisfitError."""
    try:
        return CheckedFactory(load_factory(spec), spec)
    except TargetError:
        raise
    except Exception as error:
        traceback.print_exc()
        who, module = owner(error, (parse(spec).name,))
        frame = innermost(error.__traceback__, module if who == "adapter" else "")
        where = f" ({importable(frame.filename)}:{frame.lineno})" if frame else ""
        kind = MisfitError if who == "adapter" else TargetError
        raise kind(f"target {spec!r} cannot be loaded: {type(error).__name__}: {text_of(error)}{where}") from error


def main() -> int:
    """Load the target, send `ready`, serve."""
    inbox, stream = claim_streams()
    outbox, code, spec = Outbox(stream, inbox.readline().strip()), OwnCode(), sys.argv[1]
    lines = WatchedLines(msgspec.json.decode(inbox.readline(), type=dict[str, list[int]]))
    requests = listen(inbox)
    gc.disable()  # what is imported is no garbage: collecting takes a fifth of the time of vLLM's import
    try:
        lines.watch()
        checked = load(spec)
        if isinstance(checked.factory, Narrator):
            checked.factory.say = lambda what: outbox.send(Busy(one_line(what, BUSY_MAX)))
        factory = Stopwatch(checked, checked.factory.waited if isinstance(checked.factory, Waits) else {})
        outbox.send(Ready(factory.name, factory.capabilities))
    except Exception as error:
        outbox.send(failure(error, spec, code))
        return 2
    # From here on a full collection looks at what traces leave, not at the half million objects that an engine imports.
    gc.collect()
    gc.freeze()
    gc.enable()
    recorder, expander, reporter = LineRecorder(), Expander(checked), SpeciesReporter()
    while True:
        try:
            serve(decode_request(requests.get()), factory, outbox, recorder, lines, expander, reporter)
        except BrokenPipeError:
            return 0
        except Exception as error:
            outbox.send(failure(error, spec, code))
