"""Tensors of several dtypes and shapes are read with one copy, and come back as they were."""

import pytest

torch = pytest.importorskip("torch")

from hybridfuzz.targets.vllm.gpu.host_copy import fetched  # noqa: E402


def test_copies_have_values_shape_and_dtype_of_their_tensors() -> None:
    """Slices, transposed tensors and odd lengths of bytes before wider words."""
    tensors = [
        torch.tensor([True, False, True]),
        torch.arange(6, dtype=torch.int32).reshape(2, 3).t(),
        torch.arange(9, dtype=torch.int64)[1:8:2],
        torch.tensor(5, dtype=torch.int32),
        torch.arange(3, dtype=torch.uint8),
        torch.arange(5, dtype=torch.int16),
    ]
    copies = fetched(tensors)
    assert [one.dtype for one in copies] == [one.dtype for one in tensors]
    assert [one.shape for one in copies] == [one.shape for one in tensors]
    assert [one.tolist() for one in copies] == [one.tolist() for one in tensors]
