"""Faults of the environment: no memory left, a device that is gone. They show nothing about the engine.

A fault is recognised by the type of an exception, by the error code of the device's runtime, and by the runtime's own
names and sentences where an exception has no code. An illegal access, a failed launch or an assertion on the device is
none of them: those are the engine's. A process that the kernel killed for want of memory gets its fault where its loss
is noticed (`workers.worker_process`). Where processes share a device (`SHARED_DEVICE`), such a fault of one ends all,
and does not say whose it was: there it shows nothing, until the trace runs in a process that shares nothing.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ...targets.base.launch import SHARED_DEVICE
from ...targets.base.protocol import TargetError
from ..quoting import one_line

FaultKind = Literal["out of memory", "device unavailable", "fault of a shared device"]

MESSAGE_MAX = 300
_TYPES = frozenset({"torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "cupy.cuda.memory.OutOfMemoryError"})
_CODES: dict[int, FaultKind] = {
    2: "out of memory",  # cudaErrorMemoryAllocation
    46: "device unavailable",  # cudaErrorDevicesUnavailable
    100: "device unavailable",  # cudaErrorNoDevice
    214: "device unavailable",  # cudaErrorECCUncorrectable
    220: "device unavailable",  # cudaErrorNvlinkUncorrectable
    802: "device unavailable",  # cudaErrorSystemNotReady
    **dict.fromkeys(range(805, 811), "device unavailable"),  # cudaErrorMps...: its server is gone or full
}
_FATAL_CODES = frozenset({700, 710, 714, 715, 716, 717, 718, 719})
"""cudaErrorIllegalAddress, Assert, HardwareStackError, IllegalInstruction, MisalignedAddress, InvalidAddressSpace,
InvalidPc, LaunchFailure: a context cannot be used after them."""
"""Codes of CUDA's runtime and driver, which agree on these. PyTorch's AcceleratorError has them as `error_code`."""
_NAMES: dict[str, FaultKind] = {
    "out of memory": "out of memory",
    "cudaErrorMemoryAllocation": "out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY": "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED": "out of memory",
    "CUDNN_STATUS_ALLOC_FAILED": "out of memory",
    "CUDA-capable device(s) is/are busy or unavailable": "device unavailable",
    "cudaErrorDevicesUnavailable": "device unavailable",
    "no CUDA-capable device is detected": "device unavailable",
    "uncorrectable ECC error encountered": "device unavailable",
    "cudaErrorECCUncorrectable": "device unavailable",
    "uncorrectable NVLink error": "device unavailable",
    "GPU is lost": "device unavailable",
    "device lost": "device unavailable",
    "MPS server": "device unavailable",
    "MPS client": "device unavailable",
}
"""Names and sentences that follow the runtime's prefix (`_RUNTIME`)."""
_FATAL_NAMES = (
    "an illegal memory access", "device-side assert", "hardware stack error", "illegal instruction",
    "misaligned address", "operation not supported on global/shared address space", "invalid program counter",
    "unspecified launch failure",
)  # fmt: skip
_RUNTIME = re.compile(
    r"^(?: *what\(\): *)?"
    r"(?:CUDA (?:driver |runtime )?error|HIP error|Triton Error \[(?:CUDA|HIP)\]|cuDNN error|NVML error|NVRM: Xid"
    r"|Unexpected error from cudaGetDeviceCount)"
    r"[^:\n]*: (.*)",
    re.MULTILINE,
)
_ALLOCATORS = re.compile(
    r"^(?: *what\(\): *)?(?:CUDA|HIP) out of memory\. Tried to allocate"
    r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory"
    r"|^terminate called after throwing an instance of 'std::bad_alloc'",
    re.MULTILINE,
)


class EnvironmentFault(Struct, frozen=True):
    """What the environment lacks. `message` is one line, of whoever noticed."""

    kind: FaultKind
    message: str

    @property
    def is_shared(self) -> bool:
        """Return True if it may be a fault of any process that shares the device."""
        return self.kind == "fault of a shared device"

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class FaultyEnvironment(TargetError):
    """A trace could not run, or a target could not start, because of the environment."""

    def __init__(self, fault: EnvironmentFault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def fault_of(error: BaseException) -> EnvironmentFault | None:
    """Return the environment's fault behind an exception of this process, None if there is none.

    Engines wrap exceptions, so its causes count, and those while which it was raised.
    """
    shares = SHARED_DEVICE in os.environ
    for one in _chain(error):
        if isinstance(one, FaultyEnvironment):
            return one.fault
        text = _text(one)
        if kind := _kind(one, text, shares=shares):
            first = next(filter(None, text.splitlines()), type(one).__name__)
            return EnvironmentFault(kind, one_line(first, MESSAGE_MAX))
    return None


def fault_in_words(words: str, *, shares: bool = False) -> EnvironmentFault | None:
    """Return the environment's fault that the last words of a process tell, None if they tell none. `shares`: it shared
    its device."""
    kind = _kind_of_words(words, shares=shares)
    line = next((line for line in words.splitlines() if _kind_of_words(line, shares=shares)), "")
    return EnvironmentFault(kind, one_line(line.strip(), MESSAGE_MAX)) if kind else None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, those in it if it is a group, and those behind it."""
    todo: list[BaseException | None] = [error]
    seen = set[int]()
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        todo += [None if one.__suppress_context__ else one.__context__, one.__cause__]
        todo += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def _kind(error: BaseException, text: str, *, shares: bool) -> FaultKind | None:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "out of memory"
    if any(f"{kind.__module__}.{kind.__qualname__}" in _TYPES for kind in type(error).__mro__):
        return "out of memory"
    if not isinstance(error, RuntimeError):  # the runtime's errors are: other types are the engine's own
        return None
    code = getattr(error, "error_code", None) if type(error).__name__ == "AcceleratorError" else None
    if not isinstance(code, int):
        return _kind_of_words(text, shares=shares)
    return "fault of a shared device" if shares and code in _FATAL_CODES else _CODES.get(code)


def _kind_of_words(words: str, *, shares: bool) -> FaultKind | None:
    for said in _RUNTIME.findall(words):
        for name, kind in _NAMES.items():
            if name in said:
                return kind
        if shares and any(name in said for name in _FATAL_NAMES):
            return "fault of a shared device"
    return "out of memory" if _ALLOCATORS.search(words) else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an exception that cannot be printed says nothing
        return ""
