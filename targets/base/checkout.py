"""A view of an engine's checkout from which the engine imports as it does from a release.

A git checkout lacks what a build adds: package metadata (without it vLLM disables Triton) and a version module. It may
also hold binaries of any build, for another device or another Torch. The view is a folder of symbolic links to the
package, with metadata and version, and without the files that are not unpacked of a release either. Nothing is written
to the checkout, and nothing else in it (its tests, its `vllm.egg-info`) can be imported.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from .protocol import TargetError
from .regular_file import start_of_regular

UNBUILT = "0.0.0.dev0"
"""The version of a checkout without a version module; SGLang's own default."""
VERSION_BYTES_MAX = 1 << 16
_VERSION = re.compile(r"^__version__\s*=\s*(?:version\s*=\s*)?['\"]([\w.]+)", re.MULTILINE)


def make_view(package: Path, unwanted: re.Pattern[str], home: Path) -> Path:
    """Return the folder to import `package` from, made below `home` unless it is there.

    Its name is a digest of its contents, so that processes which make it at the same time agree, and one that is in
    use never changes. Raises TargetError if it cannot be made.
    """
    number = _version(package)
    texts = {f"{package.name}-{number}.dist-info/METADATA": _metadata(package.name, number)}
    if not (package / "_version.py").is_file():
        texts[f"{package.name}/_version.py"] = _version_module(number)
    links = dict(_links(package, unwanted))
    folder = home / f"view-{sha256(repr((sorted(links.items()), sorted(texts.items()))).encode()).hexdigest()[:12]}"
    try:
        if not folder.is_dir():
            fill(folder, links, texts)
    except OSError as error:
        raise TargetError(f"cannot make a view of {package} in {folder}: {error.strerror or error}") from error
    return folder


def fill(folder: Path, links: Mapping[str, str], texts: Mapping[str, str]) -> None:
    """Make a folder of links and files in one go, also if several processes make it at the same time.

    Raises OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".view-", dir=folder.parent))
    try:
        for name, to in links.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).symlink_to(to)
        for name, text in texts.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_text(text, encoding="utf-8")
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process has been faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _links(package: Path, unwanted: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Yield (path in the view, path that it links to).

    A folder without unwanted files is linked as a whole, except for the package's own.
    """
    root = package.parent
    mixed, files = {package.name}, {}
    for place, _, names in os.walk(package):
        inside = Path(place).relative_to(root).as_posix()
        files[inside] = [name for name in names if not unwanted.search(f"{inside}/{name}")]
        if len(files[inside]) < len(names):
            parts = inside.split("/")
            mixed.update("/".join(parts[: depth + 1]) for depth in range(len(parts)))
    for inside in sorted(mixed):
        children = [child.name for child in (root / inside).iterdir() if child.is_dir() and child.name != "__pycache__"]
        for name in [*files[inside], *children]:
            if f"{inside}/{name}" not in mixed:
                yield f"{inside}/{name}", str(root / inside / name)


def _version(package: Path) -> str:
    """The version that a build left in the checkout, without "+cpu" and the like: vLLM looks for that word."""
    text = b""
    with suppress(OSError):
        text = start_of_regular(package / "_version.py", VERSION_BYTES_MAX)
    found = _VERSION.search(text.decode("utf-8", "replace"))
    return found[1] if found else UNBUILT


def _metadata(name: str, number: str) -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\nSummary: a checkout, seen by hybridfuzz\n"


def _version_module(number: str) -> str:
    parts = tuple(int(part) if part.isdigit() else part for part in number.split("."))
    return f"__version__ = version = {number!r}\n__version_tuple__ = version_tuple = {parts!r}\n"
