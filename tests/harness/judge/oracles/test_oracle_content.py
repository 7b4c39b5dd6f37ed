"""S1, S2, S3, S4 and S7 fire: content is what key and progress say; no request reads stale bytes."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from support import ATTENTION, MAMBA, Case, Tampered, arrive, broken, check_case, make_trace, steps

from hybridfuzz.targets.base.observe import Forward, Record, SlotRead, StateRead
from hybridfuzz.targets.base.shadow import POISON, POISON_TOKEN
from hybridfuzz.targets.base.trace import Evict, Group, Preempt
from hybridfuzz.targets.hybrid.tag_memory import TagMemory
from hybridfuzz.targets.hybrid.target import HybridTarget
from hybridfuzz.targets.hybrid.worker.model_runner import ModelRunner
from hybridfuzz.targets.hybrid.worker.state_slots import StateSlots
from hybridfuzz.targets.hybrid.worker.tag_kernels import TagKernels

ONE = make_trace(arrive("r0", 20, new=3), *steps(6))
CHUNKS = make_trace(arrive("r0", 7, new=3), *steps(8), max_num_batched_tokens=5)
AGAIN = (arrive("r0", 20, new=3), *steps(6), arrive("r1", 20, new=3), *steps(6))
RESEND = make_trace(*AGAIN)
RESEND_ALL = make_trace(*AGAIN, mamba_cache_mode="all")
LONG = make_trace(arrive("r0", 20, new=20), *steps(24))
DRAFTS = make_trace(arrive("r0", 12, new=20), *steps(12, drafts=3, right=2), num_speculative_tokens=3)
DRAFTS_NONE = make_trace(
    arrive("r0", 12, new=20), *steps(3, drafts=3, right=2), *steps(3), *steps(3, drafts=3, right=2),
    num_speculative_tokens=3, mamba_cache_mode="none",
)  # fmt: skip
SCRIBBLE = make_trace(arrive("r0", 20, new=3), *steps(5), Evict(1), groups=(MAMBA, ATTENTION))
SHORT = make_trace(arrive("r0", 3, new=3), *steps(4), groups=(ATTENTION,))
ATTENTION_ONLY = make_trace(arrive("r0", 12, new=4), *steps(6), groups=(ATTENTION,))
TWO_LAYERS = make_trace(arrive("r0", 20, new=20), *steps(24), groups=(Group("mamba", 8, 2), Group("attention", 8, 2)))
WRAPPED = make_trace(
    arrive("r0", 20, new=12), *steps(14), arrive("r1", ("e", 20), new=12), *steps(14),
    num_blocks=9, max_model_len=40,
)  # fmt: skip


def scribbles(change: Callable[[TagMemory, int], None]) -> Any:
    """The last published block is overwritten without a record; the event is an eviction."""

    class Scribbles(HybridTarget):
        def evict(self, event: Evict) -> list[Record]:
            kinds = [group.kind for group in self.layout.groups]
            block = max(self.pool.labels, key=lambda one: kinds[self.pool.labels[one].group] == "mamba")
            change(self.memory, block)
            return []

    return broken(Scribbles)


class ScribblesSlot(HybridTarget):
    """An eviction overwrites one attention slot."""

    def evict(self, event: Evict) -> list[Record]:
        attention = [block for block, key in self.pool.labels.items() if key.group == 1]
        self.memory.store_slots(0, attention[0], 8, 3, (99,))
        return []


class RepeatsOldestInput(TagMemory):
    """The stored window is one input over and over."""

    def store_conv(self, layer: int, block: int, window: tuple[int, ...]) -> None:
        super().store_conv(layer, block, window[:1] * len(window))


class SeedsColumnBefore(StateSlots):
    """vLLM #53142: an admitted request starts from the wrong column of its hit."""

    def seed_column(self, group: int, computed: int) -> int:
        return max(super().seed_column(group, computed) - 1, 0) if computed else -1


class ForgetsHit(TagKernels):
    """A continued request is taken for a new one if it computes more than one token."""

    def has_initial_state(self, inputs: Any, layer: int) -> bool:
        return inputs.position > 0 and len(inputs.tokens) == 1


class InventsState(TagKernels):
    """vLLM #32118: a request that computes one token resumes from a state, even if nothing is computed yet."""

    def has_initial_state(self, inputs: Any, layer: int) -> bool:
        return True


