"""Both tree cores in one engine: every operation on both, every answer compared.

SGLang's Python core answers; the Rust core does the same beside it. The two number their nodes each by itself: the
first answer that names a node tells which one of the other core it is. Everything that the cache asks goes through
SGLang's own interface of a tree core, so that nothing of the engine is changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from inspect import signature
from typing import Any

import msgspec
import torch

from .kit_limits import BOTH

ALONE = frozenset({"kv_events", "node_by_id", "pretty_print", "root_node", "supports_fast_match_prefix", "take_events"})
"""Asked of the Python core alone: nodes of its own, what it prints, and how the cache asks it."""
UNORDERED = frozenset({"all_mamba_values_flatten", "all_values_flatten", "walk_for_kv_canary"})
"""Operations that walk the tree, in an order of their own."""


class Difference(msgspec.Struct, frozen=True):
    """An operation to which the cores gave two answers, as text."""

    operation: str
    python: str
    rust: str


class Names:
    """Which number of one core is which of the other: of nodes, and of locks."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._here: dict[int, int] = {}

    def same(self, one: int, other: int) -> bool:
        """Return True if two numbers stand for the same thing, which those that nobody has named do from now on."""
        return self._there.setdefault(one, other) == other and self._here.setdefault(other, one) == one

    def there(self, one: int) -> int:
        """Return the other core's number."""
        return self._there.get(one, one)


class CorePair:
    """A tree core that is two."""

    def __init__(self, python: Any, rust: Any) -> None:
        vars(self).update(python=python, rust=rust, names={}, compared=0, difference=None, busy=False)

    def __getattr__(self, name: str) -> Any:
        answer = getattr(self.python, name)
        if self.busy or name in ALONE or not hasattr(type(self.rust), name) or name.startswith("_"):
            return answer
        if self.difference is not None:
            return answer  # what comes after a difference is a consequence of it
        if not callable(answer):
            self._compare(name, answer, getattr(self.rust, name))
            return answer

        def both(*arguments: Any, **keywords: Any) -> Any:
            return self._both(name, answer, arguments, keywords)

        return both

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.python, name, value)
        if hasattr(self.rust, name):
            setattr(self.rust, name, value)

    def _both(self, name: str, ask: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        given = signature(ask).bind(*arguments, **keywords).arguments
        other = {key: self._translated(value, key) for key, value in given.items()}
        # The Python core's components ask it while it answers.
        vars(self)["busy"] = True
        try:
            one = ask(**given)
        finally:
            vars(self)["busy"] = False
        two = getattr(self.rust, name)(**other)
        self._compare(name, one, two)
        for key, value in given.items():
            if isinstance(value, dict | list) and "node" not in key:
                self._compare(key, value, other[key])
        _drain(two)
        return one

    def take(self) -> tuple[int, Difference | None]:
        """Return how many answers were compared since the last call, and the first that differed so far."""
        compared = self.compared
        vars(self)["compared"] = 0
        return compared, self.difference

    def agree(self) -> None:
        """Compare what the cores own, and their sizes."""
        self.walk_for_kv_canary(False, False)
        self.walk_for_kv_canary(False, True)  # what is left of sliding windows
        self.all_mamba_values_flatten()
        sizes = ("full_evictable_size", "full_protected_size", "mamba_evictable_size", "swa_evictable_size")
        for size in ("total_size", *sizes):
            getattr(self, size)()

    def _translated(self, value: Any, name: str) -> Any:
        """Return an argument as the other core has to be given it."""
        if isinstance(value, dict) and "uuid" not in name:
            return defaultdict(list, {key: list(one) if isinstance(one, list) else one for key, one in value.items()})
        if kind := _kind(name):
            return _each(value, lambda number: self._names(kind).there(number))
        if isinstance(value, list):
            return list(value)
        if is_dataclass(value) and not isinstance(value, type) and any(_kind(one.name) for one in fields(value)):
            changed = {one.name: self._translated(getattr(value, one.name), one.name) for one in fields(value)}
            return replace(value, **changed)
        return value

    def _names(self, kind: str) -> Names:
        names: Names = self.names.setdefault(kind, Names())
        return names

    def _compare(self, operation: str, one: Any, other: Any) -> None:
        vars(self)["compared"] += 1
        if self.difference is None and not self._same(one, other, operation, operation in UNORDERED):
            vars(self)["difference"] = Difference(operation, _text(one), _text(other))

    def _same(self, one: Any, other: Any, name: str, unordered: bool = False) -> bool:
        if isinstance(one, torch.Tensor):
            here, there = one.tolist(), other.tolist() if isinstance(other, torch.Tensor) else None
            return bool(here == there or (unordered and there is not None and sorted(here) == sorted(there)))
        if (kind := _kind(name)) and isinstance(one, int) and isinstance(other, int):
            return self._names(kind).same(one, other)
        if isinstance(one, Mapping):
            mine, yours = ({key: value for key, value in each.items() if value not in ([], 0)} for each in (one, other))
            return mine.keys() == yours.keys() and all(self._same(mine[key], yours[key], name) for key in mine)
        if isinstance(one, str | bytes | int | float | None | bool):
            return bool(one == other)
        if fields_of := _fields(one):
            return type(one) is type(other) and all(
                self._same(getattr(one, field), getattr(other, field), field, unordered) for field in fields_of
            )
        if isinstance(one, Sequence):
            if one and all(isinstance(each, torch.Tensor) for each in (*one, *other)):
                return sorted(_flat(one)) == sorted(_flat(other))
            return len(one) == len(other) and all(
                self._same(mine, yours, name) for mine, yours in zip(one, other, strict=True)
            )
        return bool(one == other)


def register() -> None:
    """Add the pair to SGLang's tree cores."""
    from sglang.srt.mem_cache.unified_cache.tree_core_registry import (
        get_tree_core_factory,
        register_tree_core_backend,
    )

    def make(parameters: Any, components: Any) -> CorePair:
        python, rust = (get_tree_core_factory(name)(parameters, components) for name in ("python", "rust"))
        return CorePair(python, rust)

    if get_tree_core_factory(BOTH) is None:
        register_tree_core_backend(BOTH, make)


def _kind(name: str) -> str:
    """Return what numbers of a field or argument stand for, "" for numbers that are only numbers."""
    return next((kind for kind in ("node", "uuid") if kind in name and not name.startswith("num_")), "")


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: _each(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_each(one, change) for one in value)
    return change(value) if isinstance(value, int) else value


def _fields(value: Any) -> tuple[str, ...]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if is_dataclass(value):
        return tuple(one.name for one in fields(value))
    return tuple(getattr(value, "_fields", ()))


def _flat(tensors: Sequence[torch.Tensor]) -> Iterator[int]:
    for one in tensors:
        yield from one.reshape(-1).tolist()


def _drain(value: Any) -> None:
    """Empty a result that nobody will carry out: SGLang objects to one that is dropped full."""
    for name in ("device_frees", "host_frees", "cache_actions"):
        if hasattr(value, name) and hasattr(getattr(value, name), "clear"):
            getattr(value, name).clear()


def _text(value: Any) -> str:
    return " ".join(str(value).split())[:200]
