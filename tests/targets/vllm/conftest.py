"""vLLM 0.33.0 with the fixes of all its known causes, behind which random traces must be silent."""

import datetime
from collections.abc import Iterator

import pytest

from hybridfuzz.harness.group.known.fixes import BUILTIN, Fixes, apply_fixes, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare

TARGET = "vllm@0.33.0"


@pytest.fixture(scope="session")
def fixes() -> Fixes:
    """The release with the fixes of all known causes."""
    applied = apply_fixes(prepare(TARGET, print), read_fixes(BUILTIN, TARGET), TARGET, datetime.date.today())
    assert applied.problems == {}
    return applied


@pytest.fixture(scope="session")
def worker(fixes: Fixes) -> Iterator[WorkerClient]:
    """One worker for all files, as a campaign has one for all its traces: importing vLLM takes most of the time."""
    with WorkerClient(TARGET, fixes.launch, trace_seconds=300) as client:
        client.start()
        yield client
