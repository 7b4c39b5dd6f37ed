"""A tiny random model, and the log-probabilities of tokens alone.

What a step gives is compared with the same tokens alone: decoded in one batch, in a context of their own that has no
other sequence, no snapshots and zeroed memory. Both are float32, and differ by the rounding of sums in another order.
How far that may go depends on the tokens. It is measured on them: alone once more, one token at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..base.protocol import TargetError
from .context import Context, Row, log_softmax
from .families import FAMILIES, Family
from .gguf_file import write_gguf
from .library import Library
from .sizes import Sizes

MARGIN = 20.0
"""Rounding in another order may differ by so many times what one token at a time differs from all at once."""
MARGIN_MIN = 1e-3
"""The smallest tolerance of a log-probability. One wrong token in a cache moves them by 0.04 to 4."""
MARGIN_MAX = 1e-2
"""The largest: if one token at a time differs from all at once by more, that is no rounding and must hide nothing."""
KNOWN_MAX = 4096
"""Results of tokens alone that are kept."""


class Model:
    """A model of one family, loaded."""

    def __init__(self, library: Library, family: Family, path: Path) -> None:
        self.library = library
        self.family = family
        write_gguf(path, family)
        handle = library.c.llama_model_load_from_file(str(path).encode(), library.c.llama_model_default_params())
        if not handle:
            raise TargetError(f"this build of llama.cpp does not load the {family.arch} model: {library.complaint}")
        self.handle = handle
        self._known: OrderedDict[tuple[int, ...], tuple[Any, float]] = OrderedDict()
        self._contexts: dict[int, Context] = {}

    def alone(self, tokens: tuple[int, ...]) -> tuple[Any, float]:
        """Return the log-probabilities [tokens, vocabulary] after each of these tokens alone, and the tolerance."""
        known = self._known.get(tokens)
        if known is None:
            at_once, one_by_one = (self._alone(tokens, size) for size in (len(tokens), 1))
            differ = float(np.abs(at_once - one_by_one).max())
            known = self._known[tokens] = at_once, min(max(MARGIN * differ, MARGIN_MIN), MARGIN_MAX)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return known

    def _alone(self, tokens: tuple[int, ...], size: int) -> Any:
        longest = max(256, 1 << (len(tokens) - 1).bit_length())
        if longest not in self._contexts:
            self._contexts[longest] = Context(self.library, self.handle, Sizes(longest, longest, longest, 1))
        context = self._contexts[longest]
        context.clear(zeroed=True)
        pieces = [(start, tokens[start : start + size]) for start in range(0, len(tokens), size)]
        found = [context.decode([Row(0, start, piece, len(piece))])[0] for start, piece in pieces]
        return log_softmax(np.concatenate(found))


class Models:
    """The models of this process, each made when it is first used."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._folder = TemporaryDirectory(prefix="hybridfuzz-llamacpp-")
        self._models: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """Return the model of a family."""
        if name not in self._models:
            self._models[name] = Model(self.library, FAMILIES[name], Path(self._folder.name) / f"{name}.gguf")
        return self._models[name]
