"""Opens the engines of a trace and closes them. What an engine raises there is a finding, too, unless it refuses."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from ...targets.base.protocol import Target, TargetError, TargetFactory
from ...targets.base.trace import Config, TraceError
from ..draw.near_stock import at_default, is_near
from .environment_fault import FaultyEnvironment, fault_of
from .lockstep import Lockstep
from .outcome import Outcome
from .target_exception import crash_violation, owner, text_of
from .violation import Violation


class RefusedError(TraceError):
    """A target refused, when it was opened, a configuration that it was said to support. The message is its reason."""


class Engines:
    """The engines of one trace: one, or one for each rank."""

    def __init__(self, factory: TargetFactory, config: Config) -> None:
        self._factory = factory
        self._config = config
        self._opened: list[tuple[int, Target]] = []

    def open(self, rank: int = -1) -> Lockstep | Violation:
        """Open an engine and look at it for the first time. Return the finding if it raises.

        Raises RefusedError if the target does not take the configuration, FaultyEnvironment if there is no memory for
        it or no device.
        """
        capabilities = self._factory.capabilities
        try:
            target = self._factory.open(self._config)
        except TraceError:
            raise
        except Exception as error:  # an engine that cannot be built for a configuration it should take
            return self._failed(error)
        self._opened.append((rank, target))
        try:
            near, defaults = is_near(self._config, capabilities), at_default(self._config, capabilities)
            return Lockstep(target, self._config, capabilities.observes, capabilities.engine, near, defaults)
        except Exception as error:
            if owner(error, capabilities.engine)[0] == "hybridfuzz" and not isinstance(error, TargetError):
                raise
            return self._failed(error)

    def _failed(self, error: Exception) -> Violation:
        """Return the finding for what an engine raised while it was opened; raise what is none."""
        if fault := fault_of(error):
            raise FaultyEnvironment(fault) from error
        if isinstance(error, TargetError):
            raise RefusedError(text_of(error)) from error
        return crash_violation(None, error, self._factory.capabilities.engine)

    def run(self, drive: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of `drive`, which opens engines and drives them; then close them all.

        An engine that cannot be closed is a finding unless there is one already: that one came first. For want of
        memory or a device it is FaultyEnvironment.
        """
        try:
            outcome = drive()
        except BaseException:
            self._close()
            raise
        failed = self._close()
        if failed is None or outcome.violation:
            return outcome
        rank, error = failed
        if fault := fault_of(error):
            raise FaultyEnvironment(fault) from error
        violation = on_rank(rank, crash_violation(None, error, self._factory.capabilities.engine, "close"))
        return structs.replace(outcome, violation=structs.replace(violation, event=outcome.events))

    def _close(self) -> tuple[int, Exception] | None:
        """Close all engines, also after one that cannot be closed; return the first failure with its rank."""
        first = None
        for rank, target in self._opened:
            try:
                target.close()
            except Exception as error:
                first = first or (rank, error)
        return first


def on_rank(rank: int, violation: Violation) -> Violation:
    """Return a violation that names its rank; -1 where there is only one."""
    return structs.replace(violation, rank=rank) if rank >= 0 else violation
