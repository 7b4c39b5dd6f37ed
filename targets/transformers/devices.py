"""An accelerator, a host and two streams, simulated on a CPU, so that the library's cache offload runs.

Plain tensors are on the accelerator. `Cache.offload` moves a layer's tensors to the host (`.to("cpu")`), `prefetch`
copies them back on a stream of its own, and `update` waits for that stream. On a CPU these are no moves at all, and
`torch.cuda.default_stream` raises. While `Devices` is active (a `TorchFunctionMode`), tensors of the host and copies
that their stream has not finished are marked, and an operation that a GPU would refuse, or would run on incomplete
memory, raises an `EngineError`. Only streams and the place of a tensor are replaced; what is moved when is the
library's.

Source: `transformers.cache_utils` (`Cache.update`, `offload`, `prefetch`), 5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ..base.protocol import EngineError

HOST = torch.device("meta")
"""The device that tensors of the host report: any that differs from that of plain tensors."""


class Moved(torch.Tensor):
    """The result of a copy between the devices: the `number`-th operation of its stream."""

    __torch_function__: Any = torch._C._disabled_torch_function_impl
    stream: Stream
    number: int

    def __deepcopy__(self, memo: Any) -> Moved:
        """Return a copy in the same place and state."""
        return _moved(type(self), _copied(self), self.stream, self.number)

    def has_arrived(self, on: Stream) -> bool:
        """Return True if an operation of the stream `on` comes after the copy."""
        return on is self.stream or on.waited.get(id(self.stream), 0) > self.number


Place = TypeVar("Place", bound=Moved)


class OnHost(Moved):
    """A tensor in the host's memory."""


class Fetched(Moved):
    """A tensor that was copied back to the accelerator."""


class Stream:
    """A stand-in for `torch.Stream`.

    issued  copies that it was given
    waited  id of another stream -> that stream's copies that this one's later work comes after
    """

    current: Stream | None = None

    def __init__(self) -> None:
        self.issued = 0
        self.waited: dict[int, int] = {}

    def __enter__(self) -> Stream:
        Stream.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Stream.current = None

    def __deepcopy__(self, memo: Any) -> Stream:
        """Streams are resources: a copy of a cache uses the same one."""
        return self

    def wait_stream(self, other: Stream) -> None:
        """Let all later work of this stream come after what `other` has been given."""
        self.waited[id(other)] = other.issued


class Devices(TorchFunctionMode):
    """Follows where tensors are, and raises EngineError for an operation across devices or on an incomplete copy."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "to":
            return _to(func, args, kwargs)
        if name == "__get__":
            is_device = func == torch.Tensor.device.__get__
            return HOST if is_device and isinstance(args[0], OnHost) else func(*args, **kwargs)
        if name in METADATA:
            return func(*args, **kwargs)
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        for one in tensors:
            if isinstance(one, Fetched) and not one.has_arrived(_DEFAULT):
                unfinished_copy(name)
        hosted = [isinstance(one, OnHost) for one in tensors]
        indexed = name == "__getitem__" and not hosted[0]  # indices of the host are allowed
        if any(hosted) and not all(hosted) and name != "copy_" and not indexed:
            two_devices(name)
        result = func(*tree_map_only(torch.Tensor, plain, args), **tree_map_only(torch.Tensor, plain, kwargs))
        if name == "copy_":
            return args[0]
        return tree_map_only(torch.Tensor, _host_result, result) if hosted and hosted[0] else result


def unfinished_copy(name: str) -> None:
    """Raise EngineError: an operation uses memory that another stream may still be copying to."""
    raise EngineError(f"`{name}` uses a tensor that another stream copies, and its own stream has not waited for that")


def two_devices(name: str) -> None:
    """Raise EngineError: on a GPU the operation ends in "Expected all tensors to be on the same device"."""
    raise EngineError(f"`{name}` mixes tensors of the host (offloaded) and of the accelerator")


METADATA = frozenset(
    {"size", "dim", "numel", "stride", "is_contiguous", "is_floating_point", "__len__", "__repr__", "__deepcopy__"}
)
"""Methods that use no content on a device."""


@contextmanager
def simulated() -> Iterator[None]:
    """Simulate the devices in the body."""
    with (
        patch.object(torch, "Stream", Stream),
        patch.object(torch.cuda, "default_stream", lambda device=None: _DEFAULT),
        Devices(),
    ):
        yield


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the content of a tensor, wherever it is; it shares the memory."""
    if not isinstance(tensor, Moved):
        return tensor
    with torch._C.DisableTorchFunction():
        return tensor.as_subclass(torch.Tensor)


def _to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Execute `Tensor.to` on the current stream: "cpu" and `HOST` are the host, other devices the accelerator."""
    tensor, wanted = args[0], kwargs.get("device", args[1] if len(args) > 1 else None)
    stream = Stream.current or _DEFAULT
    if isinstance(tensor, Moved) and isinstance(wanted, str | torch.device) and not tensor.has_arrived(stream):
        unfinished_copy("to")
    if wanted == "cpu" if isinstance(wanted, str) else wanted == HOST:
        return _issued(OnHost, tensor, stream)
    if isinstance(tensor, OnHost):
        if isinstance(wanted, torch.device):
            return _issued(Fetched, tensor, stream)
        return _host_result(func(plain(tensor), *args[1:], **kwargs))
    return func(plain(tensor), *args[1:], **kwargs)


def _issued(kind: type[Moved], tensor: torch.Tensor, stream: Stream) -> Moved:
    stream.issued += 1
    return _moved(kind, _copied(tensor), stream, stream.issued - 1)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return plain(tensor).clone()


def _host_result(tensor: torch.Tensor) -> OnHost:
    """Return the result of an operation of the host's processor, which is there at once."""
    return _moved(OnHost, plain(tensor), _DEFAULT, -1)


def _moved(kind: type[Place], tensor: torch.Tensor, stream: Stream, number: int) -> Place:
    with torch._C.DisableTorchFunction():
        moved: Place = torch.Tensor._make_subclass(kind, tensor)
    moved.stream, moved.number = stream, number
    return moved


_DEFAULT = Stream()
