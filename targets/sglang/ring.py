"""The ring of inputs with which gated delta nets decode (ReplaySSM, `--enable-linear-replayssm`).

A decode appends its input to the ring of its slot and leaves the stored state as it is. What it reads is the stored
state with the first entries of the ring folded in, as many as the slot's cursor says; when the ring is full, or the
length is a multiple of `--mamba-track-interval`, the new state is stored and the cursor is set to 0. SGLang's backend
reads the cursors, marks the boundaries and moves the cursors on, once for each batch of decodes; the layer stands for
`fused_recurrent_gdn_replayssm_decode`. A prefill reads and stores the state alone.
"""

from __future__ import annotations

from typing import Any

from .batch_rows import Replay


def replays(metadata: Any, entries: int) -> list[Replay]:
    """Return the replay of each row of a decode, by the metadata of the backend and the entries of a ring.

    The kernel stores the state where the cursor is at the last entry, too.
    """
    marks = metadata.replayssm_force_flush.tolist()
    return [
        Replay(cursor, bool(mark) or cursor == entries - 1)
        for cursor, mark in zip(metadata.replayssm_write_pos.tolist(), marks, strict=True)
    ]
