"""`--cluster`: where the workers of a campaign run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:  # --help has to come at once
    from ..campaign.state import Settings
    from ..cluster.ray_workers import Place
    from ..workers.protocol import OpenWorker


def place(text: str) -> Place:
    """Return the cluster that an argument names. Raises ValueError."""
    from ..cluster.ray_workers import parse_place

    return parse_place(text)


@contextmanager
def workers_of(options: argparse.Namespace, settings: Settings) -> Iterator[tuple[Settings, OpenWorker | None]]:
    """Yield the settings and what opens a worker, None for this machine.

    On a cluster there are as many workers as it has room for, and their default memory limit is a share of their node.
    """
    if options.cluster is None:
        yield settings, None
        return
    from ..cluster.ray_workers import connected, make_opener

    with connected(options.cluster, settings.target) as cluster:
        jobs = options.jobs or min(cluster.room(), settings.traces or cluster.room())
        memory = settings.memory_limit if options.memory is not None else cluster.memory_share()
        settings = structs.replace(settings, jobs=jobs, memory_limit=memory)
        opener = make_opener(
            cluster,
            settings.target,
            settings.launch.version,
            memory_limit=memory,
            trace_seconds=settings.trace_seconds,
        )
        yield settings, opener
