"""SGLang 0.5.23 with the fixes of all its known causes, behind which right traces must be silent."""

import datetime
from collections.abc import Iterator

import pytest

from hybridfuzz.harness.group.known.fixes import BUILTIN, apply_fixes, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare

TARGET = "sglang@0.5.23"


@pytest.fixture(scope="session")
def worker() -> Iterator[WorkerClient]:
    """One worker for all files."""
    fixes = apply_fixes(prepare(TARGET, print), read_fixes(BUILTIN, TARGET), TARGET, datetime.date.today())
    with WorkerClient(TARGET, fixes.launch, trace_seconds=300) as started:
        started.start()
        yield started
