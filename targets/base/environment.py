"""Environments for engines, made once and kept in a cache folder: a venv, an unpacked wheel, a link to ourselves.

Everything is made in place and is complete when its stamp exists, so an interrupted attempt is taken up again; a
lock keeps two processes apart. pip does all fetching, through whatever index the user has configured. Whatever
goes wrong becomes a `TargetError` of one line.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from .protocol import TargetError

Progress = Callable[[str], None]

OURS = Path(__file__).parents[2]
FOLDERS = ("harness", "reference", "targets", "corpus", "reports")
STAMP = ".complete"

_NO_NETWORK = re.compile(
    r"NewConnection|ConnectionError|ConnectTimeout|ProxyError|Max retries|name resolution|timed out|refused"
)
_NO_SPACE = re.compile(r"No space left on device|Errno 28|Disk quota exceeded")
_STEP = re.compile(r"(Collecting|Downloading|Installing collected packages)[: ]+(\S+)(?: \((.+)\))?")
_RAW = re.compile(r"Progress (\d+) of (\d+)")


def cache_folder() -> Path:
    """$HYBRIDFUZZ_CACHE, or hybridfuzz in the user's cache folder. Made if missing; TargetError if not writable."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.environ.get("HYBRIDFUZZ_CACHE") or f"{base}/hybridfuzz").expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "not writable")
    except OSError as error:
        raise TargetError(
            f"cannot use the cache folder {folder}: {error.strerror}; set HYBRIDFUZZ_CACHE to a folder of yours"
        ) from error
    return folder


@contextmanager
def made_once(folder: Path, what: str, gigabytes: float, progress: Progress) -> Iterator[bool]:
    """Yields whether `folder` still has to be made, by the body, under a lock. Stamped when the body ends well."""
    if (folder / STAMP).exists():
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
        if _NO_SPACE.search(str(error)):
            raise _no_space(folder, what) from error
        raise TargetError(f"cannot make {what} in {folder}: {error.strerror or error}") from error


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
            "free some, or set HYBRIDFUZZ_CACHE to a folder on a larger disk"
        )


def _no_space(folder: Path, what: str) -> TargetError:
    return TargetError(
        f"no space left while making {what} in {folder}: free some, or set HYBRIDFUZZ_CACHE to a larger disk"
    )


def make_venv(requirements: Path, what: str, gigabytes: float, progress: Progress) -> Path:
    """The interpreter of a venv with exactly these requirements (and not their dependencies)."""
    key = sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = cache_folder() / "venvs" / f"{requirements.parent.name}-{key}"
    python = folder / "bin" / "python"
    with made_once(folder, what, gigabytes, progress) as missing:
        if missing:
            made = _run([sys.executable, "-m", "venv", str(folder)], lambda line: None)
            if made.code:
                raise TargetError(f"cannot make a virtual environment in {folder}: {made.last_line}")
            pip(python, ["install", "--no-deps", "-r", str(requirements)], what, folder, progress)
    return python


def unpack_wheel(
    python: Path, name: str, version: str, unwanted: re.Pattern[str], gigabytes: float, progress: Progress
) -> Path:
    """The folder with a release's files, less those whose path matches `unwanted`."""
    folder = cache_folder() / name / version / "tree"
    what = f"{name} {version}"
    with made_once(folder, what, gigabytes, progress) as missing:
        if missing:
            _fetch_and_unpack(python, f"{name}=={version}", what, folder, unwanted, progress)
    return folder


def _fetch_and_unpack(
    python: Path, requirement: str, what: str, folder: Path, unwanted: re.Pattern[str], progress: Progress
) -> None:
    """pip skips the download if an earlier attempt left the wheel."""
    wheels = folder.parent / "download"
    command = ["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(wheels)]
    pip(python, [*command, requirement], what, folder, progress)
    [wheel] = wheels.glob("*.whl")
    try:
        with ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not unwanted.search(name):
                    archive.extract(name, folder)
    except BadZipFile as error:
        shutil.rmtree(wheels)
        raise TargetError(f"{wheel.name} is damaged and was removed: run the command again") from error
    shutil.rmtree(wheels)


def importable() -> Path:
    """A folder that makes `hybridfuzz`, and nothing else of ours, importable in another interpreter."""
    folder = cache_folder() / "importable" / sha256(str(OURS).encode()).hexdigest()[:12]
    package = folder / "hybridfuzz"
    package.mkdir(parents=True, exist_ok=True)
    for name in FOLDERS:
        if not (package / name).is_symlink():
            temporary = package / f".{name}-{os.getpid()}"
            temporary.symlink_to(OURS / name)
            temporary.replace(package / name)
    return folder


class Finished:
    """A command that has ended."""

    def __init__(self, code: int, output: str) -> None:
        self.code = code
        self.output = output

    @property
    def last_line(self) -> str:
        """The last line that says something."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")]
        return (errors or lines or ["no output"])[-1].removeprefix("ERROR: ")


def _run(command: list[str], on_line: Callable[[str], None]) -> Finished:
    """Run a command, both streams together, line by line."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            on_line(line)
    return Finished(process.returncode, "".join(lines))


def pip(python: Path, arguments: list[str], what: str, folder: Path, progress: Progress) -> None:
    """Run the venv's pip; TargetError with the cause in one line if it fails."""
    tenths = 0

    def on_line(line: str) -> None:
        nonlocal tenths
        if (raw := _RAW.match(line)) and int(raw[2]):
            if (now := 10 * int(raw[1]) // int(raw[2])) > tenths:
                progress(f"{what}: {now}0 % of {int(raw[2]) / 1e6:.0f} MB")
            tenths = now
        elif step := _STEP.search(line):
            progress(f"{what}: {step[1].lower()} {step[2]}{f' ({step[3]})' if step[3] else ''}")

    quiet = ["--no-input", "--disable-pip-version-check", "--retries", "1"]
    command = [str(python), "-m", "pip", arguments[0], *quiet]
    bar = "raw" if _knows_raw(python) else "off"
    ended = _run([*command, "--progress-bar", bar, *arguments[1:]], on_line)
    if ended.code:
        raise explain(ended, what, folder)


def _knows_raw(python: Path) -> bool:
    """pip reports progress in plain numbers from 24.1 on."""
    version = _run([str(python), "-m", "pip", "--version"], lambda line: None).output.split()[1]
    major, minor = (int(part) for part in version.split(".")[:2])
    return (major, minor) >= (24, 1)


def explain(ended: Finished, what: str, folder: Path) -> TargetError:
    """What pip's output means to somebody who did not call pip."""
    output = ended.output
    found = re.search(r"from versions: (.+)\)", output)
    if _NO_SPACE.search(output):
        return _no_space(folder, what)
    if found and found[1] != "none":
        versions = found[1].split(", ")
        return TargetError(f"{what} does not exist for this Python; there is {', '.join(versions[-8:])}")
    if _NO_NETWORK.search(output):
        return TargetError(
            f"cannot download {what}: no package index can be reached; check the network and `pip config list`"
        )
    if found:
        return TargetError(f"cannot download {what}: pip's package index has no wheel of it for this machine")
    return TargetError(f"cannot install {what}: {ended.last_line}")
