"""What lies in the cache folder, when it was last used, and how it is removed.

Only folders that hybridfuzz has made are listed, by their place and the form of their names: the cache may be a folder
that holds other things, too. Whoever uses one touches it (`environment.used`).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from .environment import STAMP, cache_folder
from .releases import RELEASE

HEX = "[0-9a-f]"
KINDS = {
    "venvs": ("environment", rf"[\w-]+-{HEX}{{12}}|pip"),
    "tools": ("tool", rf"[\w.]+-{HEX}{{12}}"),
    "patched": ("engine with patches", rf"{HEX}{{16}}"),
    "gate": ("output of the gate", rf"{HEX}{{12}}"),
    "importable": ("link to hybridfuzz", rf"{HEX}{{12}}"),
    "mirrors": ("copy of an output folder", rf".+-{HEX}{{8}}"),
}
"""Folder of the cache -> what each entry is, and the form of its name."""
OF_ENGINE = {
    "release": RELEASE.pattern,
    "checkout": rf"path-{HEX}{{12}}",
    "files of a worker": rf"{HEX}{{12}}|installed",
}
"""Likewise in the folder of an engine."""


class Cached(Struct, frozen=True):
    """One folder. `engine` is "" if it belongs to none; `used` is seconds since the epoch, `size` bytes on disk."""

    path: Path
    kind: str
    engine: str
    used: float
    size: int


def contents(engines: list[str]) -> list[Cached]:
    """Return what is in the cache, the largest first. Raises TargetError if there is no cache folder."""
    root = cache_folder()
    found = [_cached(path, kind, _engine_of(path, engines)) for path, kind in _entries(root, engines)]
    return sorted(found, key=lambda one: -one.size)


def remove(one: Cached) -> None:
    """Remove a folder and its lock. Raises OSError."""
    shutil.rmtree(one.path)
    one.path.with_name(f"{one.path.name}.lock").unlink(missing_ok=True)


def _entries(root: Path, engines: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield (folder, kind). A link is left alone: what it points to may be anywhere."""
    for name, (kind, form) in KINDS.items():
        for path in _folders(root / name, form):
            yield path, kind
    for engine in engines:
        for kind, form in OF_ENGINE.items():
            for path in _folders(root / engine, form):
                yield path, kind


def _folders(place: Path, form: str) -> Iterator[Path]:
    if place.is_symlink() or not place.is_dir():
        return
    for path in sorted(place.iterdir()):
        if re.fullmatch(form, path.name) and path.is_dir() and not path.is_symlink():
            yield path


def _engine_of(path: Path, engines: list[str]) -> str:
    names = (path.parent.name, path.name.rpartition("-")[0])
    inside = (engine for engine in engines if path.parent.name == "patched" and (path / engine).exists())
    return next((engine for engine in engines if engine in names), next(inside, ""))


def _cached(path: Path, kind: str, engine: str) -> Cached:
    stamps = (path, path / STAMP, path / "tree" / STAMP)
    used = max((status.st_mtime for one in stamps if (status := _status(one))), default=0.0)
    return Cached(path, kind, engine, used, _size(path))


def _status(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        return path.stat(follow_symlinks=False)
    return None


def _size(folder: Path) -> int:
    """Return what a folder takes on disk, without what its links point to."""
    total, left = 0, [folder]
    while left:
        with suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
    return total
