"""vLLM from a git checkout: no metadata, no `_version.py`, and either no binaries or those of some other build."""

import os
from pathlib import Path

import msgspec
import pytest
from support import copy_sources, of_release

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

RELEASES = ("0.28.0", "0.33.0")
CORPUS = Path(__file__).parents[3] / "corpus" / "vllm"


def checkout(release: str, folder: Path) -> Path:
    """Return a folder with a release's sources."""
    copy_sources("vllm", release, folder)
    return folder


def signatures(spec: str, release: str) -> dict[str, str]:
    """The signature that every fourth packaged trace of a release shows on a target."""
    found = {}
    with WorkerClient(spec, prepare(spec, print), trace_seconds=300) as worker:
        worker.start()
        for path in sorted(CORPUS.glob(f"{release}--*.json"))[::4]:
            violation = worker.run(load_trace(path)).violation
            found[path.stem] = violation.signature if violation else ""
    return found


@pytest.mark.parametrize("release", [of_release("vllm", release, release) for release in RELEASES])
@pytest.mark.parametrize("built", [False, True])
def test_a_checkout_shows_what_its_release_shows(
    release: str, built: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binaries of another build must not be loaded: which ones would load differs from machine to machine."""
    tree = checkout(release, tmp_path)
    if built:
        for name in ("_C.abi3.so", "_moe_C.abi3.so", "vllm_flash_attn/_vllm_fa2_C.abi3.so"):
            (tree / "vllm" / name).write_bytes(b"for another Torch")
        (tree / "vllm" / "_version.py").write_text("__version__ = version = '0.40.0.dev3+g1a.cpu'\n")
    before = sorted(path for path in tree.rglob("*") if "__pycache__" not in path.parts)
    monkeypatch.chdir(tree)
    found = signatures("vllm@.", release)
    assert found
    assert all(stem.endswith(f"--{signature}") for stem, signature in found.items()), found
    assert sorted(path for path in tree.rglob("*") if "__pycache__" not in path.parts) == before


def test_vllm_that_has_disabled_triton_is_refused(tmp_path: Path) -> None:
    """Without this, each trace would end in a crash that vLLM is blamed for."""
    tree = checkout(RELEASES[-1], tmp_path)
    launch = prepare(f"vllm@{tree}", print)
    path = f"{launch.env['PYTHONPATH'].partition(':')[0]}{os.pathsep}{tree}"
    raw = msgspec.structs.replace(launch, env={**launch.env, "PYTHONPATH": path})
    with (
        pytest.raises(TargetError, match=r"it has disabled Triton \(its package metadata .* is missing\)$"),
        WorkerClient("vllm@raw", raw, trace_seconds=300) as worker,
    ):
        worker.start()


def test_vllm_that_the_adapter_does_not_fit_is_refused(tmp_path: Path) -> None:
    tree = checkout(RELEASES[-1], tmp_path)
    scheduler = tree / "vllm" / "v1" / "core" / "sched" / "scheduler.py"
    scheduler.write_text(scheduler.read_text().replace("kv_cache_config: KVCacheConfig", "kv_config: KVCacheConfig"))
    spec = f"vllm@{tree}"
    with (
        pytest.raises(TargetError, match=r"cannot be loaded: TypeError: .*kv_cache_config.*\.py:\d+\)$"),
        WorkerClient(spec, prepare(spec, print), trace_seconds=300) as worker,
    ):
        worker.start()
