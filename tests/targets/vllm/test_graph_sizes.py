"""Graphs fit into the engine's buffers. Runs in the engine's environment."""

import pytest

from hybridfuzz.targets.base.trace import Config, Group

pytestmark = pytest.mark.engine


def sizes(**changed: int) -> list[int]:
    """The sizes of the graphs that an engine with piecewise graphs captures."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm.v1")
    from hybridfuzz.targets.vllm.gpu.real_config import configure

    config = Config(
        num_blocks=60,
        groups=(Group("mamba", 32), Group("attention", 32)),
        graph_sizes=(1, 2, 4, 8),
        options={"graphs": "piecewise", "mixer": "gdn", "runner": "v1"},
        **changed,
    )
    made = configure(config, torch.device("cpu"))
    assert made.scheduler_config.max_num_batched_tokens == config.max_num_batched_tokens
    captured = made.compilation_config.cudagraph_capture_sizes
    assert made.compilation_config.max_cudagraph_capture_size == captured[-1]
    return list(captured)


def test_piecewise_graphs_fit_into_the_buffers() -> None:
    """Rows of a decode graph times their drafts may exceed the budget; vLLM's capture asserted on such a size."""
    most = sizes(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=31, num_speculative_tokens=3)
    assert most == [1, 2, 4, 8, 16, 31]


def test_piecewise_graphs_hold_no_request_longer_than_the_model() -> None:
    """Trace 216 of seed 2007 on an H200: the dummy request for a graph of 192 tokens had a block behind its table, and
    the GPU's index assertion ended the process."""
    assert sizes(max_model_len=96, max_num_seqs=1, max_num_batched_tokens=192) == [1, 2, 4, 8, 16, 32, 64, 96]
