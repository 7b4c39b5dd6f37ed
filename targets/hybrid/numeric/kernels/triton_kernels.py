"""The Triton kernels' launch functions: the implementation of a GPU, or of Triton's interpreter in tests."""

from .attention import paged_attention
from .conv import conv_prefill, conv_update
from .copies import copy_regions
from .delta import delta_rule
from .kv_cache import write_kv
from .ssm import chunk_scan, state_update
from .tables import boundary_stops, gather_columns, slot_mapping, state_indices
from .zeroing import zero_blocks

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
