"""The simulated devices: which operations a GPU would refuse, or run before a copy has arrived."""

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")
from hybridfuzz.targets.base.protocol import EngineError  # noqa: E402
from hybridfuzz.targets.transformers.devices import OnHost, plain, simulated  # noqa: E402


def test_a_tensor_on_the_host_does_not_mix_with_one_on_the_accelerator() -> None:
    with simulated():
        host = torch.ones(2).to("cpu")
        assert host.device != torch.ones(1).device
        assert isinstance(host * host, OnHost)
        with pytest.raises(EngineError, match="add` mixes tensors"):
            torch.add(host, torch.ones(2))
        assert (torch.ones(3)[torch.tensor([1]).to("cpu")]).tolist() == [1.0], "indices of the host are allowed"


def test_a_prefetched_tensor_is_usable_after_its_stream_was_waited_for() -> None:
    with simulated():
        device, stream = torch.ones(1).device, torch.Stream()
        host = torch.arange(3).to("cpu")
        default = torch.cuda.default_stream(device)
        stream.wait_stream(default)
        with stream:
            fetched = host.to(device)
        with pytest.raises(EngineError, match="`add` uses a tensor that another stream copies"):
            torch.add(fetched, 1)
        default.wait_stream(stream)
        assert torch.add(fetched, 1).tolist() == [1, 2, 3]


def test_a_copy_to_the_host_is_awaited_before_it_is_prefetched() -> None:
    """transformers before 5.23 did not."""
    with simulated():
        device, stream = torch.ones(1).device, torch.Stream()
        host = torch.ones(1).to("cpu")
        with stream, pytest.raises(EngineError, match="`to` uses"):
            host.to(device)


def test_changes_in_place_and_copies_keep_the_place() -> None:
    with simulated():
        host = torch.ones(2).to("cpu")
        host.zero_()
        host.copy_(torch.full((2,), 3.0))
        copy = deepcopy(host)
        assert isinstance(copy, OnHost)
    assert plain(copy).tolist() == plain(host).tolist() == [3.0, 3.0]
