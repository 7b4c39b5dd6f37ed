"""Output folders at a URL: `-o s3://bucket/night`, any file system of fsspec.

The campaign works in a local folder, the mirror. Before the start the objects of the URL are fetched; afterwards every
file that changed is put there as one object, which readers see as it was or as it is. `sync` is called before a finding
is reported, so that what was reported survives this machine. A trace is put before the state that counts it.

Two campaigns on one URL exclude each other with a lock object, which is created only if there is none. Its owner
renews it; a lock that was not renewed for `STALE_SECONDS` belonged to a campaign that was killed and is taken over.
`file://` is a local folder, without a mirror.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ....targets.base.environment import cache_folder
from ...quoting import one_line
from .finding_store import STATE_FILE, OutputError

LOCK_NAME = ".lock"
RENEW_SECONDS = 20.0
STALE_SECONDS = 120.0
SETTLE_SECONDS = 1.0
"""After taking over a stale lock: time in which another process that found it stale, too, would have replaced ours."""
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "hf", "memory"})
"""Schemes where a write is one object, seen as a whole or not at all. Elsewhere a file is written aside and renamed."""
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<path>.*)")
_LAST = (STATE_FILE, "triage.json")
"""Files that name others: they are put last."""
_SKIPPED = re.compile(r"\.tmp$|\.probe$|^\.lock$|\.broken$")


def is_url(text: str) -> bool:
    """Return True if an output folder is a URL that needs a mirror."""
    match = _URL.match(text)
    return bool(match) and match["scheme"] != "file"  # type: ignore[index]


def local_path(text: str) -> Path:
    """Return the path of a folder that is no URL, or a file:// URL."""
    return Path(text.removeprefix("file://") if text.startswith("file://") else text)


