"""The operations in plain torch, on any device: loops over rows and tokens, written to be read.

They are the implementation of machines without a GPU and what the kernels are tested against. They read index
tensors on the host, so a CUDA graph cannot capture them.

attention  over paged keys and values
mixers     convolution, Mamba 2, gated delta net
moves      moves of bytes, writing KV
tables     from rows and columns to block ids and slots
"""

from .attention import paged_attention
from .mixers import chunk_scan, conv_prefill, conv_update, delta_rule, state_update
from .moves import copy_regions, write_kv, zero_blocks
from .tables import boundary_stops, gather_columns, slot_mapping, state_indices

__all__ = [
    "boundary_stops",
    "chunk_scan",
    "conv_prefill",
    "conv_update",
    "copy_regions",
    "delta_rule",
    "gather_columns",
    "paged_attention",
    "slot_mapping",
    "state_indices",
    "state_update",
    "write_kv",
    "zero_blocks",
]
