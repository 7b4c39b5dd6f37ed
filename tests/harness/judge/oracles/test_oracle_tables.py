"""M3, M4 and M5 fire: the block ids that the device sees, dead rows, who may write."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from support import ATTENTION, CLEAN, Case, Tampered, arrive, broken, check_case, make_trace, steps

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import (
    Copied,
    Forward,
    ForwardRow,
    OutOfRange,
    Planned,
    Record,
    SlotWrite,
    StateRead,
    StateWrite,
)
from hybridfuzz.targets.base.trace import Abort, DummyRun, Step
from hybridfuzz.targets.hybrid.layout import NULL_BLOCK
from hybridfuzz.targets.hybrid.worker.input_batch import NULL_INDICES, InputBatch
from hybridfuzz.targets.hybrid.worker.model_runner import ModelRunner
from hybridfuzz.targets.hybrid.worker.state_slots import StateSlots
from hybridfuzz.targets.hybrid.worker.tag_kernels import TagKernels

ONE = make_trace(arrive("r0", 20, new=3), *steps(6))
TWO = make_trace(arrive("r0", 20, new=6), arrive("r1", ("e", 20), new=6), *steps(10))
AGAIN = (arrive("r0", 20, new=3), *steps(6), arrive("r1", 18, new=3), *steps(6))
RESEND = make_trace(*AGAIN)
RESEND_ALL = make_trace(*AGAIN, mamba_cache_mode="all")
LONG = make_trace(arrive("r0", 40, new=9), *steps(12))
GRAPHS = {"graph_sizes": (4,), "max_num_seqs": 4}
PADDED = make_trace(arrive("r0", 9, new=5), *steps(6), **GRAPHS)
MOVING_ROWS = make_trace(
    arrive("r0", 9, new=3), arrive("r1", ("e", 9), new=12), *steps(3), Abort("r0"), *steps(4), **GRAPHS
)  # fmt: skip
IDLE = make_trace(arrive("r0", 9), *steps(4), DummyRun(2))
ATTENTION_ONLY = {"groups": (ATTENTION,)}
SHARED_IN_ONE_STEP = make_trace(arrive("r0", 12, new=3), arrive("r1", 12, new=3), *steps(6), **ATTENTION_ONLY)
SHARED_LATER = make_trace(arrive("r0", 12, new=9), *steps(2), arrive("r1", 12, new=3), *steps(6), **ATTENTION_ONLY)


class ShiftsMirror(InputBatch):
    """The worker's table gets new columns one place too far to the right."""

    def append(self, name: str, columns: Sequence[Sequence[int]]) -> None:
        row = self.names.index(name)
        fresh = [lengths[row] == 0 for lengths in self.lengths]
        for lengths, blocks, new in zip(self.lengths, columns, fresh, strict=False):
            lengths[row] += bool(blocks) and not new
        super().append(name, columns)


class ForgetsToMoveTable(InputBatch):
    """Condense moves a row's name but leaves its table behind."""

    def move_row(self, source: int, destination: int) -> None:
        self.names[destination] = self.names[source]


class StaleBuffer(InputBatch):
    """vLLM #41841: a captured graph reads the indices of the step before."""

    def capture(self, group: int, indices: Any, prefilling: Any) -> Any:
        before = self.captured[group][: len(indices)]
        super().capture(group, indices, prefilling)
        return [old if old is not NULL_INDICES else new for old, new in zip(before, indices, strict=True)]


class WritesBehindItsColumn(TagKernels):
    """Keys and values of a page's last token land in the next page."""

    def write_slots(self, group: int, layer: int, inputs: Any, blocks: Any, size: int) -> Any:
        tags = super().write_slots(group, layer, inputs, blocks, size)
        last = self.log[-1]
        if isinstance(last, SlotWrite) and len(set(last.blocks)) > 1:
            self.log[-1] = msgspec.structs.replace(last, blocks=[last.blocks[-1]] * len(last.blocks))
        return tags


class CopiesFromElsewhere(StateSlots):
    """The running state is copied from another request's block."""

    def copy_state(self, step: int, group: int, *arguments: Any) -> None:
        records: list[Record] = arguments[-1]
        before = len(records)
        super().copy_state(step, group, *arguments)
        for index in range(before, len(records)):
            records[index] = msgspec.structs.replace(records[index], source=30)


