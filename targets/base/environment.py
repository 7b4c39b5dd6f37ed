"""Environments for engines, made once and kept in a cache folder.

An environment is a venv, an unpacked wheel and a link to hybridfuzz. Each is made in place and complete when its stamp
file exists, so an interrupted attempt is resumed; a lock excludes other processes. pip downloads everything, through
the index that the user has configured. Every failure becomes a `TargetError` of one line.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import get_ident
from zipfile import BadZipFile, ZipFile

from .pip import NO_SPACE, Progress, pip, run
from .protocol import TargetError

OURS = Path(__file__).absolute().parents[2]
"""The package: in a checkout it consists of links, which must not be resolved."""
STAMP = ".complete"


def cache_folder() -> Path:
    """Return $HYBRIDFUZZ_CACHE, or hybridfuzz in the user's cache folder; make it if missing.

    TargetError if it is not writable.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    wanted = Path(os.environ.get("HYBRIDFUZZ_CACHE") or f"{base}/hybridfuzz")
    folder = wanted.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "not writable")
    except OSError as error:
        raise TargetError(
            f"cannot use the cache folder {folder}: {error.strerror}; set HYBRIDFUZZ_CACHE to a writable folder"
        ) from error
    return folder


def used(path: Path) -> None:
    """Note that something in the cache was used (`stored_environments`). Another user's cache keeps its dates."""
    with suppress(OSError):
        os.utime(path)


@contextmanager
def made_once(folder: Path, what: str, gigabytes: float, progress: Progress) -> Iterator[bool]:
    """Yield True, under a lock, if the body has to make `folder`; False if it is complete.

    It is stamped as complete when the body ends without an exception.
    """
    if (folder / STAMP).exists():
        used(folder / STAMP)
        yield False
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            _lock(lock.fileno(), what, progress)
            if (folder / STAMP).exists():
                yield False
                return
            _check_space(folder, what, gigabytes)
            progress(f"making {what} in {folder} (once)")
            yield True
            (folder / STAMP).touch()
            progress(f"made {what}")
    except OSError as error:
        cure = ""
        if NO_SPACE.search(str(error)):
            cure = ": free some space, or set HYBRIDFUZZ_CACHE to a folder on a larger disk"
        problem = error.strerror or error
        raise TargetError(f"cannot make {what} in {folder}: {problem}{cure}") from error


def _lock(descriptor: int, what: str, progress: Progress) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(f"waiting for another hybridfuzz that is making {what}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _check_space(folder: Path, what: str, gigabytes: float) -> None:
    free = shutil.disk_usage(folder).free / 1e9
    if free < gigabytes:
        raise TargetError(
            f"{what} needs {gigabytes:g} GB but {folder} has {free:.1f} GB free: "
            "free some space, or set HYBRIDFUZZ_CACHE to a folder on a larger disk"
        )


def make_venv(requirements: Path, what: str, gigabytes: float, progress: Progress) -> Path:
    """Return the interpreter of a venv with exactly these requirements (without their dependencies)."""
    key = sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / "venvs" / f"{requirements.parent.name}-{key}"
    python = folder / "bin" / "python"
    if not python.exists():  # the interpreter that it was made from is gone
        (folder / STAMP).unlink(missing_ok=True)
        shutil.rmtree(folder / "bin", ignore_errors=True)
    with made_once(folder, what, gigabytes, progress) as missing:
        if missing:
            _make_bare_venv(folder, "--without-pip")
            command = ["install", "--no-deps", "-r", str(requirements)]
            pip(pip_python(progress), command, what, progress, into=python)
    return python


def _make_bare_venv(folder: Path, *options: str) -> None:
    made = run([sys.executable, "-m", "venv", *options, str(folder)])
    if made.code:
        raise TargetError(f"cannot make a virtual environment in {folder}: {made.last_line}")


def pip_python(progress: Progress) -> Path:
    """Return an interpreter that has pip: this one, or else one in a bare venv."""
    if find_spec("pip"):
        return Path(sys.executable)
    folder = cache_folder() / "venvs" / "pip"
    with made_once(folder, "a virtual environment with pip", 0.1, progress) as missing:
        if missing:
            _make_bare_venv(folder)
    return folder / "bin" / "python"


def unpack_wheel(
    name: str, version: str, unwanted: re.Pattern[str], gigabytes: float, progress: Progress, distribution: str = ""
) -> Path:
    """Return the folder with a release's files, except those whose path matches `unwanted`. Its wheel is one of
    `distribution` if that is not called `name`, as the engine is.

    Only a killed process leaves the wheel behind; pip then skips the download, or reports that it is damaged.
    """
    folder = cache_folder() / name / version / "tree"
    what, wheels = f"{name} {version}", folder.parent / "download"
    with made_once(folder, what, gigabytes, progress) as missing:
        if missing:
            options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest"]
            command = ["download", *options, str(wheels), f"{distribution or name}=={version}"]
            try:
                pip(pip_python(progress), command, what, progress)
                [wheel] = wheels.glob("*.whl")
                _unpack(wheel, folder, unwanted)
            finally:
                shutil.rmtree(wheels, ignore_errors=True)
    return folder


def _unpack(wheel: Path, folder: Path, unwanted: re.Pattern[str]) -> None:
    try:
        with ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not unwanted.search(name):
                    archive.extract(name, folder)
    except BadZipFile as error:
        raise TargetError(f"{wheel.name} is damaged and was removed: try again") from error


def importable() -> Path:
    """Return a folder that makes `hybridfuzz`, and nothing else, importable in another interpreter."""
    folder = cache_folder() / "importable" / sha256(str(OURS).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    _link(folder / OURS.name, OURS)
    for library in OURS.parent.glob("*__mypyc.*"):  # shared by compiled modules, in a compiled installation
        _link(folder / library.name, library)
    return folder


def _link(place: Path, to: Path) -> None:
    """Make a symbolic link; several threads and processes may make the same one."""
    if not place.is_symlink():
        temporary = place.with_name(f".{place.name}-{os.getpid()}-{get_ident()}")
        temporary.symlink_to(to)
        temporary.replace(place)
