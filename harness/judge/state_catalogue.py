"""The catalogue of reached states: situations that a campaign must have reached before "no violation" means anything.

Each state has a name, and the features that a target needs for the state to be required of it. Counting happens in
lockstep (`reached_states.py`); a required state with count 0 makes a campaign vacuous.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from ...targets.base.protocol import Capabilities, Usual
from ...targets.base.trace import features_of
from ..draw.near_stock import may_be_near
from ..draw.overrides import converted
from .oracles import applicable

REQUIRES: dict[str, str] = {
    # what the target declares
    "observed: pool": "observes:pool",
    "observed: labels": "observes:labels",
    "observed: tables": "observes:tables",
    "observed: accesses": "observes:accesses",
    "observed: content": "observes:content",
    "observed: caches": "observes:caches",
    "observed: device_order": "observes:device_order",
    "observed: estimates": "observes:estimates",
    "observed: leftovers": "observes:leftovers",
    "observed: numeric": "observes:numeric",
    "observed: real_model": "observes:real_model",
    "observed: side_by_side": "observes:side_by_side",
    # configurations
    "step within two settings of the stock server": "near-stock",
    # prompts and their chunks
    "chunked prefill": "chunked-prefill",
    "first chunk of one token": "chunked-prefill",
    "prompt continued with a one-token chunk": "chunked-prefill",
    "chunk shorter than the convolution window": "chunked-prefill",
    "chunk ends on a state boundary": "prompts",
    "chunk ends one token before a state boundary": "prompts",
    "chunk ends one token after a state boundary": "prompts",
    "chunk that crosses two state boundaries": "prompts",
    # batches
    "batch of three or more": "",
    "two admitted in one step": "",
    "prompts and decodes in one step": "block-tables",
    "request moved to another row": "moving-rows",
    "nothing could be scheduled": "continued pool",
    "padding rows": "padding",
    "padding over a vacated row": "padding",
    "dummy run after requests": "dummy_run",
    # clients of a server
    "request sent before the answer to another one": "overlaps",
    "request cancelled before the answers to others": "overlaps abort",
    # preemption and other ends
    "preempted": "preemption",
    "preempted with a partial block": "preemption",
    "preempted during prefill": "chunked-prefill preemption block-tables",
    "preempted twice": "preemption",
    "aborted while running": "abort",
    # ends
    "ended at its most tokens": "",
    "ended by a stop token": "stop-tokens",
    "stop token on the last place of a block": "stop-tokens",
    "stop token on the first place of a block": "stop-tokens",
    "stop token among accepted drafts": "stop-tokens speculation",
    "stop token with a step in flight": "stop-tokens async",
    "ended by a stop string": "stop-strings",
    "ended by a stop string of several tokens": "stop-strings",
    "stop string of several tokens among accepted drafts": "stop-strings speculation",
    "stop token held back": "min-tokens",
    "stop token held back with a step in flight": "min-tokens async",
    "stop token held back in a step with drafts": "min-tokens speculation",
    "ended by a stop token behind its least tokens": "min-tokens",
    # structured output
    "structured and free answers in one step": "structured-output",
    "request computed after it waited for its grammar": "structured-output",
    "structured output with a step in flight": "structured-output async",
    "preempted with structured output": "structured-output preemption",
    "drafts cut by a grammar": "structured-output speculation cut-drafts",
    "model's first choice forbidden by a grammar": "structured-output",
    "draft forbidden by a grammar is the model's first choice": "structured-output speculation async",
    "draft accepted is what a grammar leaves": "structured-output speculation",
    "later turn with structured output": "structured-output resume",
    "reasoning ended before structured output": "reasoning",
    "reasoning ended by a draft with drafts behind it": "reasoning speculation",
    "preempted during its reasoning": "reasoning preemption",
    "preempted between reasoning and its answer": "reasoning preemption",
    "request ended with an error by its grammar": "failing-grammars",
    "error by a grammar while others run": "failing-grammars",
    # several samples of a prompt
    "samples of one prompt admitted in one step": "samples",
    "sample of a prompt ended before another": "samples",
    "samples of one prompt aborted together": "samples abort",
    "hit on blocks of another sample of the prompt": "samples caching",
    # sessions
    "session parked": "resume",
    "turn ended by a stop token": "stop-tokens resume",
    "session parked between drafts": "resume speculation",
    "turn ended by its client": "park",
    "turn resumed with kept caches": "resume",
    "resumed turn waits while holding its caches": "resume",
    "caches of a parked session evicted": "resume block-tables",
    "session closed while parked": "resume",
    "turn aborted in a session that goes on": "aborted-turns resume abort",
    "turn behind an aborted one": "aborted-turns resume abort",
    "session forked": "fork",
    "session truncated": "truncate",
    "truncation refused": "truncate block-tables",
    "turn resumed from a checkpoint": "truncate block-tables",
    # batches of plain caches
    "rows of the batch selected": "select",
    "rows of the batch exchanged": "reorder",
    "row copied over another row": "reorder",
    "rows of the batch repeated": "repeat",
    "batch cropped or crop refused": "crop",
    "batch reset": "reset",
    # the prefix cache
    "prefix hit": "caching",
    "resumed from a hit": "preemption caching prompts",
    "resumed without a hit": "preemption caching",
    "hit on content written by decoding": "caching long-answers",
    "attention blocks cached past the end of the hit": "caching",
    "state cached past the end of the hit": "caching block-tables",
    "hit behind an image": "images caching",
    "encoder cache reset beside images": "images reset_encoder_cache",
    "hit by keys that name the token behind their block": "lookahead-hashes caching speculation",
    "cached block passed over for the token behind it": "lookahead-hashes caching speculation",
    "cached prefix not read for the log-probabilities of a prompt": "prompt-logprobs caching",
    "hit on what a request with prompt log-probabilities published": "prompt-logprobs caching",
    "prefix hit before the log-probabilities that a client wants": "logprobs-from caching",
    "preempted before its prompt's log-probabilities were known": "prompt-logprobs preemption block-tables",
    "block shared by two requests": "caching",
    "duplicate key": "caching block-tables",
    "cached block evicted": "caching",
    "cached block evicted by an event": "evict caching",
    "evicted content computed again": "caching",
    "generation paused while requests run": "pause preemption",
    "generation paused with a step in flight": "pause preemption async",
    "storage switched behind cached prefixes": "storage switch_storage caching",
    "prefix cache reset": "reset_prefix_cache caching",
    "prefix cache reset while requests run": "reset_prefix_cache preemption caching block-tables",
    "prefix cache reset during a pause": "reset_prefix_cache pause preemption caching",
    # blocks and states
    "blocks zeroed": "zeroing pool",
    "block reused by another kind of group": "block-tables",
    "block reused by another group of its kind": "twins pool",
    "state copied to the request's current column": "align",
    "state copied back to its boundary block": "speculation align",
    "state copied out of the cache": "slots prompts",
    "state copied into the cache": "copied-states caching",
    "state copied into the cache in place of another one": "copied-states caching",
    "snapshot written beside the working state": "snapshots caching",
    "blocks to the left of a sliding window freed": "sliding-window",
    "hit behind a sliding window": "sliding-window caching",
    "blocks of an earlier attention chunk freed": "attention-chunks",
    "hit behind an attention chunk": "attention-chunks caching",
    # hits inside a block
    "hit inside a block": "partial-hits align",
    "state kept in the cache after its request advanced": "partial-hits align",
    # content outside the pool
    "loaded from outside the pool": "external_load caching",
    "hit extended by a load": "external_load caching",
    "load joined the step of its request": "sync-loads caching",
    "stored outside the pool": "stores caching",
    "content outside the pool evicted": "evicts-stored caching",
    "cached content kept outside the pool alone": "loads-back caching",
    "content loaded back into the cache": "loads-back caching",
    "content kept outside the pool not loaded for a request": "loads-back caching",
    "content read back from a storage": "storage stores caching",
    "request computed after it waited for a load": "async-loads caching",
    "request computed after its load broke off": "chosen-loads caching",
    "load tried again after it broke off": "chosen-loads caching",
    "aborted while a load was under way": "async-loads abort caching",
    "load overtook a step in flight": "chosen-loads async caching",
    "request ended with an error by its load": "failing-loads caching",
    "blocks held for a transfer after the end of their request": "held-for-transfer",
    "content sent to another engine": "sends",
    "answer held back until its request was sent": "sends",
    "aborted while its answer was held back": "sends abort",
    "cached content moved to another tier": "move_tier caching",
    "memory given back and taken again": "sleep",
    # speculation
    "convolution window shifted by accepted drafts": "speculation align",
    "all drafts accepted": "speculation",
    "draft rejected": "speculation",
    "tree of drafts verified": "speculation draft-trees",
    "draft accepted that is not the first behind its token": "speculation draft-trees",
    "draft accepted behind one that is not the first": "speculation draft-trees",
    "boundary crossed by a draft that is not in the place of a chain's": "speculation draft-trees",
    "boundary crossed in a step with a rejection": "speculation",
    "boundary crossed in a step without a rejection": "speculation",
    "ended in the middle of accepted drafts": "speculation drafts-past-end",
    "stop token accepted behind the longest answer": "speculation stop-tokens drafts-past-length",
    "prompt with as many tokens as a speculative decode": "speculation prompts",
    "prompts and drafts in one step": "speculation block-tables",
    "different numbers of drafts in one step": "drafts",
    "preempted between drafts": "preemption speculation",
    "proposals written by the drafter": "draft-group speculation",
    "dummy run with a drafter present": "draft-group dummy_run speculation",
    # steps in flight
    "planned ahead of execution": "async",
    "hit on content still in flight": "async caching",
    "preempted with a step in flight": "preemption async",
    "aborted with a step in flight": "async abort",
    "aborted right after it got a token, with a step in flight": "async abort long-answers",
}
"""State -> features (space separated) without which it cannot occur."""
ORACLES_REQUIRE = {
    "M2": "caching",
    "M4": "dead-rows",
    "M6": "caching",
    "S1": "kept",
    "S2": "continued",
    "S5": "caching prompts",
}
"""Oracle -> features without which it has nothing to check."""


def features(capabilities: Capabilities, overrides: Mapping[str, object]) -> set[str]:
    """Return the features of `REQUIRES` that a target has and that overrides do not switch off."""
    fixed = converted(overrides)
    modes = {str(fixed["mamba_cache_mode"])} if "mamba_cache_mode" in fixed else set(capabilities.modes)
    if not fixed.get("enable_prefix_caching", True):
        modes = {"none"}
    options = {name: str(value) for name, value in overrides.items() if name in capabilities.options}
    has = set(capabilities.events) | modes
    has |= capabilities.features | set(get_args(Usual)) - capabilities.lacks
    has |= {f"observes:{word}" for word in capabilities.observes}
    if "groups" not in overrides:
        has |= capabilities.extra_groups
    if options.keys() & capabilities.documents.keys():
        has -= {"images", "adapters"} - features_of(capabilities.documents_with(options))
    off = capabilities.switched_off(options)
    has -= off
    if has & {"align", "all", "slots"}:
        has.add("caching")
    if has & {"padding", "dummy_run"}:
        has.add("dead-rows")
    if has & {"caching", "stores"}:
        has.add("kept")
    if has & {"caching", "external_load", "resume"}:
        has.add("continued")
    if may_be_near(overrides, capabilities):
        has.add("near-stock")
    if capabilities.has_pool:
        has |= {"pool", "moving-rows"}
    if "select" in has:
        has.add("moving-rows")
    if fixed.get("num_speculative_tokens", capabilities.max_speculative_tokens):
        has.add("speculation")
        if capabilities.variable_drafts:
            has.add("drafts")
    has -= {"speculation"} & off
    if not fixed.get("eagle_block_drop", True):
        has.discard("lookahead-hashes")
    if fixed.get("async_depth", capabilities.max_async_depth):
        has.add("async")
    if "groups" not in overrides and any(count > 1 for counts in capabilities.group_counts for count in counts):
        has.add("twins")
    return has


def required_states(capabilities: Capabilities, overrides: Mapping[str, object] | None = None) -> list[str]:
    """Return the states that a campaign on a target must reach, as far as `overrides` allow them."""
    has = features(capabilities, overrides or {})
    return [state for state, needs in REQUIRES.items() if set(needs.split()) <= has]


def required_oracles(capabilities: Capabilities, overrides: Mapping[str, object] | None = None) -> list[str]:
    """Return the oracles that a campaign must exercise: they can run on what the target observes, and have something
    to check."""
    has = features(capabilities, overrides or {})
    return [oracle for oracle in applicable(capabilities) if set(ORACLES_REQUIRE.get(oracle, "").split()) <= has]


def missing_states(
    capabilities: Capabilities, reached: Mapping[str, int], overrides: Mapping[str, object] | None = None
) -> list[str]:
    """Return the required states that were not reached."""
    return [state for state in required_states(capabilities, overrides) if not reached.get(state)]
