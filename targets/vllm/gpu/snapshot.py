"""Restores everything that can be reached from some objects to what it was at one moment.

An engine takes seconds to build, and a trace takes a tenth of that. So an engine is kept, and reset between traces.
Nothing here knows vLLM: a walk from the engine's objects finds every tensor, array, container and attribute, and
`restore` puts back bytes and references in place. Addresses stay, so captured graphs stay valid.

    tensors           the bytes of each storage, by address; storages that are `refilled` by the caller are left out
    NumPy arrays      their bytes
    lists, dicts, sets, deques    their elements
    other objects     their attributes (`__dict__`, `__slots__`), cells of closures

Objects of other types cannot be reset; `Snapshot.unknown` counts them by type.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch

_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type, types.ModuleType, types.BuiltinFunctionType,
    types.CodeType, types.GenericAlias, types.UnionType, types.NotImplementedType, Enum, torch.dtype, torch.device,
    torch.Size, torch.layout, torch.Stream, torch.Event, np.dtype, np.generic, type(Ellipsis),
)  # fmt: skip
"""Values that do not change, and handles of the device."""
_UNCHANGED = frozenset({"threading", "_thread", "logging", "re", "concurrent", "inspect", "importlib", "triton"})
"""Packages whose objects are no state of an engine: locks, loggers, thread pools, compiled kernels."""


class Snapshot:
    """What was reachable, and what it held."""

    def __init__(self, roots: Iterable[object], refilled: Iterable[torch.Tensor] = ()) -> None:
        self.unknown: Counter[str] = Counter()
        """Types of objects that the walk met and cannot restore."""
        self._skipped = {tensor.untyped_storage().data_ptr() for tensor in refilled}
        self._undo: list[Callable[[], None]] = []
        self._storages: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._seen: dict[int, object] = {}
        """Kept alive, so that an address names one object."""
        todo = deque(roots)
        while todo:
            todo.extend(self._visit(todo.popleft()))

    def restore(self) -> None:
        """Put everything back. Nothing may be under way on the device."""
        for undo in self._undo:
            undo()
        for device in {one.device for one, _ in self._storages.values()}:
            pairs = [pair for pair in self._storages.values() if pair[0].device == device]
            with torch.inference_mode():
                torch._foreach_copy_([now for now, _ in pairs], [then for _, then in pairs])

    @property
    def size(self) -> tuple[int, int]:
        """(objects, bytes of tensors)."""
        return len(self._seen), sum(then.numel() for _, then in self._storages.values())

    def _visit(self, one: object) -> Iterable[object]:
        """Keep one object; return what it refers to."""
        if isinstance(one, _ATOMS) or id(one) in self._seen:
            return ()
        if type(one).__module__.partition(".")[0] in _UNCHANGED:
            return ()
        self._seen[id(one)] = one
        if isinstance(one, torch.Tensor):
            return self._tensor(one)
        if isinstance(one, np.ndarray):
            return self._array(one)
        if isinstance(one, tuple | frozenset) and not hasattr(one, "__dict__"):
            return one
        if isinstance(one, types.FunctionType | types.MethodType | weakref.ref):
            return self._callable(one)
        return [*self._elements(one), *self._attributes(one)]

    def _tensor(self, tensor: torch.Tensor) -> Iterable[object]:
        if tensor.device.type == "meta" or tensor.layout != torch.strided:
            return ()
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address and address not in self._skipped and address not in self._storages:
            now = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._storages[address] = now, now.clone()
        return self._dictionary(tensor)

    def _array(self, array: Any) -> Iterable[object]:
        if array.dtype == object:
            return list(array.flat)
        if array.flags.writeable:
            self._undo.append(partial(np.copyto, array, array.copy()))
        return ()

    def _callable(self, one: Any) -> Iterable[object]:
        if isinstance(one, types.MethodType):
            return (one.__self__, one.__func__)
        if isinstance(one, weakref.ref):
            return (one(),)
        found = []
        for cell in one.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                found.append(cell.cell_contents)
                self._undo.append(partial(setattr, cell, "cell_contents", found[-1]))
        return [*found, *(one.__defaults__ or ()), *self._dictionary(one)]

    def _elements(self, one: Any) -> Iterable[object]:
        if isinstance(one, dict):
            pairs, kind = dict(one), OrderedDict if isinstance(one, OrderedDict) else dict

            def refill() -> None:
                kind.clear(one)
                kind.update(one, pairs)

            self._undo.append(refill)
            return [*pairs, *pairs.values()]
        if isinstance(one, list | deque | set | bytearray):
            then = list(one)

            def extend() -> None:
                one.clear()
                (one.update if isinstance(one, set) else one.extend)(then)

            self._undo.append(extend)
            return then
        return one if isinstance(one, tuple | frozenset) else ()

    def _attributes(self, one: Any) -> Iterable[object]:
        found = list(self._dictionary(one))
        slots = [name for kind in type(one).__mro__ for name in _slots(kind)]
        held = {name: getattr(one, name) for name in slots if hasattr(one, name)}
        if held:

            def set_back() -> None:
                for name in slots:
                    if name not in held:
                        with suppress(AttributeError):
                            delattr(one, name)
                    elif getattr(one, name, None) is not held[name]:
                        setattr(one, name, held[name])

            self._undo.append(set_back)
        elif not hasattr(one, "__dict__") and not isinstance(one, _CONTAINERS):
            kind = type(one)
            if not slots:
                self.unknown[f"{kind.__module__}.{kind.__qualname__}"] += 1
        return [*found, *held.values()]

    def _dictionary(self, one: Any) -> Iterable[object]:
        attributes = getattr(one, "__dict__", None)
        if not isinstance(attributes, dict):
            return ()
        then = dict(attributes)

        def set_back() -> None:
            attributes.clear()
            attributes.update(then)

        self._undo.append(set_back)
        return then.values()


_CONTAINERS = (dict, list, deque, set, bytearray, tuple, frozenset)


def _slots(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    private = f"_{kind.__name__.lstrip('_')}"
    return tuple(
        f"{private}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in names
        if name not in ("__dict__", "__weakref__")
    )
