"""The parameters of a trace's contexts. Importable without llama.cpp and numpy."""

from __future__ import annotations

from typing import NamedTuple

from ..base.trace import Config
from ..sequences.client import sequences_of
from .families import FAMILIES, WINDOW

UNIT = 256
"""llama.cpp rounds the cells of a sequence up to a multiple of this."""
N_BATCH = 4096


class Sizes(NamedTuple):
    """Parameters of a context: fields of `llama_context_params`."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_rs_seq: int = 0
    kv_unified: bool = False
    swa_full: bool = True


def sizes_of(config: Config, planes: int) -> Sizes:
    """Return the parameters of a trace's context, which can keep `planes` snapshots.

    Where attention has a window, cells behind it are given back, as in the server: that is `swa_full` = false.
    """
    sequences = sequences_of(config)
    longest = config.max_model_len + config.num_speculative_tokens + 1
    return Sizes(
        n_ctx=sequences * -(-longest // UNIT) * UNIT,
        n_batch=N_BATCH,
        n_ubatch=int(config.options["ubatch"]),
        n_seq_max=sequences,
        n_rs_seq=planes,
        kv_unified=config.options["kv"] == "unified",
        swa_full=WINDOW not in FAMILIES[config.options["family"]].metadata,
    )


def planes_of(config: Config, has_planes: bool) -> int:
    """Return the snapshots that a context of this configuration keeps, in a build that can."""
    family = FAMILIES[config.options["family"]]
    return int(config.options["planes"]) if has_planes and family.planes else 0
