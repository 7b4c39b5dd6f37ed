"""hybridfuzz doctor: check this machine and installation."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

EXAMPLES = """\
Exit status 2 if something is missing that the built-in target needs.
example: hybridfuzz doctor
"""
ENGINE_GIGABYTES = 4.0

Check = tuple[bool | None, str, str]
"""(good, subject, finding and cure); good is True, False for broken, None for a note."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Print every check."""
    from ...exit_status import CLEAN, USAGE
    from ...quoting import terminal_line
    from .common import print_json

    checks = []
    for good, what, found in all_checks():
        checks.append(
            {
                "check": what,
                "status": {True: "ok", None: "note", False: "fail"}[good],
                "found": found,
            }
        )
        if not options.json:
            print(terminal_line(f"{checks[-1]['status']:5} {what:15} {found}"), flush=True)
    broken = any(check["status"] == "fail" for check in checks)
    if options.json:
        print_json({"exit_reason": "broken" if broken else "ok", "checks": checks})
    return USAGE if broken else CLEAN


def all_checks() -> Iterator[Check]:
    """Yield each check as it is done: some take a second."""
    yield sys.version_info >= (3, 11), "Python", f"{platform.python_version()} at {sys.executable}"
    for name in ("msgspec", "numpy", "rich", "hypothesis"):
        yield package(name, needed=True)
    for name in ("torch", "triton"):
        yield package(name, needed=False)
    yield compiled()
    yield devices()
    yield real_models()
    yield machine()
    yield isolation()
    yield cache()
    yield built_in_target()


def package(name: str, *, needed: bool) -> Check:
    """Check that a distribution is installed."""
    try:
        return True, name, version(name)
    except PackageNotFoundError:
        cure = "missing: pip install hybridfuzz again" if needed else "not installed (only the GPU kernels need it)"
        return False if needed else None, name, cure


def compiled() -> Check:
    """Report modules compiled to C: an extension is imported instead of the source beside it."""
    root = Path(__file__).parents[3]
    files = [path for folder in ("harness", "reference", "targets") for path in (root / folder).rglob("*")]
    count = sum(path.name.endswith(tuple(EXTENSION_SUFFIXES)) for path in files)
    if not count:
        return True, "compiled", "no modules: the sources run as they are"
    return None, "compiled", f"{count} modules, with mypyc: changing their sources has no effect"


def devices() -> Check:
    """Report the devices of numeric runs."""
    from ....targets.base.registry import missing_devices

    missing = missing_devices("hybrid")
    there = [name for name, reason in missing.items() if not reason]
    skipped = "; ".join(f"--device {name} is skipped: {reason}" for name, reason in missing.items() if reason)
    found = f"symbolic, {', '.join(there)}" if there else "symbolic"
    return (True if not skipped else None), "devices", f"{found}{'; ' if skipped else ''}{skipped}"


def real_models() -> Check:
    """Report whether engines can run real models here. Files are looked at; no engine and no CUDA is loaded."""
    gpu = Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
    installed = find_spec("vllm") is not None
    torch = find_spec("torch") is not None
    if gpu and torch:
        spec = "vllm" if installed else "vllm@RELEASE"
        shared = "" if which("nvidia-cuda-mps-control") else "; no nvidia-cuda-mps-control: processes share it slowly"
        return True, "real models", f"--target {spec} --device cuda: an NVIDIA GPU and PyTorch are here{shared}"
    reason = "no NVIDIA GPU" if not gpu else "no PyTorch in this environment"
    return None, "real models", f"{reason}: --target vllm@RELEASE --device interpreter runs them on a CPU, slowly"


def machine() -> Check:
    """Report cores and memory."""
    from ...workers.machine import cores

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return True, "machine", f"{cores()} cores, {memory:.0f} GiB of memory, {platform.system()}"


def isolation() -> Check:
    """Report the network that workers have."""
    from ...workers.worker_environment import namespaces_missing

    if reason := namespaces_missing():
        return None, "isolation", f"workers share this machine's network and see its processes: {reason}"
    return True, "isolation", "workers have loopback as their only network"


def cache() -> Check:
    """Check the folder of engines' environments."""
    from ....targets.base.environment import cache_folder
    from ....targets.base.protocol import TargetError

    try:
        folder = cache_folder()
    except TargetError as error:
        return None, "cache folder", str(error)
    free = shutil.disk_usage(folder).free / 1e9
    found = f"{folder}, {free:.0f} GB free"
    if free < ENGINE_GIGABYTES:
        return (
            None,
            "cache folder",
            f"{found}: an engine needs {ENGINE_GIGABYTES:g} GB; set HYBRIDFUZZ_CACHE",
        )
    return True, "cache folder", found


def built_in_target() -> Check:
    """Start the built-in target and run a few traces."""
    from ....targets.base.protocol import TargetError
    from ....targets.base.registry import prepare
    from ...workers.messages import Fuzz
    from ...workers.worker_client import WorkerClient

    try:
        with WorkerClient("hybrid", prepare("hybrid", lambda line: None)) as worker:
            worker.start()
            began = time.monotonic()
            outcomes = [ran.outcome for ran in worker.fuzz(Fuzz(0, 0, 10, {}))]
    except TargetError as error:
        return False, "built-in target", str(error)
    if broken := [outcome.violation.message for outcome in outcomes if outcome.violation]:
        return False, "built-in target", broken[0]
    steps = sum(outcome.steps for outcome in outcomes)
    return True, "built-in target", f"{steps / (time.monotonic() - began):,.0f} steps/s on one core"
