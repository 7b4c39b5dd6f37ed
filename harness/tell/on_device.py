"""Runs failing traces on real models, and reports what a user would see: greedy tokens in the batch, and alone.

The process of `hybridfuzz confirm`, in the engine's environment: reads `Wanted` from standard input and writes one
`Shown` a line to the file that its argument names. `paragraphs` is the section of REPORT.md.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...targets.base.confirmation import ALONE, Rows, Shown, Wanted
from ...targets.base.protocol import TargetError
from ...targets.base.registry import confirmation, load_factory
from ...targets.base.trace import Trace, TraceError, check_config
from ..judge.run import run_trace
from ..quoting import markdown_code, markdown_text

TOKENS_MAX = 16
"""Greedy tokens shown of one request."""


def greedy(values: Any) -> int:
    """The most probable token; -1 for none, or among NaN."""
    return -1 if values is None or np.isnan(values).any() else int(np.argmax(values))


def distance(row: Mapping[str, Any]) -> float:
    """The largest difference of any fill from the tokens alone, 0 where that is not known; NaN counts as infinite."""
    alone = row.get(ALONE)
    if alone is None:
        return 0.0
    found = [float(np.abs(values - alone).max()) for fill, values in row.items() if fill != ALONE]
    return max((math.inf if math.isnan(one) else one for one in found), default=0.0)


def affected(rows: Rows, named: str) -> str:
    """The request that `named` if its greedy tokens differ, else the first whose tokens do, else `named`."""
    differing = [
        request
        for (request, _), row in rows.items()
        if len({greedy(values) for values in row.values() if values is not None}) > 1
    ]
    return named if named in differing or not differing else differing[0]


def show(factory: Any, engine: Any, number: int, trace: Trace, setup: str) -> Shown:
    """Judge one trace, then run it to its end for the tokens."""
    violation = run_trace(factory, trace).violation
    rows = engine.computed(factory, trace)
    request = affected(rows, violation.request if violation else "")
    own = {position: row for (name, position), row in sorted(rows.items()) if name == request}
    largest = max(map(distance, rows.values()), default=0.0)
    return Shown(
        number,
        setup,
        violation.signature if violation else "",
        violation.message if violation else "",
        request,
        min(own, default=-1) + 1,
        [greedy(row.get(ALONE)) for row in own.values()],
        {fill: [greedy(row.get(fill)) for row in own.values()] for fill in engine.FILLS},
        largest if math.isfinite(largest) else -1.0,
    )


def main(arguments: Sequence[str]) -> None:
    """Serve one `Wanted`."""
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted)
    engine, factory = confirmation(wanted.spec), load_factory(wanted.spec)
    if hasattr(factory, "fills"):
        factory.fills = engine.FILLS
    with Path(arguments[0]).open("wb") as results:
        for (number, trace), options in product(enumerate(wanted.traces), wanted.choices):
            one = engine.configured(trace, options)
            setup = " ".join(options.values())
            try:
                check_config(one.config)
                shown = show(factory, engine, number, one, setup)
            except (TargetError, TraceError) as error:
                shown = Shown(number, setup, refused=str(error))
            results.write(msgspec.json.encode(shown) + b"\n")
            results.flush()
            if wanted.until_met and shown.signature:
                break
    os._exit(0)  # an engine's teardown takes longer than a trace


def paragraphs(versions: str, stock: Sequence[Shown], fixed: Sequence[Shown], patches: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a section: what a real model shows, without and with the patches."""
    yield "## On a real model\n"
    yield f"{markdown_text(versions)}. A tiny model with random weights; tokens are its greedy choices.\n"
    for one in stock:
        if one.refused or not one.signature:
            continue
        yield f"**{markdown_text(one.setup)}**: {markdown_text(one.message)}\n"
        if one.request:
            yield f"* {markdown_text(one.request)} alone, from token {one.start}: {_tokens(one.alone)}"
            yield from (f"* in the batch, unused memory {fill}: {_tokens(own)}" for fill, own in one.batch.items())
            yield ""
    quiet = [one.setup for one in stock if not one.refused and not one.signature]
    if quiet:
        yield f"Passes: {markdown_text(', '.join(quiet))}.\n"
    if patches:
        failing = [f"{one.setup} ({one.signature})" for one in fixed if one.signature]
        verdict = f"still fails: {', '.join(failing)}" if failing else "every configuration passes"
        yield f"With {', '.join(map(markdown_code, patches))}: {markdown_text(verdict)}.\n"


def _tokens(tokens: Sequence[int]) -> str:
    shown = " ".join("?" if token < 0 else str(token) for token in tokens[:TOKENS_MAX])
    return markdown_code(f"{shown} ..." if len(tokens) > TOKENS_MAX else shown or "none")


if __name__ == "__main__":
    main(sys.argv[1:])
