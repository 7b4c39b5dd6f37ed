"""The clients of a report's server: a Python script that sends what the requests of a trace send, in order.

The calls are the engine's (`deployment.Client`); when each is made follows from the history of the failing run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from ...targets.base.client_requests import awaited_by, stops_of, variable
from ...targets.base.trace import Abort, Arrive, Resume, Step, Trace, Turn
from ..record.history import History, RequestStep
from ..units import listed
from .at_scale import Served
from .scenario import requests_of, steps_of

END = """\
    for name, task in list(locals().items()):
        if isinstance(task, asyncio.Task):
            print(name, (await asyncio.gather(task, return_exceptions=True))[0])


asyncio.run(main())"""


AGAIN = """\
    sent = [task for task in locals().values() if isinstance(task, asyncio.Task)]
    await asyncio.gather(*sent, return_exceptions=True)
    # The cache holds wrong content by now. A client that sends the same tokens meets it, whose answer
    # is to be compared with that of the same request to a new server.
    known = {prompt}
    known = known + answer(await send(known, {new}{fields}))
    again = send(known, 4{fields})"""


def client_lines(served: Served, trace: Trace, history: History, again: bool = False) -> Iterator[str]:
    """Yield the lines of the script, nothing if no endpoint takes a request of the trace. `again`: a client that sends
    the same tokens once more is the one that receives wrong ones."""
    client, command = served.deployment.client, served.deployment.command
    if not any("send(" in line for lines in client.calls.values() for line in lines):
        return
    named = command[-1].strip(chr(34))
    model = 'MODEL = ""  # the checkpoint that the server has' if named.startswith("$") else f"MODEL = {named!r}"
    delay = "DELAY = 0.1  # seconds: adjust it until each request arrives when its comment says"
    lines = list(_main(served, trace, history, again))
    waits = any("sleep(DELAY)" in line for line in lines)
    reads = [client.reads] if any("answer(" in line for line in lines) else []
    given = [*([model] if "MODEL" in client.head else []), *([delay] if waits else [])]
    yield "\n".join([client.head, *reads, *(["", *given] if given else [])])
    if stops := stops_of(trace.events):
        yield from ("STOP = {", *(f"    {name!r}: 0,  # put here {what}" for name, what in stops.items()), "}")
    yield "\n\nasync def main():"
    yield from lines
    yield END


class _Call(Struct, frozen=True):
    """A call of the script.

    lines   its own
    ended   requests that the script awaits before it
    until   what the script sleeps for before it, "" for nothing
    """

    index: int
    lines: Sequence[str]
    ended: Sequence[str] = ()
    until: str = ""


def _plan(served: Served, trace: Trace, history: History) -> Iterator[_Call]:
    """Yield the calls in order; their indices are those of the server's trace."""
    calls = served.deployment.client.calls
    before, of_trace = -1, dict(zip(_calls(served.trace), _calls(trace), strict=True))
    for index in sorted(calls):
        event = of_trace[index]
        planned = _planned(history, event)
        ended: Sequence[str] = ()
        until = ""
        if planned > before >= 0:
            doing = _doing(trace, history, event, planned)
            own = [variable(getattr(trace.events[event], "name", ""))]
            if isinstance(trace.events[event], Resume) and [*doing.values()] == [own]:
                pass  # its call waits for the turn before
            elif doing.keys() == {ENDED}:
                ended = doing[ENDED]
            else:
                until = _in_words(doing) or "the turn before is computed"
        before = planned
        yield _Call(index, calls[index], ended, until)


def _main(served: Served, trace: Trace, history: History, again: bool) -> Iterator[str]:
    """Yield the lines of the function that sends the requests."""
    client = served.deployment.client
    for call in _plan(served, trace, history):
        if call.ended:
            yield f"    await asyncio.gather({', '.join(call.ended)})"
        elif call.until:
            yield f"    await asyncio.sleep(DELAY)  # until {call.until}"
        yield from (f"    {line}" for line in call.lines)
    if again and (first := next(_sent(client.calls.values()), None)):
        prompt, new = map(ast.unparse, first.args)
        fields = "".join(f", {one.arg}={ast.unparse(one.value)}" for one in first.keywords)
        yield AGAIN.format(prompt=prompt, new=new, fields=fields)


def _sent(calls: Iterable[Sequence[str]]) -> Iterator[ast.Call]:
    """Yield the calls that send a request."""
    for lines in calls:
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "send":
                yield node


def _calls(trace: Trace) -> list[int]:
    """Return the indices of events that are no steps: in a server's lengths a trace has more steps."""
    return [index for index, event in enumerate(trace.events) if not isinstance(event, Step)]


def _planned(history: History, index: int) -> int:
    """Return the number of steps that were planned before an event."""
    return max((step + 1 for moment in history.moments[:index] for step in moment.steps), default=0)


def _doing(trace: Trace, history: History, index: int, planned: int) -> dict[str, list[str]]:
    """Return what the requests before an event do when it happens -> their names in the script."""
    rows, steps = {row.name: row for row in requests_of(trace, history)}, steps_of(history)
    before = trace.events[:index]
    gone = {name for event in before if isinstance(event, Abort) for name in (event.name, *event.together)}
    turns = {event.name for event in before if isinstance(event, Resume)}
    doing: dict[str, list[str]] = {}
    for event in before:
        if isinstance(event, Arrive) and event.name in rows and event.name not in gone | turns:
            row = rows[event.name]
            own = [one for one in steps.get(event.name, ()) if one.step < planned]
            state = _state(own, row.prompt, row.new)
            # Scheduled asynchronously, the client of a step that was just planned has no answer yet.
            is_in_flight = bool(own) and own[-1].step + trace.config.async_depth >= planned
            if state == ENDED and (is_in_flight or event.name == getattr(trace.events[index], "name", "")):
                state = LAST
            doing.setdefault(state, []).append(variable(event.name))
    return doing


def _in_words(doing: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{listed(names)} {_plural(state, names)}" for state, names in doing.items())


def needs_timing(served: Served, trace: Trace, history: History) -> bool:
    """Return True if something has to happen in a server while a request runs: a call is made before all earlier
    requests have ended."""
    events, running = served.trace.events, set[str]()
    for call in _plan(served, trace, history):
        running -= {*call.ended, *map(variable, awaited_by(events, call.index))}
        if running or call.until:
            return True
        event = events[call.index]
        if isinstance(event, Turn):
            running.add(variable(event.name))
    return False


ENDED, LAST = "has ended", "is in its last step"
STATES: Mapping[str, str] = {
    "waits": "wait",
    "decodes": "decode",
    ENDED: "have ended",
    LAST: "are in their last steps",
}
"""What one request does -> what several do."""


def _plural(state: str, names: Sequence[str]) -> str:
    return STATES.get(state, state) if len(names) > 1 else state


def _state(own: Sequence[RequestStep], prompt: int, new: int) -> str:
    """Return what a request does that has had these steps."""
    if not own:
        return "waits"
    computed = own[-1].start + own[-1].num_tokens
    if computed < prompt:
        return f"is in its prefill (the scenario: {computed} of {prompt} tokens)"
    return ENDED if computed >= prompt + new - 1 else "decodes"
