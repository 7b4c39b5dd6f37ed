"""What the attributes of the built-in engine mean, for an exploration that compares its states."""

from __future__ import annotations

from ..base.inspection import Mark, Marks

IDS = (
    "BlockPool.free", "BlockPool.labels", "BlockPool.index", "BlockPool.published_this_step",
    "AttentionGroup.tables", "CacheManager.to_zero", "PartialHits.pins", "InputBatch.tables", "Drafter.tables",
    "Connector.mirror", "StateIndices.source", "StateIndices.conv", "StateIndices.outputs",
    "Plan.zero", "ScheduledRow.appended", "ScheduledRow.pins", "ScheduledRow.table",
    "Load.block", "PageCopy.source", "PageCopy.destination",
)  # fmt: skip
INDEXED = ("BlockPool.references",)
CONSTANTS = (
    "HybridTarget.config", "HybridTarget.layout", "HybridTarget.slots", "HybridTarget._handlers",
    "AttentionGroup.layout", "AttentionGroup.spec", "AttentionGroup.pool", "AttentionGroup.index",
    "AttentionGroup.block_size", "AttentionGroup.mode", "AttentionGroup.speculative",
    "CacheManager.layout", "CacheManager.pool", "CacheManager.groups", "CacheManager.partial",
    "PartialHits.layout", "PartialHits.pool", "PartialHits.groups", "PartialHits.unit",
    "Scheduler.config", "Scheduler.cache", "Scheduler.connector", "Scheduler.sessions", "Scheduler.chunk_grid",
    "Sessions.scheduler", "Sessions.cache",
    "InputBatch.layout", "InputBatch.widths", "InputBatch.max_rows", "InputBatch.accepted", "AcceptedCounts.enabled",
    "Drafter.layout", "Drafter.kernels", "Drafter.groups",
    "TagMemory._num_blocks", "TagMemory._garbage", "TagMemory._no_window", "TagMemory._layers",
    "TagKernels.memory", "TagKernels.window_length",
    "StateSlots.layout", "StateSlots.batch", "StateSlots.memory", "StateSlots.window_length", "StateSlots.groups",
    "ModelRunner.layout", "ModelRunner.config", "ModelRunner.batch", "ModelRunner.memory", "ModelRunner.kernels",
    "ModelRunner.states", "ModelRunner.drafter", "ModelRunner.connector", "ModelRunner.attention",
    "Connector.layout", "Connector.store", "Connector.saves", "ExternalStore.layout", "ExternalStore.memory",
)  # fmt: skip
MOMENTARY = (
    "HybridTarget.step", "Plan.step",  # numbers, only reported
    "HybridTarget.refused",  # set anew by each event
    "TagKernels.log",  # the accesses of one forward, handed over at its end
    "TagMemory._kind", "TagMemory._temporal", "TagMemory._conv", "TagMemory._slots",  # `Inspection.pages`
)  # fmt: skip
_MARKED: dict[Mark, tuple[str, ...]] = {
    "ids": IDS,
    "ids second": ("ScheduledRow.fresh",),
    "ids last": ("StateIndices.boundaries",),
    "indexed": INDEXED,
    "left out": (*CONSTANTS, *MOMENTARY),
}
MARKS = Marks(_MARKED)
AT_REST = Marks({**_MARKED, "left out": (*CONSTANTS, *MOMENTARY, "Request.epoch")})
"""Without steps in flight: only their results are compared with a request's epoch."""
