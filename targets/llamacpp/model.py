"""A tiny random model, and the log-probabilities of tokens alone.

What a step gives is compared with the same tokens alone: decoded in one batch, in a context of their own that has no
other sequence, no snapshots and zeroed memory. Both are float32, and differ by the rounding of sums in another order.
How far that may go depends on the tokens. It is measured on them: alone once more, one token at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from ..base.protocol import TargetError
from .context import Context, Row, log_softmax
from .context_sizes import Sizes
from .families import FAMILIES, Family
from .gguf_file import APART, write_gguf
from .library import PARTIAL_ONLY, Library

MARGIN = 20.0
"""Rounding in another order may differ by so many times what one token at a time differs from all at once."""
MARGIN_MIN = 1e-3
"""The smallest tolerance of a log-probability, or of a number of a state relative to its size. One wrong token in a
cache moves them by 0.04 to 4."""
MARGIN_MAX = 1e-2
"""The largest: if one token at a time differs from all at once by more, that is no rounding and must hide nothing."""
KNOWN_MAX = 96
"""Results of tokens alone that are kept: a megabyte each."""


class Alone(NamedTuple):
    """What tokens alone give.

    logprobs   [tokens, vocabulary], after each of them
    tolerance  of a log-probability
    states     the saved recurrent state after each of them, as float32 numbers
    moved      tolerance of a number x of a state, relative to 1 + |x|
    """

    logprobs: Any
    tolerance: float
    states: Sequence[Any]
    moved: float

    def is_state(self, length: int, found: Any) -> bool:
        """Return True if a saved state is that after `length` tokens."""
        right = self.states[length - 1]
        return found.shape == right.shape and _differ(found, right) <= self.moved


class Model:
    """A model of one family, loaded."""

    def __init__(self, library: Library, family: Family, path: Path, *, spelled: bool) -> None:
        self.library = library
        self.family = family
        self.path, self.draft = path, path.with_suffix(".draft.gguf")
        """The model, and for a server one that drafts for it."""
        write_gguf(path, family, spelled=spelled)
        if spelled:
            write_gguf(self.draft, family, spelled=True, apart=APART)
        handle = library.c.llama_model_load_from_file(str(path).encode(), library.c.llama_model_default_params())
        if not handle:
            raise TargetError(f"this build of llama.cpp does not load the {family.arch} model: {library.complaint}")
        self.handle = handle
        self._known: OrderedDict[tuple[int, ...], Alone] = OrderedDict()
        self._contexts: dict[int, Context] = {}

    def alone(self, tokens: tuple[int, ...]) -> Alone:
        """Return what these tokens give alone."""
        known = self._known.get(tokens)
        if known is None:
            known = self._known[tokens] = self._alone(tokens)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        return known

    def forget_results(self) -> None:
        """Forget what tokens alone gave."""
        self._known.clear()

    def logprobs(self, tokens: tuple[int, ...]) -> Any:
        """Return the log-probabilities [tokens, vocabulary] after each of these tokens alone."""
        return self._decoded(tokens, len(tokens))[0]

    def state_of(self, context: Context, sequence: int) -> Any:
        """Return the saved recurrent state of a sequence as float32 numbers, whole numbers of its header among them."""
        return np.frombuffer(context.state(sequence, PARTIAL_ONLY), np.float32)[-self.family.state :]

    def _alone(self, tokens: tuple[int, ...]) -> Alone:
        at_once, last = self._decoded(tokens, len(tokens))
        one_by_one, states = self._decoded(tokens, 1)
        differ, moved = float(np.abs(at_once - one_by_one).max()), _differ(states[-1], last[-1])
        return Alone(at_once, _margin(differ), states, _margin(moved))

    def _decoded(self, tokens: tuple[int, ...], size: int) -> tuple[Any, list[Any]]:
        """Decode tokens alone, `size` at a time; return the log-probabilities, and the state after each batch."""
        longest = max(256, 1 << (len(tokens) - 1).bit_length())
        if longest not in self._contexts:
            self._contexts[longest] = Context(self.library, self.handle, Sizes(longest, longest, longest, 1))
        context = self._contexts[longest]
        context.clear(zeroed=True)
        found, states = [], []
        for start in range(0, len(tokens), size):
            piece = tokens[start : start + size]
            found += context.decode([Row(0, start, piece, len(piece))])
            states.append(self.state_of(context, 0))
        return log_softmax(np.concatenate(found)), states


def _differ(found: Any, right: Any) -> float:
    """Return the largest difference of two states, relative to 1 + |x|; infinite if one is no number."""
    with np.errstate(invalid="ignore"):
        distance = np.where(
            found.view(np.int32) == right.view(np.int32), 0, np.abs(found - right) / (1 + np.abs(right))
        )
    return float(np.nan_to_num(distance, nan=np.inf).max())


def _margin(differ: float) -> float:
    return min(max(MARGIN * differ, MARGIN_MIN), MARGIN_MAX)


class Models:
    """The models of this process, each made when it is first used; `spelled`: with words, which a server needs."""

    def __init__(self, library: Library, *, spelled: bool = False) -> None:
        self.library = library
        self.spelled = spelled
        self._folder = TemporaryDirectory(prefix="hybridfuzz-llamacpp-")
        self._models: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """Return the model of a family."""
        if name not in self._models:
            path = Path(self._folder.name) / f"{name}.gguf"
            self._models[name] = Model(self.library, FAMILIES[name], path, spelled=self.spelled)
        return self._models[name]

    def forget_results(self) -> None:
        """Forget what tokens alone gave, where the library is not what it was."""
        for model in self._models.values():
            model.forget_results()
