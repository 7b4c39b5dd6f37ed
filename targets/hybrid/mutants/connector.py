"""KV connectors: what an external hit promises, what arrives, when, and what is stored from which block."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.prefix_cache import Key
from ...base.observe import Record
from ..cache import Allocation, CacheManager, Hit
from ..connector import Connector
from ..groups import AttentionGroup
from ..plan import Load, Plan, Request, ScheduledRow
from ..pool import NULL_BLOCK
from ..runner import Runner
from ..scheduler import Scheduler


class ConnectorPositionalMirror(Connector):
    """The connector's mirror of the block tables is append-only.

    vLLM #51358, LMCache #4984: tables of states are not; columns that became null or whose scratch block moved keep
    their old block in the mirror, and that block is stored as the state of their boundary.
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
    """The mirror follows columns that are given back, but not scratch blocks that move to the end of the table.

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


class ConnectorMaxOfPerGroupHits(CacheManager):
    """With a connector the local hit is the longest one that any group has.

    vLLM #44243, #46453: attention blocks survive where the state was evicted, or the other way round; computing then
    starts beyond what one of the groups holds.
    """

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit, unit = super().find_hit(tags, num_tokens), self.layout.hit_unit
        limit = (num_tokens - 1) // unit * unit
        attention = [group for group in self.groups if group.kind == "attention"]
        length = min((group.find_hit(tags, limit) // unit * unit for group in attention), default=0)
        if not self.layout.prefix_caching or hit.defer or length <= hit.length:
            return hit
        blocks = tuple(
            group.hit_blocks(tags, group.find_hit(tags, length))
            if group.kind == "mamba"
            else group.hit_blocks(tags, length)
            for group in self.groups
        )
        return Hit(length, tuple((*columns, *[NULL_BLOCK] * (length // group.block_size - len(columns)))
                                 for group, columns in zip(self.groups, blocks, strict=True)))  # fmt: skip


class ZeroingWipesLoadedKv(Runner):
    """Zeroing new attention blocks queues behind the running forward, loads into them do not.

    vLLM #42182, #48481: what the connector had written was zeroed afterwards; states, which are never zeroed, were
    kept, so that the output was half coherent.
    """

    def bring_in(self, plan: Plan, records: list[Record]) -> None:
        attention = {index for index, group in enumerate(self.layout.groups) if group.kind == "attention"}
        for row in plan.rows.values():
            self.connector.load(plan.step, row, records)
            plan.zero += [load.block for load in row.loads if load.group in attention]
        self.zero_blocks(plan, records)


class TransferredStateCleared(Connector):
    """A slot that a transfer filled still carries the mark "clear before first use".

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


class AdmissionUndercount(CacheManager):
    """The admission check forgets the block into which the external state is loaded.

    vllm-ascend #11129, review of vLLM #46384: the estimate for state groups was one running block and scratch.
    """

    def blocks_to_load(self, group: AttentionGroup, table: Sequence[int], hit: Hit) -> int:
        return 0 if group.kind == "mamba" else super().blocks_to_load(group, table, hit)


class LoadBackAbortPublishesSlotEarly(Scheduler):
    """A request is given its slots before the load into them is certain, and keeps them when it breaks off.

    SGLang #30986: the destination was published on the request before the copy from the host was committed; after an
    abort it went on from a slot with the content of a former tenant.
    """

    def commit_loads(self, request: Request, hit: Hit, allocation: Allocation) -> list[Load] | None:
        return super().commit_loads(request, hit, allocation) if self.connector.commit(request.name) else []


PARTS: dict[str, type] = {
    "connector-positional-mirror": ConnectorPositionalMirror,
    "mtp-scratch-block-stored-as-checkpoint": MtpScratchBlockStored,
    "connector-max-of-per-group-hits": ConnectorMaxOfPerGroupHits,
    "zeroing-wipes-loaded-kv": ZeroingWipesLoadedKv,
    "transferred-state-cleared": TransferredStateCleared,
    "attention-only-hit-reported": AttentionOnlyHitReported,
    "mixed-local-external-hit": MixedLocalExternalHit,
    "admission-undercount": AdmissionUndercount,
    "load-back-abort-publishes-slot-early": LoadBackAbortPublishesSlotEarly,
}
