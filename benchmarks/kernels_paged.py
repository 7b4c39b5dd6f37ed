"""vLLM's kernels on pages, against float64: attention, cache writes, and the copies of mode align (bit by bit)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernel_case import EPSILON, FAR, Case, close
from kernels_prefill import TENSOR

SEGMENTS = 16


class Pages:
    """Keys and values [blocks, size, heads, width], blocks apart in larger pages; memory of NaN."""

    def __init__(self, case: Case, blocks: int) -> None:
        torch, draw = case.torch, case.draw
        self.size, self.heads, self.width = draw.choice((16, 32)), draw.choice((1, 2)), draw.choice((32, 64, 128))
        self.blocks = 3 if case.far else blocks
        part = self.size * self.heads * self.width
        stride = FAR // 4 if case.far else 2 * part + draw.choice((0, 16, 256))
        self.memory = torch.full((stride * (self.blocks - 1) + 2 * part,), float("nan"), device=case.device)
        strides = (stride, self.heads * self.width, self.width, 1)
        shape = (self.blocks, self.size, self.heads, self.width)
        self.keys = self.memory.as_strided(shape, strides)
        self.values = self.memory.as_strided(shape, strides, part)


def attention(case: Case) -> str:
    """Causal attention of rows of any length over a paged cache, in one pass or in segments."""
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention

    torch, draw = case.torch, case.draw
    pages = Pages(case, 64)
    each = draw.choice((1, 2, 4))
    contexts = [length + draw.choice((0, 1, 15, 16, 17, draw.randint(0, 70))) for length in case.lengths]
    contexts = [context if length else 0 for context, length in zip(contexts, case.lengths, strict=True)]
    if case.far:  # one row, in the last page
        row = max(range(case.rows), key=lambda one: case.lengths[one] > 0)
        case.lengths = [min(length, 16) if index == row else 0 for index, length in enumerate(case.lengths)]
        case.starts = [sum(case.lengths[:index]) for index in range(case.rows + 1)]
        case.tokens, contexts = case.starts[-1], list(case.lengths)
    free = list(range(1, pages.blocks))
    draw.shuffle(free)
    tables = [
        [2 if case.far else free.pop() for _ in range(-(-context // pages.size))] for context in contexts
    ]  # fmt: skip
    widest = max(len(table) for table in tables) + 1
    table = case.integers([[*one, *[0] * (widest - len(one))] for one in tables])
    for context, blocks in zip(contexts, tables, strict=True):
        for position in range(context):
            block, slot = blocks[position // pages.size], position % pages.size
            pages.keys[block, slot] = case.numbers(pages.heads, pages.width)
            pages.values[block, slot] = case.numbers(pages.heads, pages.width)
    heads, scale = pages.heads * each, pages.width**-0.5
    q = case.numbers(case.tokens, heads, pages.width)
    out = torch.full_like(q, float("nan"))
    more: dict[str, Any] = {}
    if draw.random() < 0.5:  # the kernel that splits a decode row's keys
        shape = (case.tokens, heads, SEGMENTS)
        more = {
            "seq_threshold_3D": 64, "num_par_softmax_segments": SEGMENTS,
            "softmax_segm_output": torch.full((*shape, pages.width), float("nan"), device=case.device),
            "softmax_segm_max": torch.full(shape, float("nan"), device=case.device),
            "softmax_segm_expsum": torch.full(shape, float("nan"), device=case.device),
        }  # fmt: skip
    unified_attention(
        q=q, k=pages.keys, v=pages.values, out=out, cu_seqlens_q=case.integers(case.starts),
        max_seqlen_q=max(case.lengths), seqused_k=case.integers(contexts), max_seqlen_k=max(contexts),
        softmax_scale=scale, causal=True, window_size=(-1, -1), block_table=table, softcap=0,
        q_descale=None, k_descale=None, v_descale=None, **more,
    )  # fmt: skip
    for row, (context, blocks) in enumerate(zip(contexts, tables, strict=True)):
        if not case.lengths[row]:
            continue
        keys, values = (
            one[blocks].flatten(0, 1)[:context].double().cpu().repeat_interleave(each, 1)
            for one in (pages.keys, pages.values)
        )
        for token in range(case.lengths[row]):
            query = q[case.starts[row] + token].double().cpu()
            seen = context - case.lengths[row] + token + 1
            products = keys[:seen] * query
            scores, room = scale * products.sum(-1), scale * products.abs().sum(-1) * (pages.width + 8) * TENSOR
            weights = scores.softmax(0)[:, :, None]
            wanted = (weights * values[:seen]).sum(0)
            terms = (weights * values[:seen].abs()).sum(0)
            # Every score is off by at most `most`, so a weight by a factor of exp(2 most).
            most = room.max(0).values[:, None] + 8 * EPSILON * scores.abs().max(0).values[:, None]
            slack = ((2 * most).expm1() + (seen + 64) * TENSOR) * terms
            if wrong := close(f"row {row}, token {token} of {seen}", out[case.starts[row] + token], wanted, slack):
                return wrong
    return ""


def cache_write(case: Case) -> str:
    """Keys and values of a batch's tokens to their slots; tokens with slot -1 are dropped, no other bit changes."""
    from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash

    torch, draw = case.torch, case.draw
    pages = Pages(case, 12)
    first = 2 * pages.size if case.far else 0
    slots = draw.sample(range(first, pages.blocks * pages.size), min(case.tokens, 16))
    slots = [-1 if draw.random() < 0.2 else slot for slot in slots]
    keys, values = (case.numbers(len(slots), pages.heads, pages.width) for _ in range(2))
    before = None if case.far else pages.memory.clone()
    one = torch.ones(1, device=case.device)
    mapping = torch.tensor(slots, dtype=torch.int64, device=case.device)
    triton_reshape_and_cache_flash(keys, values, pages.keys, pages.values, mapping, "auto", one, one)
    for token, slot in enumerate(slots):
        if slot < 0:
            continue
        place = slot // pages.size, slot % pages.size
        if not (torch.equal(pages.keys[place], keys[token]) and torch.equal(pages.values[place], values[token])):
            return f"token {token} is not in slot {slot}"
        pages.keys[place] = pages.values[place] = float("nan")
    if before is not None and not torch.equal(before.view(torch.int32), pages.memory.view(torch.int32)):
        return "memory outside of the slots changed"
    return ""


