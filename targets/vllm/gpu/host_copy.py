"""Copies small integer tensors of the device to the host, many at a time.

Each read of a device tensor waits for the device, and for every other process that shares it. What the mirror reads in
one forward is therefore copied at once: `on_host` rebuilds containers and metadata objects around host tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from . import jitter

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
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(index)
    # In descending order of their elements' size, so that each is aligned.
    groups = sorted(by_dtype.items(), key=lambda group: -group[0].itemsize)
    with torch.inference_mode():
        parts = [torch.cat([tensors[index].reshape(-1) for index in indices]) for _, indices in groups]
        joined = torch.cat([part.view(torch.uint8) for part in parts]).cpu()
    jitter.behind_read()
    copies: list[torch.Tensor] = [joined] * len(tensors)
    start = 0
    for (dtype, indices), part in zip(groups, parts, strict=True):
        end = start + part.numel() * dtype.itemsize
        flat = torch.split_with_sizes(joined[start:end].view(dtype), [tensors[index].numel() for index in indices])
        for index, one in zip(indices, flat, strict=True):
            shape = tensors[index].shape
            copies[index] = one if len(shape) == 1 else one.reshape(shape)
        start = end
    return copies


def _is_wanted(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.device.type != "cpu" and 0 < value.numel() <= LARGEST
        and not value.is_floating_point() and not value.is_complex()
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
