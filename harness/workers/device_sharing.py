"""Runs what the workers of this machine need beside them: the daemon through which they share a GPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...targets.base.launch import Launch, sharing

READY_SECONDS = 10.0
END_SECONDS = 10.0


@contextmanager
def served(launch: Launch, workers: int) -> Iterator[Launch]:
    """Start the launch's service, if it has one and several workers; yield how to start a worker that uses it.

    A service that does not start is no error: the launch is yielded as it is. The service ends with the `with` block,
    and with this process, however that ends: its standard input does.
    """
    service = launch.service
    if service is None or workers < 2:
        yield launch
        return
    # A short path: it holds sockets.
    with tempfile.TemporaryDirectory(prefix="hybridfuzz-", ignore_cleanup_errors=True) as folder:
        variables = {**os.environ, **sharing(launch, folder).env}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            service.command, env=variables, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )
        assert process.stdin
        try:
            yield sharing(launch, folder) if _is_ready(process, Path(folder, service.ready)) else launch
        finally:
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(process: subprocess.Popen[bytes], file: Path) -> bool:
    """Wait for a file of the service."""
    deadline = time.monotonic() + READY_SECONDS
    while not file.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