def align_copy(case: Case) -> str:
    """Windows, shifted by the accepted drafts, and temporal states, from the accepted column, between blocks."""
    from vllm.v1.worker.mamba_utils import precopy_mamba_align_fused_kernel

    torch, draw = case.torch, case.draw
    columns = 5
    length, dim, words = draw.randint(3, 7), draw.choice((5, 16, 33)), draw.choice((7, 64, 1030))
    case.slots = 3 if case.far else case.rows * columns + 1
    case.null = [True] * case.rows  # every state is filled below
    memories, parts = zip(*(case.states(length, dim), case.states(words)), strict=True)
    for part in parts:
        for slot in range(case.slots):
            part[slot] = case.numbers(*part.shape[1:])
    free = list(range(1, case.slots))
    draw.shuffle(free)
    table = [[1 + column % 2 if case.far else free.pop() for column in range(columns)] for _ in range(case.rows)]
    source = [draw.choice((-1, 0, 1)) for _ in range(case.rows)]
    goal = [draw.choice((one if one >= 0 else 4, 4)) for one in source]
    shift = [draw.randint(0, 2) for _ in range(case.rows)]
    if case.far:  # one row: from block 1 to block 2
        source, goal, shift = [0, *[-1] * (case.rows - 1)], [1] * case.rows, [0] * case.rows
    before = [part.clone() for part in parts] if case.far else [memory.clone() for memory in memories]
    tensor, device = torch.tensor, case.device
    tables = case.integers(table)
    kinds = {"dtype": torch.int64, "device": device}
    precopy_mamba_align_fused_kernel[(case.rows, 2, 4)](
        case.integers(goal), case.integers(source), case.integers(shift),
        tensor([tables.data_ptr()], **kinds), columns,
        tensor([part.data_ptr() for part in parts], **kinds), tensor([part.stride(0) * 4 for part in parts], **kinds),
        case.integers([4, 4]), tensor([dim, words], **kinds), case.integers([length, 0]), case.integers([0, 0]),
        case.integers([0, 0]), tensor([0, 0], **kinds), None, case.rows,
        COPY_BLOCK_SIZE=1024, CONV_STATE_DIM_FIRST=False, HAS_IDX_MAPPING=False, TEMPORAL_TILES=4,
    )  # fmt: skip
    old = before if case.far else [
        kept.as_strided(part.shape, part.stride()) for kept, part in zip(before, parts, strict=True)
    ]  # fmt: skip
    wanted = [one.clone() for one in old]
    for row in range(case.rows):
        if source[row] < 0 or source[row] == goal[row]:
            continue
        start, accepted, end = (table[row][at] for at in (source[row], source[row] + shift[row], goal[row]))
        wanted[0][end, : length - shift[row]] = old[0][start, shift[row] :]
        wanted[1][end] = old[1][accepted]
    for name, part, right in zip(("windows", "temporal states"), parts, wanted, strict=True):
        if not torch.equal(part, right):
            return f"{name}: other bits than a copy's"
    for memory, part, first in zip(memories, parts, before, strict=True) if not case.far else ():
        first.as_strided(part.shape, part.stride()).copy_(part)
        if not torch.equal(memory.view(torch.int32), first.view(torch.int32)):
            return "memory between the states changed"
    return ""


PAGED: dict[str, Callable[[Case], str]] = {
    "unified_attention": attention,
    "triton_reshape_and_cache_flash": cache_write,
    "precopy_mamba_align_fused_kernel": align_copy,
}
