"""A target's factory whose answers are checked: what it does wrong outside of a trace is its fault, by name."""

from __future__ import annotations

import traceback

from ...reference.layout import Layout
from ...targets.base.protocol import Target, TargetError, TargetFactory
from ...targets.base.proxy import FactoryProxy
from ...targets.base.trace import Config
from ..judge.target_exception import NotATarget, importable, text_of
from ..quoting import one_line

MEMBERS = ("layout", "apply", "view", "read", "close")
"""What every `Target` has."""


class CheckedFactory(FactoryProxy):
    """Forwards to a factory. `spec` is the target string, for messages."""

    def __init__(self, factory: TargetFactory, spec: str) -> None:
        super().__init__(factory)
        self._spec = spec

    def supports(self, config: Config) -> str:
        """Return the factory's answer. Raises TargetError if it gives none."""
        try:
            answer: object = self.factory.supports(config)
        except TargetError:
            raise
        except Exception as error:
            raise TargetError(f"target {self._spec!r}: supports() raised {described(error)}") from error
        if not isinstance(answer, str):
            raise TargetError(f"target {self._spec!r}: supports() returned a {type(answer).__name__}, expected a text")
        return answer

    def open(self, config: Config) -> Target:
        """Return a target of the factory. Raises NotATarget if it returns something else."""
        target = self.factory.open(config)
        returned = f"{type(self.factory).__module__}: open() returned "
        returned += "None" if target is None else f"a {type(target).__name__}"
        if missing := [name for name in MEMBERS if not hasattr(target, name)]:
            raise NotATarget(f"{returned}, which has no {', '.join(missing)}")
        if not isinstance(target.layout, Layout):
            raise NotATarget(f"{returned}, whose layout is a {type(target.layout).__name__}")
        return target


def described(error: Exception) -> str:
    """Return an exception of a target in one line: its type, its message, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {one_line(text_of(error))} at {importable(frame.filename)}:{frame.lineno}"