class PadsWithLiveRow(ModelRunner):
    """SGLang #13151: padding rows repeat a live row's indices."""

    def live_mask(self, live: int, padded: int) -> list[bool]:
        return [True] * padded

    def dead_indices(self, group: int, row: int) -> Any:
        block = self.batch.block(group, 0, 0) or 1
        return msgspec.structs.replace(NULL_INDICES, outputs=(block,))


class DummiesUseRows(ModelRunner):
    """vLLM #37728 in another form: dummy rows write to block 1."""

    def dead_indices(self, group: int, row: int) -> Any:
        return msgspec.structs.replace(NULL_INDICES, outputs=(1,))


class KeepsSlots(TagKernels):
    """vLLM #56734 on the attention side: a padding row stores keys and values."""

    def state_row(self, group: int, layer: int, inputs: Any, at: Any) -> Any:
        if inputs.table_row < 0:
            self.log.append(SlotWrite(inputs.row, 1, layer, 0, [2], [0], [7]))
        return super().state_row(group, layer, inputs, at)


class PadsIntoNull(TagKernels):
    """Padding rows write the null block as if it were an ordinary one."""

    def is_null(self, block: int) -> bool:
        return False


class RewritesPreviousSlot(TagKernels):
    """Each write starts one slot early, with the right content: harmless, unless the block is shared."""

    def write_slots(self, group: int, layer: int, inputs: Any, blocks: Any, size: int) -> Any:
        tags = super().write_slots(group, layer, inputs, blocks, size)
        if inputs.position:
            column, slot = divmod(inputs.position - 1, size)
            tag = self.memory.slots(layer, blocks[column], size)[slot]
            last = self.log[-1]
            assert isinstance(last, SlotWrite)
            self.log[-1] = msgspec.structs.replace(
                last,
                position=inputs.position - 1,
                blocks=[blocks[column], *last.blocks],
                slots=[slot, *last.slots],
                tags=[tag, *last.tags],
            )
        return tags


class ConvolvesIntoSource(TagKernels):
    """vLLM #56196: a short chunk stores its window where it was read from."""

    def state_row(self, group: int, layer: int, inputs: Any, at: Any) -> Any:
        tags = super().state_row(group, layer, inputs, at)
        short = inputs.position and len(inputs.tokens) < self.window_length
        if short and at.conv_column != at.run_column:
            self.log.append(StateWrite(inputs.row, group, layer, at.conv_column, at.conv, 0, None, (1, 2, 3)))
        return tags


class WritesNullColumn(TagKernels):
    """vLLM #33937: a state is stored through a null entry of the table."""

    def state_row(self, group: int, layer: int, inputs: Any, at: Any) -> Any:
        tags = super().state_row(group, layer, inputs, at)
        if at.run_column >= 2:
            self.log.append(StateWrite(inputs.row, group, layer, 0, NULL_BLOCK, 8, 7, None))
        return tags


class CopiesToNullColumn(StateSlots):
    """A boundary state is copied to a column that was given back."""

    def copy_state(self, step: int, group: int, name: str, *arguments: Any) -> None:
        super().copy_state(step, group, name, *arguments)
        records: list[Record] = arguments[-1]
        last = records[-1]
        assert isinstance(last, Copied)
        if self.batch.block(group, self.batch.names.index(name), 0) == NULL_BLOCK:
            records.append(msgspec.structs.replace(last, destination_column=0, destination=NULL_BLOCK))


class CopiesOverSource(StateSlots):
    """The copy goes the wrong way: what r1 found in the cache is overwritten."""

    def copy_state(self, step: int, group: int, name: str, *arguments: Any) -> None:
        records: list[Record] = arguments[-1]
        before = len(records)
        super().copy_state(step, group, name, *arguments)
        for index in range(before, len(records) if name == "r1" else before):
            one = records[index]
            assert isinstance(one, Copied)
            records[index] = msgspec.structs.replace(one, destination=one.source, destination_column=one.source_column)


