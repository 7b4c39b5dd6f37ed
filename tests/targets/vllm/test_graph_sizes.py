"""Graphs fit into the engine's buffers. Runs in the engine's environment."""

import pytest
from hybridfuzz.targets.base.trace import Config, Group

pytestmark = pytest.mark.engine


def test_piecewise_graphs_fit_into_the_buffers() -> None:
    """Rows of a decode graph times their drafts may exceed the budget; vLLM's capture asserted on such a size."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm.v1")
    from hybridfuzz.targets.vllm.gpu.configuration import configure

    config = Config(
        num_blocks=60,
        groups=(Group("mamba", 32), Group("attention", 32)),
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=31,
        num_speculative_tokens=3,
        graph_sizes=(1, 2, 4, 8),
        options={"graphs": "piecewise", "mixer": "gdn", "runner": "v1"},
    )
    made = configure(config, torch.device("cpu"))
    assert made.scheduler_config.max_num_batched_tokens == 31
    assert made.compilation_config.cudagraph_capture_sizes == [1, 2, 4, 8, 16, 31]
    assert made.compilation_config.max_cudagraph_capture_size == 31
