"""Starts llama.cpp's own HTTP server in this process, on a free port of loopback, as `llama-server` does: by xllamacpp.

Its cache is float32 and it has one thread, as `context` has. A process is to have one server under test: what the first
one fixes for the whole process (`checkpoint_offsets` in server-context.cpp is a static, made of its `n_ubatch`), later
ones go by. Scripts copy this file's definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ..base.protocol import TargetError
from .library import F32, FLASH_OFF

SLOT = 256
"""Tokens of a slot's context."""
DRAFTS = {
    "model": "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
    "ngram": "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",
    "mtp": "COMMON_SPECULATIVE_TYPE_DRAFT_MTP",
}
"""Value of the option `draft` -> llama.cpp's name of it."""


class ServerHere:
    """A server of one model in this process, at `address`. A folder keeps the slots that are saved.

    `draft`: the model that proposes tokens, where `options` say so.
    """

    def __init__(self, path: Path, draft: Path, folder: Path, options: Mapping[str, str]) -> None:
        try:
            binding = import_module("xllamacpp.xllamacpp")
        except ImportError as error:
            raise TargetError(
                "llamacpp:server needs a wheel of xllamacpp: use llamacpp:server@2026.10.11549"
            ) from error
        params = _params(binding.CommonParams(), options)
        params.model.path = str(path)
        params.slot_save_path = f"{folder}/"
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        kind = options.get("draft", "none")
        if kind == "mtp":
            params.load_mtp = True
        _draft(params.speculative, binding.common_speculative_type, kind, draft)
        self._server = binding.Server(params)
        self.address: str = self._server.listening_address

    def lost(self) -> None:
        """Do nothing: a server that dies takes this process with it."""

    def close(self) -> None:
        """Stop the server."""
        del self._server


def _params(params: Any, options: Mapping[str, str]) -> Any:
    """Set the parameters of a server. TargetError for one that this build does not have."""
    for name, value in {
        "n_parallel": int(options["slots"]),
        "n_ctx": int(options["slots"]) * SLOT,
        "kv_unified": options["kv"] == "unified",
        "n_ubatch": int(options["ubatch"]),
        "n_ctx_checkpoints": int(options["checkpoints"]),
        "checkpoint_min_step": int(options["spacing"]),
        "cache_ram_mib": int(options["ram"]),
        "slot_prompt_similarity": float(options["similarity"]),
        "cache_type_k": F32,
        "cache_type_v": F32,
        "flash_attn_type": FLASH_OFF,
        "warmup": False,
        "port": 0,
        "verbosity": -1,
    }.items():
        if not hasattr(params, name):
            raise TargetError(f"llamacpp:server: the server of this build has no parameter {name}")
        setattr(params, name, value)
    return params


def _draft(speculative: Any, kinds: Any, kind: str, path: Path) -> None:
    """Let a server draft: by a model, by a block of its own model, or by what followed the newest token before."""
    if kind == "none":
        return
    name = DRAFTS[kind]
    if name not in kinds.__members__:
        raise TargetError(f"llamacpp:server: the server of this build has no drafts of {name}: use draft=none")
    speculative.types = [int(kinds[name])]
    if kind == "mtp":
        return
    if kind == "model":
        speculative.draft.mparams.path = str(path)
        speculative.draft.cache_type_k = speculative.draft.cache_type_v = F32
    else:
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = 1, 3