class ReadsWindowOff(StateSlots):
    """A chunk takes its window one token late."""

    def state_indices(self, *arguments: Any) -> Any:
        indices, inputs = super().state_indices(*arguments), arguments[1]
        late = inputs.position > 0 and len(inputs.tokens) > 1
        return msgspec.structs.replace(indices, offset=indices.offset + late)


class LeavesTemporal(StateSlots):
    """The running column moves on without the recurrent state."""

    def move_temporal(self, layer: int, source: int, destination: int) -> None:
        pass


class LeavesConv(StateSlots):
    """vLLM #42792: only the recurrent state moves on."""

    def move_conv(self, layer: int, source: int, destination: int, offset: int) -> None:
        pass


class LeavesSecondLayer(StateSlots):
    """SGLang #39862: one mover skips one tensor."""

    def move_temporal(self, layer: int, source: int, destination: int) -> None:
        if not layer:
            super().move_temporal(layer, source, destination)


class ForgetsAccepted(StateSlots):
    """vLLM #39273: the next step starts as if no draft had been accepted."""

    def settle(self, *arguments: Any) -> None:
        super().settle(*arguments)
        for counts in self.batch.accepted.device:
            counts[:] = [0] * len(counts)


class SwapsSlots(TagMemory):
    """Keys and values of neighbouring positions change places."""

    def store_slots(self, layer: int, block: int, size: int, first: int, tags: Sequence[int]) -> None:
        for slot, tag in enumerate(tags, first):
            super().store_slots(layer, block, size, slot ^ 1, (tag,))


class DropsLastSlot(TagKernels):
    """The last token's keys and values are never stored."""

    def write_slots(self, group: int, layer: int, inputs: Any, blocks: Any, size: int) -> Any:
        if len(inputs.tokens) == 1:
            return super().write_slots(group, layer, inputs, blocks, size)
        shorter = msgspec.structs.replace(inputs, tokens=inputs.tokens[:-1])
        tags = super().write_slots(group, layer, shorter, blocks, size)
        return (*tags, tags[-1])


class NeverZeroes(ModelRunner):
    """vLLM #35219: a recycled page is not zeroed."""

    def zero_blocks(self, plan: Any, records: list[Record]) -> None:
        pass


class SamplesNaN(ModelRunner):
    """NaN logits, but nothing else is wrong."""

    def verify(self, row: Any, tags: Any, inputs: Any) -> list[int]:
        sampled = super().verify(row, tags, inputs)
        return [POISON_TOKEN] * len(sampled)


class AttendsToNaN(TagKernels):
    """Attention multiplies NaN by the mask 0."""

    def read_slots(self, *arguments: Any) -> tuple[int, ...]:
        return (POISON,) * len(super().read_slots(*arguments))


class PoisonsChain(TagKernels):
    """A kernel's arithmetic overflows, after reading and before writing back what it should."""

    def state_row(self, *arguments: Any) -> tuple[int, ...]:
        return (POISON,) * len(super().state_row(*arguments))


