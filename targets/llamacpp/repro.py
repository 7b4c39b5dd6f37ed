"""Writes stand-alone reproducers for llama.cpp: calls of its C API on a tiny random model, one after the other.

After each batch the script compares the logits with those of the same tokens alone. It keeps account of which tokens
each sequence has to hold, by what llama.h says of the calls, so nothing in it depends on hybridfuzz. What only wrong
positions show, an assertion on positions shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ..base.inlined import Sources, import_block
from ..base.protocol import TargetError
from ..base.repro import DEVIATION, MACHINERY, Failure, Script, python_comment
from ..base.trace import Config, Event, Step, Trace, Truncate
from ..sequences import operations as do
from ..sequences.client import Fed
from . import server_repro
from .context_sizes import planes_of, sizes_of
from .factory import SERVER
from .families import FAMILIES, Family
from .kit_limits import refusal
from .script_calls import Calls

STEPS_AFTER = 8
"""Steps after the violation, in which wrong content becomes a wrong number."""
WRONG_LOGITS, WRONG_POSITIONS, DIED = "wrong logits", "wrong positions", "the process died"
PROGRAM = """ `python repro.py FOLDER` also writes the
calls as a C program, with the model that it loads."""
IN_C = (
    "`python repro.py FOLDER` also writes the same calls as a C program of llama.h, `FOLDER/repro.c`, with its model."
)
OPENING = '''\
"""{message}

Needs xllamacpp (for its shared object alone), gguf and numpy; no GPU, no downloads. With HYBRIDFUZZ_LLAMACPP_LIBRARY
set, that libllama.so is used. Fails with an AssertionError where the bug is.{program}
"""

from __future__ import annotations


def reproduce(llama):
    """{settings}."""
{body}


'''

CLOSING = """\
if __name__ == "__main__":
    llama = Llama(TINY, {sizes})
    try:
        reproduce(llama)
    finally:
        if sys.argv[1:]:
            llama.write_c(Path(sys.argv[1]))
    print("passed: the bug is not here")
"""
CLOSING_OF_A_DEATH = """\
if __name__ == "__main__":
    if sys.argv[1:]:
        reproduce(Llama(TINY, {sizes}))
        print("passed: the bug is not here")
    else:
        # The library ends the process, so it runs in one of its own.
        status = subprocess.run([sys.executable, __file__, "here"]).returncode
        assert status >= 0, f"{died} of signal {{-status}}"
        sys.exit(status)
