"""What is a fault of the environment, and what is the engine's."""

import errno

import pytest

from hybridfuzz.harness.judge.environment_fault import EnvironmentFault, FaultyEnvironment, fault_in_words, fault_of

MEMORY, DEVICE = "out of memory", "device unavailable"


def named(name: str, base: type[Exception] = RuntimeError, **fields: object) -> type[Exception]:
    """An exception type as a library names it."""
    module, _, kind = name.rpartition(".")
    return type(kind, (base,), {"__module__": module, **fields})


def accelerator_error(code: int, message: str) -> Exception:
    return named("torch.AcceleratorError", error_code=code)(message)


FAULTS = [
    (MemoryError(), MEMORY),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
    (named("torch.OutOfMemoryError")("CUDA out of memory. Tried to allocate 2.00 MiB."), MEMORY),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 MiB."), MEMORY),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), MEMORY),
    (RuntimeError("CUDA driver error: out of memory"), MEMORY),
    (RuntimeError("Triton Error [CUDA]: out of memory"), MEMORY),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), MEMORY),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:118] . DefaultCPUAllocator: can't allocate memory: you"), MEMORY),
    (accelerator_error(2, "CUDA error: out of memory"), MEMORY),
    (accelerator_error(46, "CUDA error: CUDA-capable device(s) is/are busy or unavailable"), DEVICE),
    (accelerator_error(214, "CUDA error: uncorrectable ECC error encountered"), DEVICE),
    (RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"), DEVICE),
    (RuntimeError("CUDA error: uncorrectable ECC error encountered"), DEVICE),
    (RuntimeError("NVML error: GPU is lost"), DEVICE),
    (
        RuntimeError(
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
            "NumCudaDevices() that might have already set an error? Error 807: MPS server is not ready to accept new "
            "MPS client requests"
        ),
        DEVICE,
    ),
]

THE_ENGINES = [
    RuntimeError("Unexpected error from cudaGetDeviceCount(). Some advice. Error 101: invalid device ordinal"),
    accelerator_error(700, "CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    accelerator_error(1, "CUDA error: invalid argument (not out of memory)"),
    named("triton.runtime.errors.OutOfResources")("out of resource: shared memory, Required: 300000"),
    AssertionError("CUDA error: out of memory"),
    RuntimeError("the block pool is out of memory"),
    RuntimeError("slot 3: CUDA error: out of memory"),
    ValueError("No available memory for the cache blocks."),
    OSError(errno.ENOSPC, "No space left on device"),
]


@pytest.mark.parametrize(("error", "kind"), FAULTS, ids=str)
def test_a_fault_of_the_environment(error: Exception, kind: str) -> None:
    fault = fault_of(error)
    assert fault is not None
    assert fault.kind == kind
    assert "\n" not in fault.message != ""


@pytest.mark.parametrize("error", THE_ENGINES, ids=str)
def test_an_error_of_the_engine(error: Exception) -> None:
    assert fault_of(error) is None


def test_engines_wrap_exceptions() -> None:
    with pytest.raises(KeyError) as caught:
        try:
            raise MemoryError("no room")
        except MemoryError:
            raise KeyError("layer") from None
    assert fault_of(caught.value) is None  # "from None": the engine dealt with it
    with pytest.raises(RuntimeError) as wrapped:
        try:
            raise MemoryError("no room")
        except MemoryError as error:
            raise RuntimeError("the engine core died") from error
    assert fault_of(wrapped.value) == EnvironmentFault(MEMORY, "no room")
    assert fault_of(ExceptionGroup("ranks", [ValueError(), MemoryError("rank 1")])) is not None
    assert fault_of(FaultyEnvironment(EnvironmentFault(DEVICE, "gone"))) == EnvironmentFault(DEVICE, "gone")


def test_last_words() -> None:
    words = (
        "loading\nterminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory\n"
    )
    assert fault_in_words(words) == EnvironmentFault(MEMORY, "what(): CUDA error: out of memory")
    assert fault_in_words("terminate called after throwing an instance of 'std::bad_alloc'") is not None
    assert fault_in_words("  what():  CUDA error: an illegal memory access was encountered") is None
    assert fault_in_words("") is None
