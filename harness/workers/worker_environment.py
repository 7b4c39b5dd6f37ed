"""The rights of a worker process: its environment, its home folder, its network.

environment   variables on an allow list, so that a target never sees tokens of the CI job that runs it: PATH, LANG,
              LC_*, TZ, PYTHON*, LD_*, compilers, and what CUDA, Triton, Torch, OpenMP, BLAS, NCCL, Hugging Face, vLLM,
              SGLang and sanitizers read. Of those that only begin as the list says, none passes that has TOKEN (but
              TOKENIZER does), KEY, SECRET, PASSW, PASSPHRASE, PWD, CRED, AUTH, BEARER or COOKIE anywhere in its
              name. HYBRIDFUZZ_PASS_ENV="A,B" passes more, by name. PYTHONHASHSEED is 0 unless it is set: an engine
              that frees blocks in the order of a set of names (vLLM, for transfers
              that ended in one step) would have other block ids in each process.
home          HOME, TMPDIR and the XDG folders are in a temporary folder that is removed with the worker, or by the next
              one if all were killed. Compiled kernels are kept in one shared folder below the cache of hybridfuzz.
network       on Linux, where unprivileged user namespaces are permitted: a network namespace of its own with nothing
              but loopback. The user namespace also keeps the worker from reading the environment of the coordinator
              in /proc. HYBRIDFUZZ_NETWORK=1 leaves both out.

This is no sandbox: a worker still reads and writes files with the rights of its user.

Only the standard library is imported: `enter_namespaces` runs before NumPy starts threads.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

HOME_PREFIX = "hybridfuzz-home-"
YOUNG_SECONDS = 60.0
"""A home that is younger is never taken for abandoned: its owner may not have locked it yet."""
NETWORK = "HYBRIDFUZZ_NETWORK"
MORE = "HYBRIDFUZZ_PASS_ENV"
_ALLOWED = """
PATH LANG LANGUAGE TZ TERM USER LOGNAME PWD SHELL VIRTUAL_ENV CONDA_PREFIX CC CXX CPATH C_INCLUDE_PATH
CPLUS_INCLUDE_PATH LIBRARY_PATH SYSTEMROOT SOURCE_DATE_EPOCH NO_COLOR COLUMNS
"""
_ALLOWED_PREFIXES = """
LC_ PYTHON LD_ DYLD_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ VECLIB_ NUMEXPR_ NUMBA_ NPY_ NUMPY_ MALLOC_
CUDA_ CUDNN_ CUBLAS_ CUTLASS_ NVIDIA_ NVTE_ NCCL_ GLOO_ ROCM_ ROCR_ HIP_ HSA_ MIOPEN_
TORCH PYTORCH_ TRITON_ VLLM_ SGLANG_ SGL_ FLASHINFER_ TVM_ TILELANG_ DG_ HF_ TRANSFORMERS_ TOKENIZERS_
ASAN_ UBSAN_ TSAN_ LSAN_ COVERAGE_ COV_CORE_ HYBRIDFUZZ_
"""
_NAMES, _PREFIXES = frozenset(_ALLOWED.split()), tuple(_ALLOWED_PREFIXES.split())
_SECRET = re.compile(r"TOKEN(?!IZER)|KEY|SECRET|PASSW|PASSPHRASE|PWD|CRED|AUTH|BEARER|COOKIE", re.IGNORECASE)
"""Anywhere in a name that begins as an allowed one does: names of secrets are not always separate words."""
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _UP_AND_RUNNING = 0x8914, 0x41


def passes(name: str, more: frozenset[str] = frozenset()) -> bool:
    """Return True if workers get the coordinator's environment variable of this name."""
    if name in more:
        return True
    return name in _NAMES or (name.startswith(_PREFIXES) and not _SECRET.search(name))