"""


def write_scripts(variant: str, trace: Trace, failure: Failure) -> list[Script]:
    """Return reproducers: one that takes llama.cpp to agree to each cut that its snapshots reach, one to none. Raises
    TargetError for a failure that no script can show."""
    if variant == SERVER:
        return server_repro.write_scripts(trace, failure)
    if reason := refusal("script", trace.config):
        raise TargetError(f"no stand-alone script can show {reason}")
    if failure.oracle not in ("S4", "S6", "S7", "S9", "M9", "CRASH"):
        raise TargetError(f"no stand-alone script can show a failure of {failure.oracle}")
    promise = WRONG_LOGITS
    if failure.oracle == "M9":
        promise = WRONG_POSITIONS
    elif failure.oracle == "CRASH":
        promise = failure.field.partition("-")[0]
        if promise.startswith("SIG"):
            # A process that died has left no history.
            promise, failure = DIED, msgspec.structs.replace(failure, events=trace.events)
    family = FAMILIES[trace.config.options["family"]]
    cuts = any(isinstance(event, Truncate) for event in failure.events)
    return [
        Script(
            _text(trace.config, family, failure, promise, agrees=agrees),
            promise,
            "xllamacpp, gguf, numpy",
            more="" if promise == DIED else IN_C,
        )
        for agrees in ((True, False) if cuts else (True,))
    ]


def _text(config: Config, family: Family, failure: Failure, promise: str, *, agrees: bool) -> str:
    after = [Step() for _ in range(STEPS_AFTER if failure.oracle != "M9" else 0)]
    planes = planes_of(config, has_planes=True)
    calls = _LibraryCalls(config, planes, agrees=agrees)
    mark = [DEVIATION] if promise != DIED else []  # where a process died is not known
    lines = [*calls.lines(failure.events[:-1]), *mark, *calls.lines([*failure.events[-1:], *after])]
    if promise == WRONG_POSITIONS:
        lines.append("llama.check_positions()")
    sizes = sizes_of(config, planes)
    opening = OPENING.format(
        message=python_comment(failure.sentence),
        settings=", ".join(f"{name}={value}" for name, value in sizes._asdict().items()),
        body="\n".join(f"    {line}" for line in lines),
        program="" if promise == DIED else PROGRAM,
    )
    closing = CLOSING_OF_A_DEATH if promise == DIED else CLOSING
    parts = Sources("hybridfuzz.targets.llamacpp").definitions(
        ("families.py", "Family"), ("checked_context.py", "Llama")
    )
    return "\n".join(
        [
            opening.rstrip("\n"),
            "",
            "",
            f"{MACHINERY} It loads a tiny random model, and computes the same tokens alone.",
            *(
                f"{line}  # noqa: E402"
                for line in import_block(parts, *["import subprocess"] * (promise == DIED), "import sys")
            ),
            "",
            *(f"\n{part.text}\n" for part in parts),
            "",
            f"TINY = {family!r}",
            "",
            closing.format(sizes=sizes, died=DIED),
        ]
    )


class _LibraryCalls(Calls):
    """Calls of the C API, by methods of `checked_context.Llama`."""

    def __init__(self, config: Config, planes: int, *, agrees: bool) -> None:
        """`agrees`: llama.cpp cuts a sequence where its snapshots reach."""
        super().__init__(config, planes)
        self.agrees = agrees

    def written(self, event: Event, operations: Sequence[do.Operation]) -> Iterator[str]:
        return map(_line, operations)

    def truncate(self, event: Truncate) -> Sequence[do.Operation]:
        client = self.client
        request = client.parked[event.name]
        if request.saved and request.computed > event.length:
            return ()
        cut = client.cut(event.name, event.length)
        if cut and not (self.agrees and request.computed - event.length <= client.planes):
            return [cut]
        client.truncated(event.name, event.length)
        return [cut] if cut else []

    def step(self, event: Step) -> Iterator[str]:
        client = self.client
        done, fed, _, _ = client.plan(event)
        yield from map(_line, done)
        if fed:
            *checkpoints, _ = client.batch(fed)
            yield from map(_line, checkpoints)
            yield _decode(fed)
            rejected, _, finished = client.advance(fed)
            yield from map(_line, [*rejected, *client.settle(finished)])


def _decode(fed: Sequence[Fed]) -> str:
    tokens = {one.row.sequence: list(one.row.tokens) for one in fed}
    wanted = {one.row.sequence: one.row.wanted for one in fed if one.row.wanted}
    drafts = [f"{one.drafts} of sequence {one.row.sequence}" for one in fed if one.drafts]
    return f"llama.decode({tokens}, wanted={wanted})" + (f"  # drafts: {', '.join(drafts)}" if drafts else "")


def _line(operation: do.Operation) -> str:
    match operation:
        case do.Checkpoint(sequence=sequence):
            return f"llama.checkpoint({sequence})"
        case do.GoBack(sequence=sequence, tokens=tokens):
            return f"llama.go_back({sequence}, {list(tokens)})"
        case do.RollBack(sequence=sequence, length=length):
            return f"llama.roll_back({sequence}, {length})"
        case do.Cut(sequence=sequence, length=length):
            return f"llama.seq_rm({sequence}, {length})"
        case do.Remove(sequence=sequence):
            return f"llama.seq_rm({sequence})"
        case do.Copy(source=source, target=target):
            return f"llama.seq_cp({source}, {target})"
        case do.Keep(sequence=sequence):
            return f"llama.seq_keep({sequence})"
        case do.Clear():
            return "llama.clear()"
        case do.Shift(sequence=sequence, by=by):
            return f"llama.seq_add({sequence}, {by})"
        case do.Save(name=name, sequence=sequence):
            return f"llama.save({name!r}, {sequence})"
        case do.Restore(name=name, sequence=sequence):
            return f"llama.restore({name!r}, {sequence})"
        case do.CopySaved(name=name, parent=parent):
            return f"llama.copy_saved({name!r}, {parent!r})"
        case do.Forget(name=name):
            return f"# the saved state of {name} is dropped"
    raise AssertionError(operation)
