"""What a scheduler answers to the calls of a test: which answers are compared, and how they are told.

Runs in the engine's process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .source import NoSource, source

STEP = "STEP"
"""Stands for the name of a step in an expression."""
SCHEDULE, UPDATE, OTHER = "schedule", "update", "other"
"""Kinds of calls."""
TOKENS = [
    "STEP.num_scheduled_tokens",
    "STEP.scheduled_spec_decode_tokens",
    "STEP.preempted_req_ids",
    "{one.req_id: one.num_computed_tokens for one in STEP.scheduled_new_reqs}",
    "dict(zip(STEP.scheduled_cached_reqs.req_ids, STEP.scheduled_cached_reqs.num_computed_tokens))",
    "dict(zip(STEP.scheduled_cached_reqs.req_ids, STEP.scheduled_cached_reqs.num_output_tokens))",
    "STEP.scheduled_cached_reqs.resumed_req_ids",
    "STEP.finished_req_ids",
    "STEP.scheduled_encoder_inputs",
    "STEP.free_encoder_mm_hashes",
]
"""Answers of `schedule`: which tokens a step computes, and from which on. Blocks are not compared: a correct
fix may allocate others than the patch does."""
RECEIVED = [
    "[(one.request_id, one.new_token_ids, one.finish_reason) for each in outputs.values() for one in each.outputs]"
]
"""What clients receive."""
WAITING = "sorted(scheduler.requests)"
"""Read to see whether requests wait while nothing is scheduled."""
EXPRESSIONS: Mapping[str, Sequence[str]] = {SCHEDULE: [*TOKENS, WAITING], UPDATE: RECEIVED, OTHER: ()}
"""Kind of a call -> answers, those first that say most."""
SIZES = ("prefix_cache_retention_interval", "hash_block_size", "cache_hit_alignment_tokens")
"""Fields of a `KVCacheConfig` that vLLM resolves."""
PRINTED = "scheduler test: "
"""Begins the line that has what was found out."""


def answers(kind: str, step: str, names: dict[str, Any], imports: set[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield [expression, value as source] after a call; nothing for what a release does not have. `names` are those
    that an expression may use."""
    for expression in EXPRESSIONS[kind]:
        told = expression.replace(STEP, step)
        try:
            yield [told, source(eval(told, names), imports)]
        except (AttributeError, NoSource):
            continue


def repeat(calls: Sequence[Sequence[Any]], names: dict[str, Any]) -> None:
    """Make the calls of a test again, and tell the answers to each of them. `names`: those of the test's module, with
    its `scheduler`."""
    found, raised = [], ""
    for kind, step, lines, _ in calls:
        try:
            exec("\n".join(lines), names)
        except Exception as error:
            raised = type(error).__name__
            break
        found.append(list(answers(kind, step, names, set())))
    tell({"answers": found, "raised": raised})


def tell(found: Any) -> None:
    """Print what was found out, for the process that waits for it."""
    sys.stdout.write(f"{PRINTED}{json.dumps(found)}\n")
    sys.stdout.flush()
