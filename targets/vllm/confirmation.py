"""Failing traces on vLLM with real models: which of their forms and configurations run, and what the models compute.

The tokens that requests go on with are the trace's; the real model is observed by its log-probabilities.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import structs

from ..base.confirmation import ALONE, Rows
from ..base.protocol import TargetError, open_supported
from ..base.trace import Step, Trace
from .gpu.scaling import candidates
from .kit_limits import Case, refusal
from .options import is_v2, options_of

FILLS = ("random", "zero", "nan")
BLOCK = 16
"""Tokens of a block: the least that vLLM's attention kernel takes."""
STEPS_MAX = 300
"""Steps after the trace's last event, until all requests have ended."""


def forms(trace: Trace) -> Iterator[Trace]:
    """The trace in blocks of 16 tokens, in those of its forms that a real model takes; the plainest one if there are
    none, for the reason."""
    plainest, *others = candidates(trace, BLOCK)
    taken = [form for form in (plainest, *others) if not all(_refused(form, options) for options in choices(trace))]
    yield from taken or [plainest]


def _refused(form: Trace, options: Mapping[str, str]) -> str:
    config = configured(form, options).config
    return refusal("real", Case(config, options_of(config), device="cuda"))


def choices(trace: Trace) -> Sequence[Mapping[str, str]]:
    """Both runners, that of the trace first, and all kinds of state layers that the trace leaves open."""
    mixers = [trace.config.options["mixer"]] if "mixer" in trace.config.options else ("mamba2", "gdn")
    runners = ("v2", "v1") if is_v2(trace.config) else ("v1", "v2")
    return [{"mixer": mixer, "runner": runner} for runner in runners for mixer in mixers]


def witness(trace: Trace) -> str:
    """A script of vLLM's public API for the first form that it can express. TargetError if there is none."""
    from .gpu.witness import write_witness

    refused = TargetError("no witness script for this trace")
    for form in islice(forms(trace), 2):
        try:
            return write_witness(form)
        except TargetError as error:
            refused = error
    raise refused


def configured(trace: Trace, options: Mapping[str, str]) -> Trace:
    """The trace with other options, and a pool that is large enough for them."""
    config = structs.replace(trace.config, options={**trace.config.options, **options})
    spare = sum(group.kind == "mamba" for group in config.groups) if options_of(config).mixer == "mamba2" else 0
    blocks = max(config.num_blocks, config.smallest_pool() + spare)
    return structs.replace(trace, config=structs.replace(config, num_blocks=blocks))


def computed(factory: Any, trace: Trace) -> Rows:
    """What the real model computes for each token that is its request's own. An exception of the engine ends it."""
    target: Any = open_supported(factory, trace.config)
    rows: Rows = {}
    try:
        for index, event in enumerate([*trace.events, *[Step()] * STEPS_MAX]):
            if index >= len(trace.events) and not target.lane.has_work():
                break
            for record in target.apply(event).records:
                for row in record.rows if hasattr(record, "tolerance") else ():
                    rows.setdefault((row.request, row.position), {})[ALONE] = row.expected
            for one in target.lane.computed:
                for fill, logprobs in zip(target.fills, (one.logprobs, *one.others), strict=True):
                    for place, values in zip(one.rows, logprobs, strict=True):
                        rows.setdefault(place, {})[fill] = values
    except Exception as error:  # the engine's: what was computed until then is shown
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    finally:
        target.close()
    return rows
