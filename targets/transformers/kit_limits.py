"""What the two kits of the transformers target cannot do, and why: one table. Importable without transformers.

shadow  the library's caches and masks with tags and a tiny real model, or the model alone (`target`)
script  a file of calls of the public API, with the model alone (`repro`)
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ..base.kits import Limit, Row, first_reason, in_words
from ..base.trace import Config
from .families import FAMILIES, Family
from .features import Features

Kit = Literal["shadow", "script"]


class Case(NamedTuple):
    """What is asked of a kit, and of a release (shadow)."""

    config: Config
    features: Features = Features()

    @property
    def family(self) -> Family | None:
        """The model, None if the trace names none."""
        return FAMILIES.get(self.config.options.get("family", ""))

    def of_family(self, what: str) -> Any:
        """Return an attribute of the family; rows that ask for it stand behind those for a trace without one."""
        return getattr(self.family, what)

    @property
    def attends(self) -> bool:
        """True for a family whose cache has state layers of the library and attention."""
        return bool(self.of_family("conv") and self.of_family("count")("attention"))

    @property
    def static(self) -> bool:
        """True for a `StaticCache`."""
        return self.config.options.get("cache") == "static"

    @property
    def offloads(self) -> bool:
        """True if the cache keeps attention on the host."""
        return self.config.options.get("offload") == "yes"

    @property
    def records(self) -> bool:
        """True if the cache records past states."""
        return bool(self.config.num_speculative_tokens) or self.config.options.get("record") == "yes"


ROWS: tuple[Row[Case], ...] = (
    Row("shadow", "family", lambda c: c.family is None, "it needs an option family"),
    Row("shadow", "mamba_cache_mode", lambda c: c.config.mamba_cache_mode != "none",
        "it has no prefix cache: use mamba_cache_mode=none"),
    Row("shadow", "conv_width", lambda c: c.config.conv_width != 4, "conv_width is 4"),
    Row("shadow", "num_speculative_tokens",
        lambda c: c.config.num_speculative_tokens and c.of_family("recurrent"),
        "{family.model_type} has recurrent states, with which transformers refuses assisted decoding"),
    Row("shadow", "record", lambda c: c.records and not c.features.records,
        "this release's cache does not record past states"),
    Row("shadow", "forward", lambda c: c.config.options.get("forward") != "model" and not c.features.tags,
        "this release's families do not share state layers: forward=model is all that it can run"),
    Row("shadow", "cache", lambda c: c.static and not c.attends, "{family.model_type} has no static cache"),
    Row("shadow", "offload", lambda c: c.offloads and not c.attends,
        "the cache of {family.model_type} does not offload"),
    Row("shadow", "offload", lambda c: c.offloads and not c.features.tags,
        "offload is driven on releases with tags only"),
    Row("shadow", "record", lambda c: c.static and c.records, "a static cache does not record past states"),
    Row("shadow", "record", lambda c: c.records and not c.of_family("conv"),
        "the cache of {family.model_type} does not record past states"),
    Row("script", "family", lambda c: c.family is None, "a failure of no family of models: the trace names none"),
)  # fmt: skip


def refusal(kit: Kit, case: Case) -> str:
    """Return "", or the reason why a kit cannot run a case."""
    return first_reason(ROWS, kit, case, family=case.family)


def limits() -> list[Limit]:
    """Return the table in words."""
    return in_words(ROWS, "family")
