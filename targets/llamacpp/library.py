"""llama.cpp's C API by ctypes, and the layout of its parameters in this build.

The parameters of a context are passed by value, and their fields differ from build to build. The layouts that builds
had are listed here. One of them is taken if the library's own defaults, read with it, are exactly those that
`llama_context_default_params` sets; a build whose defaults fit none of them, or two, is refused.

Parameters of a model are passed on as the library made them: no field of theirs is read or set.

Source: include/llama.h and src/llama-context.cpp of builds 8672 to 11549.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from ..base.protocol import TargetError

LIBRARY = "HYBRIDFUZZ_LLAMACPP_LIBRARY"
"""Environment variable: the shared object that exports the C API."""
F32 = 0
"""`GGML_TYPE_F32`."""
FLASH_OFF = 0
"""`LLAMA_FLASH_ATTN_TYPE_DISABLED`."""
PARTIAL_ONLY = 1
"""`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`: what cannot be rolled back, the recurrent states, alone."""
ERROR = 4
"""`GGML_LOG_LEVEL_ERROR`."""
OPAQUE = 512
"""Bytes for a struct that is only passed on; it has less than half as many."""

_ADDED: tuple[tuple[str, ...], ...] = (
    (),  # 8672 to 9093
    ("n_rs_seq", "ctx_type"),  # 9294
    ("n_rs_seq", "n_outputs_max", "ctx_type"),  # 9538 to 10229
    ("n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq", "ctx_type"),  # 10566 to 11063
    ("n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq", "ctx_type", "moe_cache_size"),  # 11549
)
"""By layout: the fields that it has beyond those of the oldest one."""
_DEFAULTS: dict[str, float] = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_rs_seq": 0, "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1, "n_threads": 4, "n_threads_batch": 4, "ctx_type": 0, "rope_scaling_type": -1,
    "pooling_type": -1, "attention_type": -1, "flash_attn_type": -1, "rope_freq_base": 0.0, "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0, "yarn_attn_factor": -1.0, "yarn_beta_fast": -1.0, "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0, "defrag_thold": -1.0, "type_k": 1, "type_v": 1, "embeddings": False, "offload_kqv": True,
    "no_perf": True, "op_offload": True, "swa_full": True, "kv_unified": False, "n_samplers": 0,
    "moe_cache_size": 0,
}  # fmt: skip
"""What `llama_context_default_params` sets in all these builds; pointers are NULL."""


class Opaque(Structure):
    """A struct that is passed on as it is."""

    _fields_ = (("bytes", ctypes.c_uint8 * OPAQUE),)


class Batch(Structure):
    """`llama_batch`."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", c_void_p),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


def _params(added: Sequence[str]) -> type[Structure]:
    """Return `llama_context_params` with these fields beyond those of the oldest layout.

    It ends with `ctx_other`, which older builds do not have: they ignore what stands behind the last of their own.
    """
    counts = ["n_rs_seq", "n_outputs_max", "n_outputs_max_per_seq"]
    types = ["ctx_type", "rope_scaling_type", "pooling_type", "attention_type", "flash_attn_type"]
    floats = ["rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast"]
    flags = ["embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified"]
    fields: list[tuple[str, Any]] = [
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", *counts)),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", *types)),
        *((name, c_float) for name in (*floats, "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        *((name, c_void_p) for name in ("cb_eval", "cb_eval_user_data")),
        *((name, c_int32) for name in ("type_k", "type_v")),
        ("moe_cache_size", c_size_t),
        *((name, c_void_p) for name in ("abort_callback", "abort_callback_data")),
        *((name, c_bool) for name in flags),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    ]
    later = {*counts, "ctx_type", "moe_cache_size"}
    present = [field for field in fields if field[0] not in later or field[0] in added]
    return type("llama_context_params", (Structure,), {"_fields_": present})


def layout_of(defaults: bytes) -> type[Structure]:
    """Return the layout with which these bytes are the defaults. TargetError if there is not exactly one."""
    fitting = [params for params in map(_params, _ADDED) if _is_default(params.from_buffer_copy(defaults))]
    if len(fitting) != 1:
        raise TargetError(
            "llama.cpp: the layout of llama_context_params in this build is not known; known are those of builds 8672 "
            "to 11549 (targets/llamacpp/library.py)"
        )
    return fitting[0]


def _is_default(params: Structure) -> bool:
    names = [name for name, *_ in params._fields_]
    return all(getattr(params, name) == _DEFAULTS.get(name) for name in names if name != "ctx_other")


Log = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)