class Mirror:
    """A local copy of a URL. `sync` may be called from any thread."""

    def __init__(self, url: str, folder: Path, file_system: Any, root: str) -> None:
        self.url = url
        self.folder = folder
        self._fs = file_system
        self._root = root.rstrip("/")
        self._put: dict[str, tuple[int, int]] = {}
        """Size and time of change of each file as it was put."""
        self._guard = threading.Lock()
        self._lost = ""

    def fetch(self) -> None:
        """Fetch all objects; local files that the URL lacks are removed. Raises OutputError."""
        there = set()
        try:
            for name in self._objects():
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._fs.cat_file(f"{self._root}/{name}"))
                there.add(name)
                self._put[name] = _stamp(path)
        except Exception as error:  # each file system raises its own
            raise _error(self.url, error) from error
        for path in list(self._files()):
            if str(path.relative_to(self.folder)) not in there:
                path.unlink()

    def sync(self) -> None:
        """Put every file that changed, remove objects whose file is gone. Raises OutputError."""
        with self._guard:
            if self._lost:
                raise OutputError(self._lost)
            try:
                self._sync()
            except Exception as error:  # each file system raises its own
                raise _error(self.url, error) from error

    def _sync(self) -> None:
        names = {}
        for path in self._files():
            with suppress(FileNotFoundError):
                names[str(path.relative_to(self.folder))] = _stamp(path)
        changed = [name for name, stamp in names.items() if self._put.get(name) != stamp]
        for name in sorted(changed, key=lambda one: (one in _LAST, one)):
            with suppress(FileNotFoundError):  # it was replaced or removed just now: the next time
                self._put_object(name, (self.folder / name).read_bytes())
                self._put[name] = names[name]
        for name in [name for name in self._put if name not in names]:
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._root}/{name}")
            del self._put[name]

    def _put_object(self, name: str, data: bytes) -> None:
        """Write one object: nothing is visible under its name before all of it is there."""
        path = f"{self._root}/{name}"
        self._fs.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
        if OBJECT_STORES.intersection(_protocols(self._fs)):
            self._fs.pipe_file(path, data)
            return
        temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        self._fs.pipe_file(temporary, data)
        self._fs.mv(temporary, path)

    def _objects(self) -> list[str]:
        """Return the names of all objects but the lock."""
        try:
            found = self._fs.find(self._root)
        except FileNotFoundError:
            return []
        names = [str(name)[len(self._root) :].lstrip("/") for name in found]
        return [name for name in names if name and not _SKIPPED.search(name) and ".." not in PurePosixPath(name).parts]

    def _files(self) -> Iterator[Path]:
        for path in self.folder.rglob("*"):
            if path.is_file() and not _SKIPPED.search(path.name):
                yield path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other campaigns out of the URL. Raises OutputError if one is there."""
        owner = f"{socket.gethostname()} process {os.getpid()} {uuid.uuid4().hex[:8]}"
        path, ended = f"{self._root}/{LOCK_NAME}", threading.Event()
        try:
            self._acquire(path, owner)
        except OutputError:
            raise
        except Exception as error:
            raise _error(self.url, error) from error
        renewing = threading.Thread(target=self._renew, args=(path, owner, ended), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join()
            with suppress(Exception):
                if self._owner(path)[0] == owner:
                    self._fs.rm_file(path)

    def _acquire(self, path: str, owner: str) -> None:
        self._fs.makedirs(self._root, exist_ok=True)
        if self._create(path, owner):
            return
        other, renewed = self._owner(path)
        if time.time() - renewed < STALE_SECONDS:
            raise OutputError(f"another campaign is at work in {self.url} ({other}); choose another folder with -o")
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)
        if not self._create(path, owner):
            raise OutputError(f"another campaign is at work in {self.url}; choose another folder with -o")
        time.sleep(SETTLE_SECONDS)
        if self._owner(path)[0] != owner:
            raise OutputError(f"another campaign is at work in {self.url}; choose another folder with -o")

    def _create(self, path: str, owner: str) -> bool:
        """Create the lock object. Return False if there is one."""
        try:
            with self._fs.open(path, "xb") as file:
                file.write(_lock(owner))
        except FileExistsError:
            return False
        return True

    def _owner(self, path: str) -> tuple[str, float]:
        self._fs.invalidate_cache()
        try:
            value = json.loads(self._fs.cat_file(path))
            return str(value["owner"]), float(value["renewed"])
        except FileNotFoundError:
            return "", 0.0
        except (ValueError, KeyError, TypeError):
            return "", 0.0  # cut off while it was written: nobody renews it

    def _renew(self, path: str, owner: str, ended: threading.Event) -> None:
        """Renew the lock: the body of a thread. If it is lost, the next `sync` ends the campaign."""
        renewed = time.monotonic()
        while not ended.wait(RENEW_SECONDS):
            try:
                if self._owner(path)[0] != owner:
                    self._lost = f"another campaign has taken over {self.url}"
                    return
                self._fs.pipe_file(path, _lock(owner))
                renewed = time.monotonic()
            except Exception as error:
                if time.monotonic() - renewed > STALE_SECONDS / 2:
                    self._lost = f"the lock of {self.url} could not be renewed: {error}"
                    return


def _lock(owner: str) -> bytes:
    return json.dumps({"owner": owner, "renewed": time.time()}).encode()


def _protocols(file_system: Any) -> tuple[str, ...]:
    """Return the schemes of a file system."""
    named = file_system.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _stamp(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _error(url: str, error: Exception) -> OutputError:
    reason = one_line(f"{type(error).__name__}: {error}", 300)
    return OutputError(f"cannot use the output folder {url}: {reason}")


def _mirror(url: str, above: Path) -> Mirror:
    try:
        import fsspec
    except ImportError:
        raise OutputError(
            f"{url} needs fsspec and its package for the scheme: pip install 'hybridfuzz[storage]'"
        ) from None
    try:
        file_system, root = fsspec.core.url_to_fs(url)
        name = re.sub(r"[^\w.-]+", "_", url)[-60:] + "-" + hashlib.sha256(url.encode()).hexdigest()[:8]
        (above / name).mkdir(parents=True, exist_ok=True)
    except (ImportError, ValueError, OSError) as error:
        raise _error(url, error) from error
    return Mirror(url, above / name, file_system, root)


@contextmanager
def mirrored(url: str) -> Iterator[Mirror]:
    """Yield the locked mirror of a URL, with what is there; put everything at the end. Raises OutputError, TargetError.

    The mirror stays in the cache folder, so that commands that name its files work afterwards.
    """
    mirror = _mirror(url, cache_folder() / "mirrors")
    with mirror.locked():
        mirror.fetch()
        yield mirror
        mirror.sync()


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """Yield a copy of a URL that is removed afterwards. Raises OutputError."""
    with tempfile.TemporaryDirectory(prefix="hybridfuzz-") as name:
        mirror = _mirror(url, Path(name))
        mirror.fetch()
        yield mirror.folder
