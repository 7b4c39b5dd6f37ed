"""Bytes of another dtype in recycled blocks, and the list of blocks to zero."""

from __future__ import annotations

from ...base.observe import Record
from ..cache import CacheManager
from ..plan import Plan
from ..runner import Runner


class StaleFp32BytesNan(Runner):
    """vLLM #27264, #35219: a freed state block became an attention block without being zeroed. Its fp32 bytes read
    as NaN in the KV dtype, and attention multiplies masked slots by 0: 0 * NaN = NaN."""

    def zero_blocks(self, plan: Plan, records: list[Record]) -> None:
        pass


class ZeroListNeverDrained(CacheManager):
    """vLLM #44175, #44490: new blocks were recorded by kind of group, but drained only for models with mamba
    layers, so pure attention models let the list grow for ever."""

    def take_blocks_to_zero(self) -> list[int]:
        return super().take_blocks_to_zero() if self.layout.zeroing else []
