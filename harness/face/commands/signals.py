"""What Ctrl-C, SIGTERM and SIGHUP do to a command: `ending_on_signals` ends its work cleanly, once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # --help has to come at once
    from ...campaign_summary import Reason

PATIENCE_SECONDS = 5.0
"""Time for a clean end after the first signal; later ones are taken for impatience."""


class Stoppable(Protocol):
    """Long work that can be ended early."""

    def stop(self, reason: Reason) -> None:
        """End it; called from a signal handler."""
        ...


@contextmanager
def ending_on_signals(work: Stoppable) -> Iterator[None]:
    """End the work cleanly on Ctrl-C, SIGTERM or SIGHUP.

    A second signal soon after belongs to the first (`timeout` sends SIGTERM to the process and to its group). One that
    comes `PATIENCE_SECONDS` later raises KeyboardInterrupt: the clean end takes too long.
    """
    first = float("inf")

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal first
        del frame
        now = time.monotonic()
        if now - first >= PATIENCE_SECONDS:
            signal.default_int_handler(number, None)
        first = min(first, now)
        work.stop("interrupted")

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