class Library:
    """The functions that the adapter calls. One per process, since llama.cpp logs to one place."""

    def __init__(self, path: str) -> None:
        try:
            self.c = ctypes.CDLL(path)
            self.c.llama_context_default_params.restype = Opaque
            self.params = layout_of(bytes(self.c.llama_context_default_params().bytes))
            self._declare()
            if self.has_planes:
                self.c.llama_n_rs_seq.restype, self.c.llama_n_rs_seq.argtypes = c_uint32, [c_void_p]
        except (OSError, AttributeError) as error:
            raise TargetError(f"{path} is no library with llama.cpp's C API: {error}") from error
        self._logged: deque[str] = deque(maxlen=2)
        self._callback = Log(self._log)
        self.c.llama_log_set(self._callback, None)

    @property
    def has_planes(self) -> bool:
        """True if a context can keep snapshots of recurrent states (`n_rs_seq`)."""
        return any(name == "n_rs_seq" for name, *_ in self.params._fields_)

    @property
    def complaint(self) -> str:
        """The last errors that llama.cpp logged."""
        return "; ".join(self._logged) or "it logs no error"

    def _log(self, level: int, text: bytes, _: object) -> None:
        if level == ERROR:
            self._logged.append(text.decode(errors="replace").strip())

    def _declare(self) -> None:
        seq, position = c_int32, c_int32
        for name, result, *arguments in (
            ("llama_log_set", None, Log, c_void_p),
            ("llama_model_default_params", Opaque),
            ("llama_model_load_from_file", c_void_p, c_char_p, Opaque),
            ("llama_model_free", None, c_void_p),
            ("llama_init_from_model", c_void_p, c_void_p, self.params),
            ("llama_free", None, c_void_p),
            ("llama_model_get_vocab", c_void_p, c_void_p),
            ("llama_vocab_n_tokens", c_int32, c_void_p),
            ("llama_get_memory", c_void_p, c_void_p),
            ("llama_batch_init", Batch, c_int32, c_int32, c_int32),
            ("llama_batch_free", None, Batch),
            ("llama_decode", c_int32, c_void_p, Batch),
            ("llama_get_logits_ith", POINTER(c_float), c_void_p, c_int32),
            ("llama_memory_clear", None, c_void_p, c_bool),
            ("llama_memory_seq_rm", c_bool, c_void_p, seq, position, position),
            ("llama_memory_seq_cp", None, c_void_p, seq, seq, position, position),
            ("llama_memory_seq_keep", None, c_void_p, seq),
            ("llama_memory_can_shift", c_bool, c_void_p),
            ("llama_memory_seq_add", None, c_void_p, seq, position, position, position),
            ("llama_memory_seq_pos_min", position, c_void_p, seq),
            ("llama_memory_seq_pos_max", position, c_void_p, seq),
            ("llama_state_seq_get_size_ext", c_size_t, c_void_p, seq, c_uint32),
            ("llama_state_seq_get_data_ext", c_size_t, c_void_p, c_char_p, c_size_t, seq, c_uint32),
            ("llama_state_seq_set_data_ext", c_size_t, c_void_p, c_char_p, c_size_t, seq, c_uint32),
        ):
            function = getattr(self.c, str(name))
            function.restype, function.argtypes = result, arguments


def find_library() -> str:
    """Return the path of the library: the one that the environment names, or that of the installed xllamacpp."""
    if named := os.environ.get(LIBRARY):
        return named
    from importlib.util import find_spec

    spec = find_spec("xllamacpp")
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = [str(path) for folder in folders for path in Path(folder).glob("xllamacpp*.so")]
    if not found:
        raise ImportError("xllamacpp has no shared object", name="xllamacpp")
    return found[0]