CASES = [
    Case(
        "cached state overwritten",
        scribbles(lambda memory, block: memory.store_temporal(0, block, 99)),
        SCRIBBLE,
        "S1",
        "temporal",
        ("published as depth 16",),
    ),
    Case(
        "cached window overwritten",
        scribbles(lambda memory, block: memory.store_conv(0, block, (1, 2, 3))),
        SCRIBBLE,
        "S1",
        "conv",
        ("as input 0 of its convolution window",),
    ),
    Case("cached slot overwritten", broken(ScribblesSlot), SCRIBBLE, "S1", "slot", ("slot 3",)),
    Case(
        "wrong window stored at a boundary",
        broken(RepeatsOldestInput),
        RESEND_ALL,
        "S1",
        "conv",
        ("block .* published as depth 8",),
    ),
    Case(
        "slots swapped in a cached block",
        broken(SwapsSlots),
        ATTENTION_ONLY,
        "S1",
        "slot",
        ("the KV of position 1 of r0 in slot 0",),
    ),
    Case(
        "hit read from the wrong column",
        broken(SeedsColumnBefore),
        RESEND_ALL,
        "S2",
        "temporal",
        ("r1 resumes from .*expected the state of r1 after 16 tokens",),
    ),
    Case("hit ignored", broken(ForgetsHit), RESEND_ALL, "S2", "state-ignored", ("r1 has 16 tokens computed",)),
    Case(
        "window off by one after a hit",
        broken(ReadsWindowOff),
        RESEND_ALL,
        "S2",
        "conv",
        ("r1 resumes from a window",),
    ),
    Case("chunk starts from nothing", broken(ForgetsHit), CHUNKS, "S3", "state-ignored", ("r0 has 5 tokens computed",)),
    Case(
        "temporal state not moved",
        broken(LeavesTemporal),
        LONG,
        "S3",
        "temporal",
        ("expected the state of r0 after 16 tokens",),
    ),
    Case("window not moved", broken(LeavesConv), LONG, "S3", "conv", ("a window whose input",)),
    Case("second layer not moved", broken(LeavesSecondLayer), TWO_LAYERS, "S3", "temporal"),
    Case(
        "accepted drafts forgotten",
        broken(ForgetsAccepted),
        DRAFTS_NONE,
        "S3",
        "temporal",
        ("r0 resumes from the state of r0 after",),
    ),
    Case("slots swapped", broken(SwapsSlots), SHORT, "S3", "slot", ("attends to position",)),
    Case("state of no request", broken(InventsState), ONE, "S4", "temporal", ("not written since r0 got it",)),
    Case("slot never written", broken(DropsLastSlot), ATTENTION_ONLY, "S4", "slot", ("r0 reads a slot",)),
    Case("page not zeroed", broken(NeverZeroes), WRAPPED, "S4", "page-tail", ("slots after its last token",)),
    Case("NaN sampled", broken(SamplesNaN), ONE, "S7", "token", ("r0 sampled token 0",)),
    Case("NaN by masked attention", broken(AttendsToNaN), ONE, "S7", "token", ("r0 sampled token 0",)),
    Case("NaN by a state kernel", broken(PoisonsChain), ONE, "S7", "token"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_fires(case: Case) -> None:
    check_case(case)


def test_stale_page_names_its_former_owner() -> None:
    """The message names the block's previous owner."""

    class ZeroesFirstOnly(ModelRunner):
        def zero_blocks(self, plan: Any, records: list[Record]) -> None:
            if plan.step < 10:
                super().zero_blocks(plan, records)

    says = ("r1 reads .*its bytes are from r0",)
    check_case(Case("", broken(ZeroesFirstOnly), WRAPPED, "S4", "page-tail", says))


def test_reading_a_state_before_the_first_token_is_a_phantom() -> None:
    """Where stale bytes look like fresh ones, the read itself is still wrong."""

    def read_at_start(records: list[Record]) -> list[Record]:
        return [
            msgspec.structs.replace(one, accesses=[StateRead(0, 0, 0, 0, 1, 99, None), *one.accesses])
            if isinstance(one, Forward) and one.step == 0
            else one
            for one in records
        ]

    factory = Tampered(read_at_start, observes=frozenset({"accesses"}))
    case = Case("", factory, ONE, "S2", "phantom-state", ("nothing is computed yet",))
    check_case(case)


def test_resumed_request_is_judged_by_s2_again() -> None:
    """After a preemption the first read is a resumption: S2, not S3."""
    trace = make_trace(arrive("r0", 20, new=6), *steps(3), Preempt("r0"), *steps(6), mamba_cache_mode="all")
    violation = check_case(Case("", broken(ForgetsHit), trace, "S2", "state-ignored"))
    assert violation.request == "r0"


def test_cases_cover_their_oracles_twice() -> None:
    counts = Counter(case.oracle for case in CASES)
    assert {"S1", "S2", "S3", "S4", "S7"} == counts.keys()
    assert min(counts.values()) >= 2


def test_attention_that_reads_nothing_is_noticed() -> None:
    """A kernel that is given no pages, or a length of 0, shows no wrong slot."""

    def blind(records: list[Record]) -> list[Record]:
        return [
            msgspec.structs.replace(one, accesses=[each for each in one.accesses if not isinstance(each, SlotRead)])
            if isinstance(one, Forward)
            else one
            for one in records
        ]

    trace = make_trace(arrive("r0", 20, new=3), *steps(6))
    check_case(Case("", Tampered(blind), trace, "S3", "slots-ignored", ("without reading its keys and values",)))
