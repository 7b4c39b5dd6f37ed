"""The fixes without which a failure does not show: the trace would meet another known bug first.

A campaign behind fixes has all of them in effect, and a report should stand on the engine as it was released, or on
that with as few patches as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....targets.base.launch import Launch
from ....targets.base.patched_copy import patched
from ....targets.base.patches import PatchError
from ....targets.base.trace import Trace
from ...judge.violation import Violation
from ...workers.worker_client import WorkerClient
from .fixes import Fixes
from .known_toml import Known


def needed_fixes(
    fixes: Fixes, trace: Trace, open_worker: Callable[[Launch], WorkerClient]
) -> tuple[tuple[Known, ...], Launch] | None:
    """Return entries that are needed, and how to start the target with their patches; None for a trace that does not
    fail with all patches.

    None of the entries that are returned can be left out alone. Raises what a worker raises.
    """
    wanted = _failure(open_worker(fixes.launch), trace)
    if wanted is None:
        return None

    def launched(entries: Sequence[Known]) -> Launch | None:
        """Return the target with the patches of entries if it fails as with all of them."""
        try:
            launch = patched(fixes.unpatched, [entry.read_patch() for entry in entries])
        except PatchError:  # it needs the lines of one that is left out
            return None
        failed = _failure(open_worker(launch), trace)
        same = failed is not None and (failed.signature, failed.event) == (wanted.signature, wanted.event)
        return launch if same else None

    needed, launch = fixes.in_effect, fixes.launch
    size = len(needed)
    while size:
        first = 0
        while first < len(needed):
            rest = (*needed[:first], *needed[first + size :])
            if found := launched(rest):
                needed, launch = rest, found
            else:
                first += size
        size //= 2
    return needed, launch


def _failure(worker: WorkerClient, trace: Trace) -> Violation | None:
    """Return how a trace fails on a worker of its own."""
    with worker:
        worker.start()
        return worker.run(trace).violation
