"""The embedded target with exactly one known bug put back in.

A mutant is one small class that overrides one method of one part of the correct target; its docstring gives the
public number and the mechanism. `MUTANTS` maps slugs to target classes.
"""

from __future__ import annotations

from ..target import HybridTarget
from .connector import (
    AdmissionUndercount,
    AttentionOnlyHitReported,
    ConnectorMaxOfPerGroupHits,
    ConnectorPositionalMirror,
    LoadBackAbortPublishesSlotEarly,
    MixedLocalExternalHit,
    MtpScratchBlockStored,
    TransferredStateCleared,
    ZeroingWipesLoadedKv,
)
from .extra_groups import DraftStepsThroughStaleRows, MinAcrossComponents, SplitOnWrongGrid
from .movers import Int8DtypeMismatchStride, LayerSpaceSizedByCount, SideStateNotCarried
from .null_and_rows import FinishedRowNotCleared, NullAsStateSlot
from .partial import DeferredCopyDropped, StalePartialHashResurrection
from .parts import mutant
from .states import AllModePartialBlock, AllSpecTableWidth
from .zeroing import StaleFp32BytesNan, ZeroListNeverDrained

_PARTS: dict[str, type] = {
    "null-as-state-slot": NullAsStateSlot,
    "finished-row-not-cleared": FinishedRowNotCleared,
    "all-mode-partial-block": AllModePartialBlock,
    "all-spec-table-width": AllSpecTableWidth,
    "stale-fp32-bytes-nan": StaleFp32BytesNan,
    "zero-list-never-drained": ZeroListNeverDrained,
    "split-on-wrong-grid": SplitOnWrongGrid,
    "draft-steps-through-stale-rows": DraftStepsThroughStaleRows,
    "min-across-components-attaches-later-state": MinAcrossComponents,
    "connector-positional-mirror": ConnectorPositionalMirror,
    "mtp-scratch-block-stored-as-checkpoint": MtpScratchBlockStored,
    "connector-max-of-per-group-hits": ConnectorMaxOfPerGroupHits,
    "zeroing-wipes-loaded-kv": ZeroingWipesLoadedKv,
    "transferred-state-cleared": TransferredStateCleared,
    "attention-only-hit-reported": AttentionOnlyHitReported,
    "mixed-local-external-hit": MixedLocalExternalHit,
    "admission-undercount": AdmissionUndercount,
    "side-state-not-carried-by-one-mover": SideStateNotCarried,
    "layer-space-sized-by-count": LayerSpaceSizedByCount,
    "int8-dtype-mismatch-stride": Int8DtypeMismatchStride,
    "load-back-abort-publishes-slot-early": LoadBackAbortPublishesSlotEarly,
    "stale-partial-hash-resurrection": StalePartialHashResurrection,
    "deferred-cow-clear-dropped-on-slot-replacement": DeferredCopyDropped,
}

MUTANTS: dict[str, type[HybridTarget]] = {slug: mutant(slug, part) for slug, part in _PARTS.items()}


def titles() -> dict[str, str]:
    """Slug -> the first line of its docstring."""
    return {slug: (part.__doc__ or "").partition("\n")[0].rstrip(".") for slug, part in _PARTS.items()}
