"""The prefill of Mamba 2 layers: one scan over all tokens of a batch, cut as SGLang's metadata say.

SGLang lays a grid of chunks over the tokens of a batch, whichever request they belong to. Its kernels
(`mamba_chunk_scan_combined`) return the output of each token, the state before each chunk of the grid, and the states
at places of requests that are not on the grid. If a request continues from a state, tables cut chunks where requests
meet (`chunk_indices`, `chunk_offsets`); what they leave out has no output. The last state of a request needs no tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from ..base.shadow import POISON, run_chain

Chain = tuple[int, tuple[int, ...]]
"""The tag that a row starts from, and those after each of its tokens."""


class Scan(NamedTuple):
    """The metadata of a launched prefill, and what of its batch the storing of snapshots reads."""

    metadata: Any
    batch: Any

    def reads_window(self, row: int) -> bool:
        """Return True if the convolution of a row starts from the window in its slot."""
        return bool(self.metadata.mixed_metadata.has_initial_states[row])

    def reads_state(self, row: int) -> bool:
        """Return True if the scan of a row starts from the state in its slot, otherwise it starts from none."""
        return self.reads_window(row) and bool(self.metadata.mixed_metadata.prep_initial_states)

    def outputs(self, chains: Sequence[Chain], inputs: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the tags of each row's outputs, as `_chunk_scan_fwd` computes them."""
        tables = self.metadata.mixed_metadata
        if tables.chunk_indices is None:
            return [tags for _, tags in chains]
        size, owners = tables.chunk_size, tables.seq_idx[0].tolist()
        before, tokens = _before(chains), [token for row in inputs for token in row]
        found = [POISON] * len(tokens)
        cuts = list(zip(tables.chunk_indices.tolist(), tables.chunk_offsets.tolist(), strict=True))
        for (chunk, offset), (following, end) in zip(cuts, [*cuts[1:], (-1, 0)], strict=True):
            first, last = chunk * size + offset, min((chunk + 1) * size, len(tokens))
            if chunk == following:
                last = min(chunk * size + end, last)
            if not 0 <= first < last:
                continue
            is_fresh = offset > 0 or owners[max(chunk * size - 1, 0)] != owners[first]
            start = chains[owners[first]][0] if is_fresh else before[first]
            found[first:last] = run_chain(start, tuple(tokens[first:last]))
        ends = list(accumulate(len(row) for row in inputs))
        return [tuple(found[end - len(row) : end]) for end, row in zip(ends, inputs, strict=True)]

    def chunks(self, chains: Sequence[Chain]) -> torch.Tensor:
        """Return the states before each chunk of the grid, [1, chunks, 1, 1, 1]."""
        before = _before(chains)[:: self.metadata.mixed_metadata.chunk_size]
        return torch.tensor(before, dtype=torch.int64).reshape(1, -1, 1, 1, 1)

    def places(self, chains: Sequence[Chain]) -> torch.Tensor:
        """Return the states at the places that are not on the grid, [1, places, 1, 1, 1]."""
        rows, ends = self.metadata.track_ssm_seq_idx.tolist(), self.metadata.track_ssm_end_locs.tolist()
        first = self.metadata.query_start_loc.tolist()
        found = []
        for row, end in zip(rows, ends, strict=True):
            start, tags = chains[row]
            found.append((start, *tags)[end - first[row]] if 0 <= end - first[row] <= len(tags) else POISON)
        return torch.tensor(found, dtype=torch.int64).reshape(1, -1, 1, 1, 1)


def _before(chains: Sequence[Chain]) -> list[int]:
    """Return the tag before each token."""
    return [tag for start, tags in chains for tag in (start, *tags)[:-1]]
