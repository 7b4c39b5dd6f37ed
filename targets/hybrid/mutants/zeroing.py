"""Bytes of another dtype in recycled blocks, and the list of blocks to zero."""

from __future__ import annotations

from ...base.observe import Record
from ..cache import CacheManager
from ..plan import Plan
from ..runner import Runner


class StaleFp32BytesNan(Runner):
    """A recycled state block becomes an attention block without being zeroed.

    vLLM #27264, #35219: its fp32 bytes read as NaN in the KV dtype, and attention multiplies masked slots by 0:
    0 * NaN = NaN.
    """

    def zero_blocks(self, plan: Plan, records: list[Record]) -> None:
        pass


class ZeroListNeverDrained(CacheManager):
    """Blocks to zero are recorded for every model, but drained only for hybrid ones.

    vLLM #44175, #44490: pure attention models let the list grow for ever.
    """

    def take_blocks_to_zero(self) -> list[int]:
        return super().take_blocks_to_zero() if self.layout.zeroing else []


PARTS: dict[str, type] = {
    "stale-fp32-bytes-nan": StaleFp32BytesNan,
    "zero-list-never-drained": ZeroListNeverDrained,
}
