"""Writes stand-alone reproducers for llama.cpp's server: requests over HTTP on loopback, one after the other.

The script starts the server that xllamacpp has, with a tiny random model. After each request it asks a new server for
the same tokens, prints both, and fails where they differ. Which slot computes what is the server's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..base.inlined import Sources, import_block
from ..base.protocol import TargetError
from ..base.repro import DEVIATION, MACHINERY, Failure, Script, python_comment
from ..base.trace import Config, Event, Step, Trace, Truncate
from ..sequences import operations as do
from .families import FAMILIES
from .kit_limits import refusal
from .script_calls import Calls
from .server_requests import sent

WRONG_ANSWER, DIED = "wrong answer", "the server's process died"
OPENING = '''\
"""{message}

Needs xllamacpp, gguf and numpy; no GPU, no downloads. It starts the server of xllamacpp on loopback. Fails with an
AssertionError, exit status 1, where the bug is.
"""

from __future__ import annotations


def reproduce(server):
    """{settings}."""
{body}


'''
CLOSING = """\
if __name__ == "__main__":
    if sys.argv[1:]:
        server = CheckedServer(TINY, {options})
        reproduce(server)
        server.close()
        print("passed: the bug is not here")
    else:
        # The server runs in a process of its own, which it may end.
        status = subprocess.run([sys.executable, __file__, "serve"]).returncode
        assert status >= 0, f"{died} of signal {{-status}}"
        sys.exit(status)
"""


def write_scripts(trace: Trace, failure: Failure) -> list[Script]:
    """Return the reproducer of a failure of the server. Raises TargetError for a failure that no script can show."""
    config = trace.config
    if reason := refusal("server", config):
        raise TargetError(f"no stand-alone script can show a failure of this server: {reason}")
    if failure.oracle not in ("S6", "S7", "CRASH"):
        raise TargetError(f"no stand-alone script can show a failure of {failure.oracle} on the server")
    promise, events = WRONG_ANSWER, failure.events
    if failure.oracle == "CRASH":
        promise = failure.field.partition("-")[0]
        if promise.startswith("SIG"):
            # A process that died has left no history.
            promise, events = DIED, (*trace.events, Step())
    calls = _ServerCalls(config, planes=0)
    # Where a process died is not known.
    lines = [*calls.lines(events[:-1]), *([DEVIATION] if promise != DIED else []), *calls.lines(events[-1:])]
    options = {name: value for name, value in config.options.items() if name not in ("family", "ahead", "idle")}
    opening = OPENING.format(
        message=python_comment(failure.sentence),
        settings=", ".join(f"{name}={value}" for name, value in options.items()),
        body="\n".join(f"    {line}" for line in lines),
    )
    parts = Sources("hybridfuzz.targets.llamacpp").definitions(
        ("families.py", "Family"), ("checked_server.py", "CheckedServer")
    )
    text = [
        opening.rstrip("\n"),
        "",
        "",
        f"{MACHINERY} It posts requests to a server of a tiny random model, and the same tokens to a new one.",
        *(f"{line}  # noqa: E402" for line in import_block(parts, "import subprocess", "import sys")),
        "",
        *(f"\n{part.text}\n" for part in parts),
        "",
        f"TINY = {FAMILIES[config.options['family']]!r}",
        "",
        CLOSING.format(options=options, died=DIED),
    ]
    return [Script("\n".join(text), promise, "xllamacpp, gguf, numpy")]


class _ServerCalls(Calls):
    """Requests to a server, by methods of `checked_server.CheckedServer`."""

    def __init__(self, config: Config, planes: int) -> None:
        super().__init__(config, planes)
        self.count = 1 + int(config.options["ahead"])

    def truncate(self, event: Truncate) -> Sequence[do.Operation]:
        """Cut what the client knows: its next prompt is shorter."""
        client = self.client
        request = client.parked[event.name]
        if not request.saved or request.computed <= event.length:
            client.truncated(event.name, event.length)
        return ()

    def step(self, event: Step) -> Iterator[str]:
        """Yield the request of a step: the prompts of all clients."""
        client = self.client
        done, fed, _, _ = client.plan(event)
        yield from self.written(event, done)
        if fed:
            prompts = {one.row.sequence: [*one.request.tokens(0, one.row.start + one.count)] for one in fed}
            left = [(one, [*prompt]) for one, prompt in client.take_left()]
            leaving = f", {left}" if left and self.config.options.get("arrivals", "together") != "together" else ""
            yield f"server.ask({prompts}, {self.count}{leaving})"
            _, _, finished = client.advance(fed)
            yield from self.written(event, client.settle(finished))

    def written(self, event: Event, operations: Sequence[do.Operation]) -> Iterator[str]:
        """Yield what an event asks of the server."""
        for method, arguments in sent(event, operations):
            yield f"server.{method}({', '.join(map(repr, arguments))})"