CASES = [
    Case("mirror one column off", broken(ShiftsMirror), LONG, "M3", "column", ("scheduler's table holds",)),
    Case("row moved without its table", broken(ForgetsToMoveTable), MOVING_ROWS, "M3", "column", ("r1's",)),
    Case("captured buffer of the last step", broken(StaleBuffer), MOVING_ROWS, "M3", "column", ("r1's mamba group 0",)),
    Case(
        "slot of the wrong page",
        broken(WritesBehindItsColumn),
        ONE,
        "M3",
        "column",
        ("writes block .* r0's attention group 1",),
    ),
    Case(
        "copy from a foreign block", broken(CopiesFromElsewhere), LONG, "M3", "column", ("copies from block 30 .* r0",)
    ),
    Case(
        "padding repeats a live row",
        broken(PadsWithLiveRow),
        PADDED,
        "M4",
        "dead-write",
        ("padding row 1 writes Mamba state",),
    ),
    Case("dummy row writes", broken(DummiesUseRows), IDLE, "M4", "dead-write", ("dummy row 0 .*block 1, ",)),
    Case("padding row stores keys", broken(KeepsSlots), PADDED, "M4", "dead-write", ("attention KV .*block 2, ",)),
    Case("padding row writes the null block", broken(PadsIntoNull), PADDED, "M4", "dead-write", ("the null block",)),
    Case("two writers", broken(RewritesPreviousSlot), SHARED_IN_ONE_STEP, "M5", "two-writers", ("r0 and by r1",)),
    Case(
        "write to a shared block",
        broken(RewritesPreviousSlot),
        SHARED_LATER,
        "M5",
        "shared-write",
        ("r1 writes into block",),
    ),
    Case(
        "window stored in a cached block",
        broken(ConvolvesIntoSource),
        RESEND_ALL,
        "M5",
        "shared-write",
        ("published as depth 16",),
    ),
    Case("write through a null column", broken(WritesNullColumn), LONG, "M5", "null-write", ("r0 writes mamba",)),
    Case("copy through a null column", broken(CopiesToNullColumn), RESEND, "M5", "null-write", ("r0 writes mamba",)),
    Case("copy over a cached state", broken(CopiesOverSource), RESEND, "M5", "shared-write", ("r1 writes into block",)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_fires(case: Case) -> None:
    check_case(case)


def tampered_forward(change: Any) -> Tampered:
    """The correct target with changed forwards."""

    def records(before: list[Record]) -> list[Record]:
        return [change(one) if isinstance(one, Forward) else one for one in before]

    return Tampered(records)


def test_a_row_of_no_planned_request_may_not_write() -> None:
    """A row under a name that the step was not planned for counts as dead."""

    def rename(forward: Forward) -> Forward:
        rows = [msgspec.structs.replace(row, request="ghost") if row.request == "r1" else row for row in forward.rows]
        return msgspec.structs.replace(forward, rows=rows)

    case = Case("", tampered_forward(rename), TWO, "M4", "dead-write", ("padding row 1",))
    check_case(case)


def sent_outside(what: str, index: int, size: int, dead: bool) -> Tampered:
    """The metadata of a forward's first row, or of a dead one behind the last, names something that does not exist."""

    def change(forward: Forward) -> Forward:
        rows = [*forward.rows, ForwardRow(None, 0, (), 0, ())] if dead else forward.rows
        one = OutOfRange(len(rows) - 1 if dead else 0, 0, what, index, size)
        return msgspec.structs.replace(forward, rows=rows, accesses=[one, *forward.accesses])

    return tampered_forward(change)


def test_an_index_that_names_nothing_is_m3_for_a_request() -> None:
    words = (r"mamba group 0 points r0 \(row 0\) at column -1 of 3 ",)
    check_case(Case("", sent_outside("column", -1, 3, dead=False), ONE, "M3", "outside-column", words))


def test_an_index_that_names_nothing_is_m4_for_a_dead_row() -> None:
    words = ("mamba group 0 points padding row 1 at block 8126615 of 60 ",)
    check_case(Case("", sent_outside("block", 8126615, 60, dead=True), ONE, "M4", "outside-block", words))


@pytest.mark.parametrize(("column", "words"), [(99, "no block in column 99"), (-3, "no block in column -3")])
def test_a_copy_to_a_column_that_does_not_exist_is_m3(column: int, words: str) -> None:
    """A negative column must not be looked up from the end, nor pass for a block of the cache."""

    def records(before: list[Record]) -> list[Record]:
        return [
            msgspec.structs.replace(one, destination_column=column, destination=-1) if isinstance(one, Copied) else one
            for one in before
        ]

    check_case(Case("", Tampered(records), LONG, "M3", "column", (f"copies to {words} of r0's .* holds nothing",)))


def test_reads_of_dead_rows_are_not_checked() -> None:
    """A padding row may read whatever it likes, as long as it writes nothing."""

    def read_more(forward: Forward) -> Forward:
        extra = ForwardRow(None, 0, (), 0, ())
        reads = [StateRead(len(forward.rows), 0, 0, 0, 1, 7, None)]
        return msgspec.structs.replace(forward, rows=[*forward.rows, extra], accesses=[*forward.accesses, *reads])

    assert run_trace(tampered_forward(read_more), TWO).violation is None


def test_a_moved_scratch_block_may_still_be_read_at_its_old_column() -> None:
    """The worker's mirror is append-only: it keeps a block that the scheduler nulled and moved."""
    trace = make_trace(
        arrive("r0", 50, new=9), Step(budget=8), *steps(12, drafts=3, right=2),
        num_speculative_tokens=3,
    )  # fmt: skip
    assert run_trace(CLEAN, trace).violation is None


def test_a_moved_scratch_block_may_not_be_written_at_its_old_column() -> None:
    """An in-place window shift writes too, although source and destination share the column."""

    class ShiftsInNulledColumn(StateSlots):
        def copy_state(self, step: int, group: int, name: str, *arguments: Any) -> None:
            super().copy_state(step, group, name, *arguments)
            records: list[Record] = arguments[-1]
            last = records[-1]
            table = scheduler_tables[-1][name][group]
            row = self.batch.names.index(name)
            for column, block in enumerate(table):
                mirrored = self.batch.block(group, row, column)
                if block == NULL_BLOCK != mirrored and mirrored in table:
                    records.append(
                        msgspec.structs.replace(
                            last, source_column=column, source=mirrored,
                            destination_column=column, destination=mirrored,
                        )
                    )  # fmt: skip

    scheduler_tables: list[Any] = []
    factory = broken(ShiftsInNulledColumn)

    class Peeking:
        name, capabilities, supports = factory.name, factory.capabilities, factory.supports

        def open(self, config: Any) -> Any:
            target = factory.open(config)
            schedule = target.scheduler.schedule

            def peek(*arguments: Any) -> Any:
                plan = schedule(*arguments)
                scheduler_tables.append(target.view().tables)
                return plan

            target.scheduler.schedule = peek  # type: ignore[method-assign]
            return target

    trace = make_trace(
        arrive("r0", 50, new=9), Step(budget=8), *steps(12, drafts=3, right=2),
        num_speculative_tokens=3,
    )  # fmt: skip
    violation = run_trace(Peeking(), trace).violation
    assert violation is not None
    assert violation.oracle == "M3"


def test_cases_cover_their_oracles_twice() -> None:
    counts = Counter(case.oracle for case in CASES)
    assert {"M3", "M4", "M5"} == counts.keys()
    assert min(counts.values()) >= 2


def test_a_write_into_another_request_s_block_is_m5() -> None:
    """Also where the row's table does not name the block, so that M3 has no column to compare."""
    planned: list[Planned] = []

    def stray(before: list[Record]) -> list[Record]:
        planned.extend(one for one in before if isinstance(one, Planned))
        return [with_stray(one) if isinstance(one, Forward) else one for one in before]

    def with_stray(forward: Forward) -> Forward:
        tables = planned[-1].view.tables
        if len(forward.rows) < 2 or forward.dummy:
            return forward
        [own] = [one for one in forward.accesses if isinstance(one, StateWrite) and (one.row, one.layer) == (0, 0)][:1]
        [held] = [block for block in tables["r1"][own.group] if block][:1]
        others = [one for one in forward.accesses if one.row == 0]
        more = msgspec.structs.replace(own, block=held, column=-1)
        return msgspec.structs.replace(forward, rows=forward.rows[:1], accesses=[*others, more])

    trace = make_trace(*TWO.events, mamba_cache_mode="none", enable_prefix_caching=False)
    check_case(Case("", Tampered(stray), trace, "M5", "shared-write", (r"into block \d+, which is held by r1",)))
