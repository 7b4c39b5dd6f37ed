"""The worker: `python -m hybridfuzz.harness.workers.server TARGET` loads one target and serves requests.

It runs in the target's own interpreter, so it may import nothing that an engine's environment lacks
(msgspec and numpy are all there is). Engines print what they like: file descriptor 1 is theirs and
leads to standard error, the protocol speaks through a copy of the original one.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

from msgspec import structs

from ...targets.base.protocol import TargetError, TargetFactory
from ...targets.base.registry import load_factory
from ...targets.base.trace import Trace, TraceError
from ..explain.recorder import record_history
from ..generate.grammar import draw_trace
from ..lockstep.differential import run_summarized
from ..lockstep.lockstep import unobserved
from ..lockstep.run import run_trace
from ..traces.adapt import port
from ..traces.outcome import Outcome
from ..traces.violation import Violation
from .messages import (
    Done,
    Draw,
    Drawn,
    EventStarted,
    Explain,
    Explained,
    Failed,
    Fuzz,
    Port,
    Ported,
    Ready,
    Reply,
    Request,
    Run,
    Summarize,
    Summarized,
    decode_request,
    encode,
)

Send = Callable[[Reply], None]


def claim_streams() -> tuple[BinaryIO, BinaryIO]:
    """Our own standard input and output; afterwards 0 is empty and 1 is standard error, also for
    child processes.
    """
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return inbox, outbox


def listen(inbox: BinaryIO) -> SimpleQueue[Request]:
    """Requests as they come.

    A thread, so that a worker ends with its coordinator even in the middle of a trace.
    """
    requests: SimpleQueue[Request] = SimpleQueue()

    def read() -> None:
        for line in inbox:
            requests.put(decode_request(line))
        os._exit(0)

    Thread(target=read, daemon=True).start()
    return requests


def run(factory: TargetFactory, trace: Trace, *, twice: bool, on_event: Callable[[int], None] = unobserved) -> Outcome:
    """Run a trace; if `twice`, a clean result counts only if a second run looks the same."""
    outcome = run_trace(factory, trace, on_event)
    if not twice or outcome.violation:
        return outcome
    again = run_trace(factory, trace, on_event)
    if again.digest == outcome.digest and not again.violation:
        return outcome
    what = again.violation.message if again.violation else "it is clean, too, but other blocks or tokens were seen"
    violation = Violation(
        oracle="DETERMINISM",
        field="violation" if again.violation else "digest",
        message="DETERMINISM: the trace ran clean, and then differently on a second engine in the "
        f"same process: {what}",
        expected=f"{outcome.digest:08x}",
        observed=f"{again.digest:08x}",
    )
    return structs.replace(outcome, violation=violation)


def serve(request: Request, factory: TargetFactory, send: Send) -> None:
    """Answer one request."""
    if isinstance(request, Run):
        on_event = lambda index: send(EventStarted(index))  # noqa: E731
        send(Done(run(factory, request.trace, twice=request.twice, on_event=on_event)))
    elif isinstance(request, Explain):
        send(Explained(*record_history(factory, request.trace, lambda index: send(EventStarted(index)))))
    elif isinstance(request, Summarize):
        send(Summarized(*run_summarized(factory, request.trace)))
    elif isinstance(request, Draw):
        send(Drawn(_draw(factory, request, request.index)))
    elif isinstance(request, Port):
        send(Ported(*port(request.trace, factory)))
    else:
        for index in range(request.first, request.first + request.count):
            began = time.process_time()
            trace = _draw(factory, request, index)
            twice = bool(request.twice_every) and index % request.twice_every == 0
            outcome = run(factory, trace, twice=twice)
            seconds = time.process_time() - began
            back = outcome.violation or not outcome.reached.keys().isdisjoint(request.wanted)
            send(Done(outcome, trace if back else None, seconds))
            if outcome.violation:
                return


def _draw(factory: TargetFactory, request: Draw | Fuzz, index: int) -> Trace:
    return draw_trace(factory.capabilities, request.seed, index, request.overrides, factory.supports)


def failure(error: Exception) -> Failed:
    """What went wrong, in one line."""
    if isinstance(error, TargetError):
        return Failed("target", str(error))
    if isinstance(error, TraceError):
        return Failed("trace", str(error))
    return Failed("internal", f"{type(error).__name__}: {error}", traceback.format_exc())


def load(spec: str) -> TargetFactory:
    """The factory.

    An engine that cannot even be imported is the engine's (or its environment's) fault, not ours.
    """
    try:
        return load_factory(spec)
    except TargetError:
        raise
    except Exception as error:
        traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}:{frame.lineno}"
        raise TargetError(f"target {spec!r} cannot be loaded: {type(error).__name__}: {error} ({where})") from error


def main() -> int:
    """Load, say ready, serve."""
    inbox, outbox = claim_streams()
    requests = listen(inbox)

    def send(reply: Reply) -> None:
        outbox.write(encode(reply) + b"\n")
        outbox.flush()

    try:
        factory = load(sys.argv[1])
        send(Ready(factory.name, factory.capabilities))
    except Exception as error:
        send(failure(error))
        return 2
    while True:
        try:
            serve(requests.get(), factory, send)
        except BrokenPipeError:
            return 0
        except Exception as error:
            send(failure(error))


if __name__ == "__main__":
    sys.exit(main())
