"""What a scheduler answers to the calls of a test: which answers are compared, and what is told of them.

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
"""Answers of `schedule` that say which tokens a step computes."""
BLOCKS = [
    "{one.req_id: one.block_ids for one in STEP.scheduled_new_reqs}",
    "dict(zip(STEP.scheduled_cached_reqs.req_ids, STEP.scheduled_cached_reqs.new_block_ids))",
    "STEP.kv_cache_block_copies",
    "STEP.new_block_ids_to_zero",
]
"""Those that say in which blocks."""
RECEIVED = [
    "[(one.request_id, one.new_token_ids, one.finish_reason) for each in outputs.values() for one in each.outputs]"
]
"""What clients receive."""
INSIDE = [
    "sorted(scheduler.requests)",
    "[one.request_id for one in scheduler.running]",
    "{one.request_id: one.num_computed_tokens for one in scheduler.requests.values()}",
    "scheduler.kv_cache_manager.block_pool.get_num_free_blocks()",
    "[one.block_id for one in scheduler.kv_cache_manager.block_pool.blocks if one.block_hash]",
]
"""What no caller is told."""
EXPRESSIONS: Mapping[str, Sequence[Sequence[str]]] = {
    SCHEDULE: (TOKENS, BLOCKS, INSIDE),
    UPDATE: (RECEIVED, (), INSIDE),
    OTHER: ((), (), INSIDE),
}
"""Kind of a call -> answers, those first that matter most."""
PRINTED = "scheduler test: "
"""Begins the line that has what was found out."""


def answers(kind: str, step: str, names: dict[str, Any], imports: set[tuple[str, str]]) -> Iterator[list[Any]]:
    """Yield [rank, expression, value as source] after a call; nothing for what a release does not have. `names` are
    those that an expression may use."""
    for rank, expressions in enumerate(EXPRESSIONS[kind]):
        for expression in expressions:
            told = expression.replace(STEP, step)
            try:
                yield [rank, told, source(eval(told, names), imports)]
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
