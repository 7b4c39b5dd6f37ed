"""`--cluster` and `-o URL`: where the workers of a campaign run, and where its output goes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # --help has to come at once
    from ...campaign.shared_state import Settings
    from ...workers.cluster.ray_workers import Placement
    from ...workers.protocol import OpenWorker


def place(text: str) -> Placement:
    """Return the cluster that an argument names. Raises UnitError."""
    from ...workers.cluster.ray_workers import parse_place

    return parse_place(text)


def folder(text: str) -> Path | str:
    """Return an output folder: a path, or a URL as it is."""
    from ...group.findings.remote_output import is_url, local_path

    return text if is_url(text) else local_path(text)


@contextmanager
def output_at(wanted: Path | str | None) -> Iterator[tuple[Path | None, Callable[[], None]]]:
    """Yield a local folder, and what puts its files to the URL that was asked for, if one was."""
    if not isinstance(wanted, str):
        yield wanted, lambda: None
        return
    from ...group.findings.remote_output import mirrored

    with mirrored(wanted) as mirror:
        yield mirror.folder, mirror.sync


@contextmanager
def workers_of(options: argparse.Namespace, settings: Settings) -> Iterator[tuple[Settings, OpenWorker | None]]:
    """Yield the settings and what opens a worker, None for this machine.

    On a cluster there are as many workers as it has room for, and their default memory limit is a share of their node.
    """
    if options.cluster is None:
        yield settings, None
        return
    from msgspec import structs

    from ...workers.cluster.ray_workers import connected, make_opener

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
            patches=settings.fixes.patches if settings.fixes else (),
        )
        yield settings, opener
