"""A random case of a state kernel: rows of a batch, the slots of their states, and memory full of NaN."""

from __future__ import annotations

import random
from typing import Any

EPSILON = 2.0**-24
"""Unit roundoff of float32."""
FAR = (1 << 31) + (1 << 20)
"""Bytes between two states of a case that crosses 2^31."""


class Case:
    """What all kernels share: rows, slots of their states, tensors."""

    def __init__(self, draw: random.Random, device: str, drafts: bool = False, prefill: bool = False) -> None:
        import torch

        self.torch, self.draw, self.device = torch, draw, device
        self.generator = torch.Generator().manual_seed(draw.getrandbits(32))
        self.rows = draw.randint(1, 5)
        self.most = draw.randint(2, 5) if drafts else 1
        self.lengths = [draw.choice((self.most, draw.randint(1, self.most), 0)) for _ in range(self.rows)]
        if prefill:
            self.lengths = [draw.choice((1, 2, 15, 16, 17, 33, 63, 64, 65, draw.randint(1, 90))) for _ in self.lengths]
        elif not drafts:
            self.lengths = [1] * self.rows
        if not any(self.lengths):
            self.lengths[0] = self.most
        self.has_initial = [draw.random() < 0.6 for _ in range(self.rows)]
        self.starts = [sum(self.lengths[:row]) for row in range(self.rows + 1)]
        self.tokens = self.starts[-1]
        self.null = [draw.random() < 0.2 for _ in range(self.rows)]
        self.far = device == "cuda" and draw.random() < 0.15
        self.slots = 3 if self.far else self.rows * self.most + 3
        self.accepted = [draw.randint(1, self.most) for _ in range(self.rows)]
        self.drafts = drafts
        free = list(range(1, self.slots))
        draw.shuffle(free)
        if self.far:  # one live row whose states are the last slot
            self.null = [row > 0 for row in range(self.rows)]
        self.table = [
            [0 if self.null[row] else (2 if self.far else free.pop()) for _ in range(self.most)]
            for row in range(self.rows)
        ]
        if self.far and self.most > 1:
            self.accepted[0] = 1

    def numbers(self, *shape: int, scale: float = 1.0) -> Any:
        """Random values on the device."""
        return (scale * self.torch.randn(shape, generator=self.generator)).to(self.device)

    def integers(self, values: Any) -> Any:
        """int32 on the device."""
        return self.torch.tensor(values, dtype=self.torch.int32, device=self.device)

    def states(self, *shape: int) -> tuple[Any, Any]:
        """(memory of NaN, view [slots, *shape] of it): each state in a larger page."""
        torch, size = self.torch, 1
        for one in shape:
            size *= one
        stride = FAR // 4 if self.far else size + self.draw.choice((0, 4, 16))
        memory = torch.full((stride * (self.slots - 1) + size,), float("nan"), device=self.device)
        strides, each = [], size
        for one in shape:
            each //= one
            strides.append(each)
        view = memory.as_strided((self.slots, *shape), (stride, *strides))
        for row in range(self.rows):
            if not self.null[row]:
                slot = self.table[row][self.accepted[row] - 1 if self.drafts else 0]
                view[slot] = self.numbers(*shape)
        return memory, view


def close(name: str, found: Any, wanted: Any, bound: Any) -> str:
    """Empty, or how far a result is off."""
    error = (found.double().cpu() - wanted).abs()
    bad = ~(error <= bound)
    if not bool(bad.any()):
        return ""
    worst = float((error / bound).nan_to_num(float("inf")).max())
    return f"{name}: {int(bad.sum())} of {bad.numel()} values, up to {worst:.3g} times the bound"


def untouched(case: Case, memory: Any, before: Any, view: Any, live: set[int]) -> str:
    """Empty, or that memory outside of the live states changed."""
    if case.far:
        return ""  # 4 GiB of NaN: only the states are looked at
    mask = case.torch.ones_like(memory, dtype=case.torch.bool)
    mask.as_strided(view.shape, view.stride())[sorted(live)] = False
    same = memory.view(case.torch.int32) == before.view(case.torch.int32)
    return "" if bool(same[mask].all()) else "memory outside of the live states changed"


def live_slots(case: Case) -> set[int]:
    """Slots that the kernel may write."""
    return {
        case.table[row][token]
        for row in range(case.rows) if not case.null[row]
        for token in range(case.lengths[row] if case.drafts else 1)
    }  # fmt: skip


def kept(case: Case, memory: Any) -> Any:
    return None if case.far else memory.clone()
