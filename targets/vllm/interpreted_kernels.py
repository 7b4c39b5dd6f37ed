"""vLLM's Triton kernels on a CPU: the interpreter of `targets/triton_interpreter/` runs them and reports to us."""

from __future__ import annotations

from ..base.protocol import EngineError
from ..base.translated_lines import TRANSLATED


class OutOfBounds(EngineError):
    """A kernel of vLLM touches memory that it was not given."""


def interpret() -> None:
    """Run kernels in the fast interpreter. A wrong access is vLLM's, and the lines that kernels execute are noted."""
    from .. import triton_interpreter

    triton_interpreter.install(OutOfBounds, TRANSLATED)
