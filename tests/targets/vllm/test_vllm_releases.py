"""Releases before 0.28: what shipped with a bug shows it, what fixed it does not. Makes the environments if missing."""

from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import prepare

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

CORPUS = Path(__file__).parents[3] / "corpus" / "vllm"
STALE_BYTES = CORPUS / "0.16.0--stale-fp32-bytes-nan--S4-step-attention-page-tail.json"


def signature(spec: str, trace: Path) -> str:
    """Return the signature that a trace shows on a target, "" if it is silent."""
    with WorkerClient(spec, prepare(spec, print), trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(load_trace(trace)).violation
    return violation.signature if violation else ""


def test_a_release_that_forgets_to_zero_is_found_and_one_that_zeroes_is_silent(tmp_path: Path) -> None:
    """The expectation must not come from the engine's own switch (PR #35219): here the switch is forced off."""
    prepare("vllm@0.33.0", print)
    tree = cache_folder() / "vllm" / "0.33.0" / "tree" / "vllm"
    copy = tmp_path / "vllm"
    copy.mkdir()
    for entry in tree.iterdir():
        (copy / entry.name).symlink_to(entry)
    # One package is copied as links, one file of it is changed.
    (copy / "v1").unlink()
    (copy / "v1").mkdir()
    for entry in (tree / "v1").iterdir():
        (copy / "v1" / entry.name).symlink_to(entry)
    interface = copy / "v1" / "kv_cache_interface.py"
    text = interface.read_text(encoding="utf-8")
    old = "return self.has_mamba_layers or self.has_mixed_precision_kv_cache"
    assert text.count(old) == 1
    interface.unlink()
    interface.write_text(text.replace(old, "return False"), encoding="utf-8")
    assert signature(f"vllm@{tmp_path}", STALE_BYTES) == "S4-step-attention-page-tail"
    assert signature("vllm@0.33.0", STALE_BYTES) == ""
