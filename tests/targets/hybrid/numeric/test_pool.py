"""The byte pool: dead bytes match their fill in every data type, pages do not overlap, guards are checked."""

import numpy as np
import pytest
import torch

from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.numeric.tiny_model import TinyModel
from hybridfuzz.targets.hybrid.numeric.paging import PageLayout
from hybridfuzz.targets.hybrid.numeric.pool import (
    BLOCK_BITS,
    FILLS,
    GUARD,
    LARGE_FINITE,
    PAYLOAD_BYTES,
    BytePool,
    pack_dead_blocks,
    poison_page,
)

DTYPES = ("float8_e4m3fn", "float16", "bfloat16", "float32")
MODEL = TinyModel(4)
LAYOUT = Layout((Group("mamba", 8, 2), Group("attention", 4, 1)), 6, 4, "align", True, 2)


def read_poison(page: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> tuple[int, int] | None:
    """(block, generation) if `page` starts with poison."""
    unit = page[:PAYLOAD_BYTES]
    if not (np.all(unit[::2] == 0xFF) and np.all((unit[1::2] | 0x80) == 0xFF) and np.all(unit[1::2] & 0x7F == 0x7F)):
        return None
    payload = sum(1 << bit for bit, byte in enumerate(unit[1::2]) if byte == 0xFF)
    return payload & ((1 << BLOCK_BITS) - 1), payload >> BLOCK_BITS


@pytest.fixture
def pool() -> BytePool:
    made = BytePool(LAYOUT, MODEL, PageLayout.of(LAYOUT, MODEL), torch.device("cpu"))
    made.fill_all([0] * LAYOUT.num_blocks)
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("block", "generation"), [(0, 0), (1, 7), (4095, (1 << 20) - 1)])
def test_poison_is_nan_in_every_data_type_and_names_the_dead(dtype: str, block: int, generation: int) -> None:
    page = poison_page(block, generation, 192)
    numbers = torch.from_numpy(page).view(getattr(torch, dtype)).float()
    assert numbers.isnan().all()
    assert read_poison(page) == (block, generation)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_second_fill_is_large_and_finite(dtype: str) -> None:
    numbers = torch.full((64,), LARGE_FINITE, dtype=torch.uint8).view(getattr(torch, dtype)).float()
    assert numbers.isfinite().all()
    assert (numbers > 100).all()


def test_block_ids_fit_the_payload() -> None:
    assert 1 << BLOCK_BITS >= 4096


def test_bytes_of_a_state_are_no_poison() -> None:
    assert read_poison(np.zeros(192, np.uint8)) is None


def test_pages_of_all_blocks_fills_and_layers_are_disjoint(pool: BytePool) -> None:
    seen = set()
    for layer in range(pool.layers):
        for fill in range(len(FILLS)):
            for block in range(pool.num_blocks):
                seen.add(pool.by_page[layer, pool.page(fill, block)].data_ptr())
    assert len(seen) == pool.layers * len(FILLS) * pool.num_blocks
    assert pool.page(0, 0) > 0, "page 0 is what kernels take for null"


def test_views_of_one_page_do_not_overlap(pool: BytePool) -> None:
    page = pool.page(0, 3)
    pool.by_page[0, page] = 0
    pool.temporal(0)[page] = 1
    assert not pool.conv(0)[page].any()
    pool.by_page[0, page] = 0
    keys, values = pool.keys_and_values(0, 4)
    keys[page] = torch.ones_like(keys[page].float()).to(keys.dtype)
    assert not values[page].float().any()
    assert not pool.by_page[0, [page - 1, page + 1]].float().eq(56).any(), "the neighbours are untouched"


def test_a_write_into_any_guard_is_seen(pool: BytePool) -> None:
    assert not pool.broken_guards().any()
    for index, page in enumerate(pool.guard_pages.tolist()):
        pool.by_page[1, page, 5] = GUARD ^ 1
        assert pool.broken_guards().tolist() == [at == index for at in range(len(pool.guard_names))]
        pool.by_page[1, page, 5] = GUARD


def test_only_the_dead_are_overwritten_and_each_fill_in_its_own_way(pool: BytePool) -> None:
    pool.by_page[:, pool.pages_of([1, 2])] = 3
    pool.fill_dead(torch.from_numpy(pack_dead_blocks({2: 9})))
    assert all((pool.by_page[:, page] == 3).all() for page in pool.pages_of([1]))
    poisoned, finite, zero = (pool.by_page[0, page].numpy() for page in pool.pages_of([2]))
    assert read_poison(poisoned) == (2, 9)
    assert (finite == LARGE_FINITE).all()
    assert not zero.any()
