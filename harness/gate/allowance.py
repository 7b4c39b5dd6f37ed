"""The time of one run of the gate: its budget, and half a minute for all that is not the search.

It begins when the engine's environment is there, which is made once. An item that would begin too late is skipped: the
last lines of the run say how many. One that has begun may end, so that a trace which hangs is not taken for a slow one;
nothing else is waited for, and nothing that was found is lost.

Time in which our processes have work to do and no processor does not count, where the kernel tells it: other jobs of
the machine do not change what a run says, only how long it takes, at most `WALL` times as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread

GRACE_SECONDS = 30.0
"""For the engine's start, the corpus, known bugs, and to tell failures apart. A budget is the time for the search."""
ENDING_SECONDS = 4.0
"""Of these to end the workers and to print."""
SORTING_SECONDS = 20.0
"""Kept for the causes once an item has failed."""
WALL = 4.0
GLANCE_SECONDS = 0.2
"""Between two looks at whether the end may come."""


class Allowance:
    """What is left of the time of a run. `seconds` are all of it; `waited` returns those that do not count."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.seconds = seconds
        self.waited = waited
        self._clock = clock
        self._began = clock()
        self._end = self._began + seconds - ENDING_SECONDS
        self._kept = 0.0
        self._closed = Event()

    @property
    def left(self) -> float:
        """Return the seconds that are left for work."""
        now = self._clock()
        return max(min(self._end + self.waited(), self._began + WALL * self.seconds) - now, 0.0)

    @property
    def spent(self) -> float:
        """Return the seconds that count so far."""
        return self._clock() - self._began - self.waited()

    @property
    def allows_item(self) -> bool:
        """Return True if an item may begin."""
        return self.left > self._kept

    def keep_for_causes(self) -> None:
        """Keep time for the causes: an item has failed. In a short run no more than half of what was left."""
        self._kept = max(self._kept, min(SORTING_SECONDS, self.left / 2))

    def give(self, seconds: float) -> None:
        """Let at least so many seconds be left: other processes, which waited, have used up the rest."""
        self._end += max(seconds - self.left, 0.0)

    def then(self, action: Callable[[], None], may: Callable[[], bool] = lambda: True) -> None:
        """Call from another thread once the time is over and it `may` be, unless `close` is called before."""

        def wait() -> None:
            while (left := self.left) or not may():  # the time may have become more meanwhile
                if self._closed.wait(left or GLANCE_SECONDS):
                    return
            action()

        Thread(target=wait, daemon=True).start()

    def close(self) -> None:
        """End the waiting for the end."""
        self._closed.set()


def whole(budget: float) -> float:
    """Return the seconds that a run with a budget may take."""
    return budget + GRACE_SECONDS
