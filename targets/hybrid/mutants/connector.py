"""Broken connectors: finding, loading and saving content outside the pool."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.prefix_cache import Key
from ...base.observe import Record
from ..layout import NULL_BLOCK
from ..offload.connector import Connector
from ..plan import ScheduledRow


class ConnectorPositionalMirror(Connector):
    """The connector's mirror of the block tables is append-only.

    vLLM #51358, LMCache #4984: tables of states are not append-only. Columns that became null or whose scratch block
    moved keep their old block in the mirror, and that block is stored as the state of their boundary.
    """

    def update_mirror(self, row: ScheduledRow) -> None:
        if row.fresh:
            self.mirror[row.name] = row.fresh[1]
        elif self.saves:
            mirror = self.mirror[row.name]
            self.mirror[row.name] = tuple(
                (*old, *new) for old, new in zip(mirror, row.appended or ((),) * len(mirror), strict=True)
            )


class MtpScratchBlockStored(Connector):
    """The mirror follows released columns, but not scratch blocks that move to the end of the table.

    LMCache #5004: a scratch block that no kernel wrote as that boundary's state is stored as a checkpoint.
    """

    def update_mirror(self, row: ScheduledRow) -> None:
        before = self.mirror.get(row.name, row.table)
        super().update_mirror(row)
        if self.saves and not row.fresh:
            self.mirror[row.name] = tuple(
                tuple(
                    old if block == NULL_BLOCK and old in now else block
                    for old, block in zip((*then, *[NULL_BLOCK] * len(now)), now, strict=False)
                )
                for then, now in zip(before, row.table, strict=True)
            )


class TransferredStateCleared(Connector):
    """A slot filled by a transfer is still marked "clear before first use".

    SGLang #32995: the state that had arrived was zeroed at the first extend.
    """

    def load(self, step: int, row: ScheduledRow, records: list[Record]) -> None:
        super().load(step, row, records)
        for one in row.loads:
            if self.layout.groups[one.group].kind == "mamba":
                self.store.memory.zero(one.block)


class AttentionOnlyHitReported(Connector):
    """An external hit is as long as the attention content that the store has.

    LMCache #2845, #2863, #2879: the number of computed tokens advances for all layers, but no recurrent state is
    loaded.
    """

    def holds(self, group: int, tags: Sequence[int], local: int, total: int) -> bool:
        return self.layout.groups[group].kind == "mamba" or super().holds(group, tags, local, total)


class MixedLocalExternalHit(Connector):
    """The state comes from the deepest source that has one, not from the depth of the attention content.

    LMCache #4247: a local prefix was extended by an external tail, and the states resumed from another depth.
    """

    def state_key(self, group: int, tags: Sequence[int], total: int) -> Key:
        size = self.layout.groups[group].block_size
        keys = [Key(group, depth, tags[depth]) for depth in range(size, len(tags), size)]
        return max((key for key in keys if key in self.store.pages), default=super().state_key(group, tags, total))


PARTS: dict[str, type] = {
    "connector-positional-mirror": ConnectorPositionalMirror,
    "mtp-scratch-block-stored-as-checkpoint": MtpScratchBlockStored,
    "transferred-state-cleared": TransferredStateCleared,
    "attention-only-hit-reported": AttentionOnlyHitReported,
    "mixed-local-external-hit": MixedLocalExternalHit,
}