class Home:
    """The temporary home folder of one process. Use as a context manager, or call `remove`.

    It is locked as long as the process that made it lives. So homes that were left behind are known: those of workers
    that were killed together with their coordinator, as Ray and the out-of-memory killer do. The next `Home` removes
    them.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=HOME_PREFIX))
        (self.path / "tmp").mkdir()
        self._lock = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: nothing is ever taken for abandoned there
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder. Safe to call again."""
        remove_home(self.path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_home(home: Path) -> None:
    """Remove the folder of a `Home`; nothing else."""
    if home.name.startswith(HOME_PREFIX):
        shutil.rmtree(home, ignore_errors=True)


def remove_abandoned(folder: Path) -> None:
    """Remove the homes in a folder whose owners are gone."""
    for home in folder.glob(f"{HOME_PREFIX}*"):
        with suppress(OSError):  # another user's, or locked
            status = home.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < YOUNG_SECONDS:
                continue
            lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_home(home)
            finally:
                os.close(lock)


def environment(ours: Mapping[str, str], launch: Mapping[str, str], home: Path, cached: Path | None) -> dict[str, str]:
    """Return the environment of a worker.

    ours     the coordinator's environment
    launch   what the target needs; it wins over everything else
    home     the folder of a `Home`
    cached   the cache folder of hybridfuzz, None if there is none that can be written to
    """
    more = frozenset(name.strip() for name in ours.get(MORE, "").split(","))
    passed = {name: value for name, value in ours.items() if passes(name, more)}
    return {**_shared(ours, cached), "PYTHONHASHSEED": "0", **passed, **_private(home), **launch}


def _shared(ours: Mapping[str, str], cached: Path | None) -> dict[str, str]:
    """What must not change from worker to worker: engines would compile their kernels again."""
    before = Path(ours.get("HOME") or Path.home())
    shared = {"HF_HUB_CACHE": str(before / ".cache" / "huggingface" / "hub")}
    if site.ENABLE_USER_SITE:
        shared["PYTHONUSERBASE"] = site.getuserbase()
    if cached:
        shared["HYBRIDFUZZ_CACHE"] = str(cached)
        kernels = cached / "kernels"
        shared["TRITON_CACHE_DIR"] = str(kernels / "triton")
        shared["TORCHINDUCTOR_CACHE_DIR"] = str(kernels / "torchinductor")
        # torch looks for its precompiled header, 150 MB, in TMPDIR, even if each kernel is in the cache above: each
        # worker would take 10 s to make its own.
        shared["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
        shared["TORCH_EXTENSIONS_DIR"] = str(kernels / "torch_extensions")
        shared["CUDA_CACHE_PATH"] = str(kernels / "cuda")
        shared["FLASHINFER_WORKSPACE_BASE"] = str(kernels / "flashinfer")
    return shared


def _private(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
    }


@cache
def namespaces_missing() -> str:
    """Return why workers share the machine's network; empty if each gets a namespace of its own.

    Tried once, in a process of its own: some systems permit the call, and none of what has to follow it.
    """
    if wants_network(os.environ):
        return f"{NETWORK} is set"
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", __file__], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot be tried: {error}"
    return tried.stdout.strip() or (f"exit status {tried.returncode}" if tried.returncode else "")


def wants_network(variables: Mapping[str, str]) -> bool:
    """Return True if the user asked for workers with the machine's network."""
    return variables.get(NETWORK, "") not in ("", "0")


def enter_namespaces() -> str:
    """Move this process into a user and a network namespace of its own, with loopback up.

    Return "" if that worked, else the reason. Call it while there is one thread, and only where
    `namespaces_missing` is empty: a failure half-way leaves a process without users or loopback.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no network namespaces"
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        return f"unshare: {os.strerror(ctypes.get_errno())}"
    try:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        _loopback_up()
    except OSError as error:
        return f"a namespace without loopback or users: {error}"
    return ""


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="ascii")


def _loopback_up() -> None:
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))


if __name__ == "__main__":
    sys.stdout.write(enter_namespaces())
