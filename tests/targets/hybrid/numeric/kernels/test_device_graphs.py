"""Captured kernels read their index tensors at every replay; ids staged in pinned memory arrive in order."""

from typing import Any

import pytest
from device_support import HAS_GPU, ints, normal, torch

from hybridfuzz.targets.hybrid.numeric.kernels import torch_reference
from hybridfuzz.targets.hybrid.numeric.kernels.implementations import implementation
from hybridfuzz.targets.hybrid.numeric.kernels.metadata import Rows, Stops
from hybridfuzz.targets.hybrid.numeric.kernels.ops import Ops

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="no GPU here")]


class Model:
    """One layer of each kind on persistent buffers; `forward` is what a decode graph captures."""

    def __init__(self, ops: Ops, device: str) -> None:
        def make(seed: int, *shape: int) -> Any:
            return normal(seed, *shape).to(device)

        self.ops, self.device = ops, device
        self.table, self.states = (torch.zeros(3, 4, dtype=torch.int32, device=device) for _ in range(2))
        self.computed, self.columns, self.offsets, self.scheduled, self.lengths = (
            torch.zeros(3, dtype=torch.int32, device=device) for _ in range(5)
        )
        self.row_map = ints([0, 1, 2]).to(device)
        self.rows = Rows(torch.zeros(4, dtype=torch.int32, device=device), 2)
        self.keys, self.values = make(1, 9, 4, 2, 8), make(2, 9, 4, 2, 8)
        self.conv, self.temporal, self.delta = make(3, 9, 5, 12), make(4, 9, 2, 6, 8), make(5, 9, 2, 8, 8)
        self.hidden = torch.zeros(6, 64, device=device)
        self.weight, self.bias, self.heads = make(6, 12, 4), make(7, 12), -make(8, 2).abs()
        self.slots = torch.zeros(6, dtype=torch.int64, device=device)
        self.sources, self.windows = (torch.zeros(3, dtype=torch.int32, device=device) for _ in range(2))
        self.targets = torch.zeros(3, 2, dtype=torch.int32, device=device)
        self.running = torch.zeros(3, dtype=torch.int32, device=device)
        self.time, self.gate = torch.zeros(6, 2, device=device), torch.zeros(6, 2, device=device)
        self.zero = torch.zeros(3, dtype=torch.int32, device=device)
        shapes = ((6, 2, 8), (6, 12), (6, 2, 6), (6, 2, 8))
        self.outputs = [torch.zeros(*shape, device=device) for shape in shapes]
        starts = torch.arange(4, dtype=torch.int32, device=device) * 2
        self.stops = Stops(starts, ints([1, 2] * 3).to(device), self.targets.view(-1))

    def set(self, seed: int) -> None:
        """Draw other rows, blocks and inputs; one row is padding."""
        generator = torch.Generator().manual_seed(seed)
        blocks = torch.randperm(8, generator=generator).int() + 1
        self.table.copy_(torch.tensor([[blocks[0], blocks[1], 0, 0], [blocks[2], 0, 0, 0], [0] * 4]))
        self.states.copy_(torch.tensor([[blocks[3], blocks[4], blocks[5], 0], [0, blocks[6], blocks[7], 0], [0] * 4]))
        self.computed.copy_(ints([4 + seed % 2, 1 + seed % 2, 0]))
        self.scheduled.copy_(ints([2, 1 + seed % 2, 0]))
        self.columns.copy_(ints([0, 1, 0]))
        self.offsets.copy_(ints([seed % 2, 0, 0]))
        self.lengths.copy_(self.computed + self.scheduled)
        self.rows.starts[1:].copy_(self.scheduled.cumsum(0))
        self.hidden.copy_(torch.randn(6, 64, generator=generator) * 0.5)
        self.time.copy_(self.hidden[:, 62:64].abs())
        self.gate.copy_(-self.time)
        for output in self.outputs:
            output.zero_()

    def forward(self) -> None:
        ops, rows, hidden = self.ops, self.rows, self.hidden
        attended, convolved, scanned, corrected = self.outputs
        ops.slot_mapping(self.table, self.row_map, rows, self.computed, self.slots, block_size=4)
        ops.state_indices(
            self.states, self.row_map, self.computed, self.scheduled, self.columns, self.offsets,
            self.sources, self.windows, self.targets, mode="align", block_size=4,
        )  # fmt: skip
        self.running.copy_(self.targets[:, 0])
        key, value = hidden[:, :16].view(6, 2, 8), hidden[:, 16:32].view(6, 2, 8)
        ops.write_kv(key, value, self.keys, self.values, self.slots)
        query = hidden[:, 32:48].view(6, 2, 8)
        ops.paged_attention(query, self.keys, self.values, self.table, rows, self.lengths, attended, scale=0.3)
        ops.conv_update(
            hidden[:, :12], self.weight, self.bias, self.conv, rows, self.windows, self.offsets,
            self.running, convolved,
        )  # fmt: skip
        x, dt = hidden[:, 20:32].view(6, 2, 6), self.time
        b, c = hidden[:, 32:40].view(6, 1, 8), hidden[:, 40:48].view(6, 1, 8)
        source = self.sources[:, None]
        ops.state_update(
            self.temporal, x, dt, self.heads, b, c, self.heads, rows, source, self.zero, self.targets, scanned
        )  # fmt: skip
        ops.delta_rule(self.delta, query, key, value, self.gate, dt, rows, source, self.zero, self.stops, corrected)


def test_a_replayed_graph_follows_its_buffers() -> None:
    compiled, plain = Model(implementation("cuda"), "cuda"), Model(torch_reference, "cpu")
    compiled.forward()  # compiles; all rows are padding
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled.forward()
    for seed in range(12):
        compiled.set(seed)
        plain.set(seed)
        graph.replay()
        plain.forward()
        for one, other in zip(compiled.outputs, plain.outputs, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
        for name in ("keys", "values", "conv", "temporal", "delta", "slots", "targets"):
            torch.testing.assert_close(getattr(compiled, name).cpu(), getattr(plain, name), rtol=1e-4, atol=1e-5)
