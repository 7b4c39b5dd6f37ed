"""What the kits of the llama.cpp target cannot do, and why: one table. Importable without llama.cpp.

library  the library's own contexts, with a tiny model (`target`)
server   its HTTP server, with a tiny model (`server_target`)
script   a file of calls of the C API (`repro`); one of requests to the server (`server_repro`) can do what `server` can
"""

from __future__ import annotations

from typing import Literal

from ..base.kits import Limit, Row, first_reason, in_words
from ..base.trace import Config
from .families import FAMILIES

Kit = Literal["library", "server", "script"]


ROWS: tuple[Row[Config], ...] = (
    Row("library", "family", lambda c: c.options.get("family") not in FAMILIES, "it needs an option family"),
    Row("library", "mamba_cache_mode", lambda c: c.mamba_cache_mode != "none",
        "it has no prefix cache: use mamba_cache_mode=none"),
    Row("library", "conv_width", lambda c: c.conv_width != 4, "conv_width is 4"),
    Row("library", "planes", lambda c: c.options.get("planes", "0") != "0" and not FAMILIES[c.options["family"]].planes,
        "this family has no snapshots (n_rs_seq): use planes=0"),
    Row("library", "ubatch", lambda c: int(c.options.get("ubatch", "0")) < int(c.options.get("planes", "0")) + 2,
        "llama.cpp ends the process unless n_ubatch is at least n_rs_seq + 2"),
    Row("server", "family", lambda c: c.options.get("family") not in FAMILIES, "it needs an option family"),
    Row("server", "mamba_cache_mode", lambda c: c.mamba_cache_mode != "none",
        "its prompt cache is its own: use mamba_cache_mode=none"),
    Row("server", "conv_width", lambda c: c.conv_width != 4, "conv_width is 4"),
    Row("server", "max_model_len", lambda c: c.max_model_len > 200,
        "a slot has 256 tokens: use max_model_len of at most 200"),
    Row("server", "draft", lambda c: c.options.get("draft") == "mtp" and not FAMILIES[c.options["family"]].head,
        "its model has no block that drafts: use family=qwen3-5"),
    Row("server", "ubatch", lambda c: c.options.get("draft") == "mtp" and c.options.get("ubatch") == "4",
        "llama.cpp ends the process: with MTP drafts a context has snapshots, and n_ubatch has to be larger"),
    Row("script", "family", lambda c: c.options.get("family") not in FAMILIES,
        "a failure of no family of models: the trace names none"),
    Row("script", "idle", lambda c: c.options.get("idle") == "moved",
        "a state that is restored into another context"),
)  # fmt: skip


def refusal(kit: Kit, config: Config) -> str:
    """Return "", or the reason why a kit cannot run a configuration."""
    return first_reason(ROWS, kit, config)


def limits() -> list[Limit]:
    """Return the table in words."""
    return in_words(ROWS)
