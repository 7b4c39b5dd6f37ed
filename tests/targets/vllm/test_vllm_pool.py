"""One module reads the engine's block pool, hash map, free queue and tables: a renamed field is one file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridfuzz.targets

ADAPTER = Path(hybridfuzz.targets.__file__).parent / "vllm"
READER = "pool_reader.py"
FIELDS = {
    "_cache", "allocate_slots", "block_hash", "block_hash_num_tokens", "block_hashes", "block_pool",
    "cached_block_hash_to_block", "cached_blocks_this_step", "coordinator", "deferred_frees", "evict_blocks",
    "free_block_queue", "get_all_free_blocks", "get_num_blocks_to_allocate", "get_num_free_blocks", "is_null",
    "kv_cache_manager", "kv_event_queue", "new_block_ids", "ref_cnt", "req_to_blocks", "single_type_managers",
}  # fmt: skip
OTHERS = {("cache_events.py", "block_hashes"), ("counterparts/offloading.py", "ref_cnt")}
"""Fields of the same name in another struct: vLLM's KV cache events, and chunks of its own connector."""

WRITTEN = "scheduler_test/"
"""Writes tests for vLLM's own tree: what they read of the pool is text, left out where a release does not have it."""


def named(source: str) -> Iterator[str]:
    """Yield the fields that a module reads from objects other than itself, or names in a string such as getattr's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in FIELDS:
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.replace(".", " ").replace("[", " ").split()
            yield from {word for word in words if "_" in word} & FIELDS


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("pool.free_block_queue.get_all_free_blocks()", ["free_block_queue", "get_all_free_blocks"]),
        ("getattr(scheduler, 'deferred_frees', ())", ["deferred_frees"]),
        ("f'engine.block_pool.blocks[{block}]'", ["block_pool"]),
        ("self._cache(row)", []),
        ("'coordinator and block pool'", []),
    ],
)
def test_a_field_is_found_where_it_is_read(source: str, found: list[str]) -> None:
    assert sorted(named(source)) == found


def test_one_module_reads_the_pool() -> None:
    modules = {path.relative_to(ADAPTER).as_posix(): path.read_text(encoding="utf-8") for path in ADAPTER.rglob("*.py")}
    modules = {name: source for name, source in modules.items() if not name.startswith(WRITTEN)}
    read = {(name, field) for name, source in modules.items() for field in named(source) if name != READER}
    assert not read - OTHERS
    assert set(named(modules[READER])) == FIELDS  # none is a name that vLLM or the reader no longer has
