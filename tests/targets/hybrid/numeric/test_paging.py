"""Pages of all groups have one size in every page layout; manager blocks may be several kernel blocks."""

from itertools import pairwise, product
from typing import Any

import msgspec
import pytest
import torch
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.numeric.tiny_model import TinyModel
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import ExternalLoad, Trace
from hybridfuzz.targets.base.trace import Group as TraceGroup
from hybridfuzz.targets.hybrid.numeric import device_state
from hybridfuzz.targets.hybrid.numeric.kernels import torch_reference
from hybridfuzz.targets.hybrid.numeric.paging import PageLayout, Paging, group_bytes
from hybridfuzz.targets.hybrid.numeric.pool import BytePool, parts_of

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
)
MODEL = TinyModel(4)
LONG = TraceGroup("mamba", 8), TraceGroup("attention", 24)


def layout(*sizes: int, states: bool = True) -> Layout:
    groups = tuple(Group("attention", size) for size in sizes)
    return Layout((Group("mamba", 8), *groups) if states else groups, 6, 4, "align", True, 2)


def paged(**options: str) -> Trace:
    """Chunks, drafts, a hit inside a block, a load from outside the pool."""
    return make_trace(
        arrive("r0", 50, new=6),
        *steps(2, drafts=2, right=2),
        arrive("r1", 37, ("e", 9), new=5),
        ExternalLoad("r1", 46),
        *steps(4, drafts=2, right=1),
        groups=LONG,
        num_speculative_tokens=2,
        graph_sizes=(1, 2),
        max_num_batched_tokens=33,
        options={"prefix_match_unit": "4", **options},
    )


@pytest.mark.parametrize(("sizes", "kernel"), [((24,), 0), ((24,), 4), ((24,), 8), ((8, 4), 2), ((16, 4), 4)])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_slot_has_bytes_of_its_own_that_both_views_agree_on(
    sizes: tuple[int, ...], kernel: int, scaled: bool
) -> None:
    """Offsets within a page, the kernels' view of the pool and the view of a lone page are one and the same."""
    spec = layout(*sizes, states=max(sizes) > 16)
    if reason := Paging(scaled, kernel).unsupported(spec, MODEL):
        assert "one block size" in reason
        return
    pages = PageLayout.of(spec, MODEL, Paging(scaled, kernel))
    pool = BytePool(spec, MODEL, pages, torch.device("cpu"))
    for group in (group for group in spec.groups if group.kind == "attention"):
        size, page = group.block_size, pool.page(0, 3)
        pool.bytes.zero_()
        keys, values = pool.keys_and_values(0, size)
        tokens = keys.shape[1]
        for slot, (part, cache) in product(range(size), enumerate((keys, values))):
            block, place = divmod(page * size + slot, tokens)
            cache[block, place] = torch.full((1, 8), float(slot + 1 + 32 * part)).to(cache.dtype)
            start = pages.slot(size, slot)[part]
            assert pool.by_page[0, page, start : start + pages.entry].any()
        own = parts_of(pool.by_page[0, page], group, pages, MODEL)
        for part, wanted in zip(own, (1, 33), strict=True):
            seen = part.float().flatten(0, 1)[:, 0, 0]
            assert torch.equal(seen, torch.arange(wanted, wanted + size).float().to(part.dtype).float())
        assert int(pool.by_page[0].any(-1).sum()) == 1, "no other page was touched"


@pytest.mark.parametrize("kernel", [0, 4])
def test_a_scaled_page_is_one_block_of_attention_and_has_room_for_a_state(kernel: int) -> None:
    spec = layout(24)
    pages = PageLayout.of(spec, MODEL, Paging(True, kernel))
    assert pages.size == group_bytes(spec.groups[1], spec, MODEL) == 24 * 16
    assert pages.conv + pages.conv_slots * 32 <= pages.size
    offsets = sorted(offset for slot in range(24) for offset in pages.slot(24, slot))
    assert {after - before for before, after in pairwise(offsets)} == {pages.entry}, "no byte is wasted"


@pytest.mark.parametrize(
    ("spec", "paging", "reason"),
    [
        (layout(24), Paging(True, 4), ""),
        (layout(16), Paging(False, 4), ""),
        (layout(16, 4), Paging(True), "one block size"),
        (layout(8), Paging(True), "smaller than a state"),
        (layout(16, 4), Paging(False, 8), "does not divide"),
        (layout(), Paging(True), "one block size"),
        (layout(), Paging(False, 4), "there is none"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(spec: Layout, paging: Paging, reason: str) -> None:
    refusal = paging.unsupported(spec, MODEL)
    assert refusal == reason if not reason else reason in refusal


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kernel", ["0", "4", "8"])
@pytest.mark.parametrize("pages", ["padded", "scaled"])
def test_every_layout_of_pages_is_clean(kernel: str, pages: str, device: str) -> None:
    trace = paged(page_layout=pages, kernel_block=kernel)
    factory = load_factory(f"hybrid@{device}")
    assert not factory.supports(trace.config)
    outcome = run_trace(factory, trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.exercised["S1"] and outcome.reached["loaded from outside the pool"]


@pytest.mark.parametrize("overrides", [{"page_layout": "scaled"}, {"kernel_block": "4"}, {"kernel_block": "2"}])
def test_a_drawn_trace_is_clean(overrides: dict[str, Any]) -> None:
    factory = load_factory("hybrid@cpu")
    trace = draw_trace(factory.capabilities, 61, 0, overrides, factory.supports)
    outcome = run_trace(factory, msgspec.structs.replace(trace, events=trace.events[:15]))
    assert outcome.violation is None, outcome.violation.message


@pytest.mark.parametrize(("compares", "found"), [(True, {"indices"}), (False, {"numbers", "nan", "fills"})])
def test_tables_that_are_not_split_are_found(compares: bool, found: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    gather = torch_reference.gather_columns
    monkeypatch.setattr(torch_reference, "gather_columns", lambda *arguments, **options: gather(*arguments))
    if not compares:
        monkeypatch.setattr(device_state, "differing", lambda expected, indices: [])
    violation = run_trace(load_factory("hybrid@cpu-bytes"), paged(kernel_block="4")).violation
    assert violation is not None
    assert violation.field in found


def test_a_page_that_is_too_small_for_a_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with too short attention blocks: the last page's state would end beyond the pool."""
    trace = make_trace(arrive("r0", 20, new=6), *steps(4), options={"page_layout": "scaled"})
    factory = load_factory("hybrid@cpu-bytes")
    assert "smaller than a state" in factory.supports(trace.config)
    monkeypatch.setattr(Paging, "unsupported", lambda self, layout, model: "")
    violation = run_trace(factory, trace).violation
    assert violation is not None
    assert violation.oracle == "CRASH"
    assert "out of bounds" in violation.message
