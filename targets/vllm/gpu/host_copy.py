"""Copies small integer tensors of the device to the host, many at a time.

Each read of a device tensor waits for the device, and for every other process that shares it. What the mirror reads in
one forward is therefore copied at once: `on_host` rebuilds containers and metadata objects around host tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

LARGEST = 1 << 16
"""Elements of a tensor that is copied: metadata are small."""


def on_host(value: Any) -> Any:
    """`value` with host tensors in place of device tensors. Lists, tuples, mappings and objects with attributes are
    followed, three levels deep; floating-point tensors stay where they are."""
    found: dict[int, torch.Tensor] = {}
    _find(value, found, set(), 4)
    if not found:
        return value
    return _rebuilt(value, dict(zip(found, fetched(list(found.values())), strict=True)), {}, 4)


def fetched(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Host copies of device tensors, made with one copy."""
    # In descending order of their elements' size, so that each is aligned.
    order = sorted(range(len(tensors)), key=lambda index: -tensors[index].element_size())
    by_size: dict[int, list[torch.Tensor]] = {}
    with torch.inference_mode():
        for index in order:
            flat = tensors[index].detach().reshape(-1)
            by_size.setdefault(flat.element_size(), []).append(flat.view(_WORDS[flat.element_size()]))
        joined = torch.cat([torch.cat(parts).view(torch.uint8) for parts in by_size.values()]).cpu()
    copies: list[torch.Tensor] = [torch.empty(0)] * len(tensors)
    start = 0
    for index in order:
        tensor = tensors[index]
        end = start + tensor.numel() * tensor.element_size()
        copies[index] = joined[start:end].view(tensor.dtype).reshape(tensor.shape)
        start = end
    return copies


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _is_wanted(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.device.type != "cpu" and 0 < value.numel() <= LARGEST
        and not value.is_floating_point() and value.element_size() in _WORDS
    )  # fmt: skip


def _find(value: Any, found: dict[int, torch.Tensor], seen: set[int], depth: int) -> None:
    if _is_wanted(value):
        found[id(value)] = value
    elif depth and id(value) not in seen:
        seen.add(id(value))
        for one in _parts(value):
            _find(one, found, seen, depth - 1)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    return _attributes(value).values()


def _attributes(value: Any) -> Mapping[str, Any]:
    attributes = getattr(value, "__dict__", None)
    is_data = not isinstance(value, torch.Tensor | torch.nn.Module | type) and not callable(value)
    return attributes if isinstance(attributes, dict) and is_data else {}


def _rebuilt(value: Any, copies: Mapping[int, torch.Tensor], known: dict[int, Any], depth: int) -> Any:
    if id(value) in copies:
        return copies[id(value)]
    if not depth:
        return value
    if id(value) not in known:
        known[id(value)] = _remade(value, copies, known, depth - 1)
    return known[id(value)]


def _remade(value: Any, copies: Mapping[int, torch.Tensor], known: dict[int, Any], depth: int) -> Any:
    def parts(of: Iterable[Any]) -> Iterator[Any]:
        return (_rebuilt(one, copies, known, depth) for one in of)

    if isinstance(value, Mapping):
        return dict(zip(value, parts(value.values()), strict=True))
    if isinstance(value, list):
        return list(parts(value))
    if isinstance(value, tuple):
        made = tuple(parts(value))
        return type(value)(*made) if hasattr(value, "_fields") else made
    attributes = _attributes(value)
    changed = dict(zip(attributes, parts(attributes.values()), strict=True))
    if all(changed[name] is attributes[name] for name in attributes):
        return value
    remade = copy.copy(value)
    remade.__dict__.update(changed)
    return remade
