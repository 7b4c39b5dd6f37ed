"""Finds an engine: a release (downloaded once), a checkout, or the one installed in this environment.

All releases of an engine share one venv with the packages that its Python code imports (`requirements.txt` beside the
adapter), unless the engine chooses by release; a release itself is its unpacked wheel, without the files that are not
needed on a CPU.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb

from msgspec import Struct

from .checkout import make_view
from .environment import STAMP, cache_folder, importable, make_venv, pip_python, unpack_wheel, used
from .launch import Launch
from .pip import Progress, releases_between, version_numbers
from .protocol import MisfitError, TargetError

ADAPTERS = Path(__file__).parents[2]
"""The folder of hybridfuzz: the files of all adapters are below it."""
NUMBERS = 3
"""Of a release of every engine: major, minor, patch."""
RELEASE = re.compile(r"\d+(\.\d+)+((a|b|rc|\.post|\.dev)\d+)*(\+[\w.]+)?")


class EngineReleases(Struct, frozen=True):
    """An engine that a package index has.

    name       name of its target, and of its distribution and import package where `package` is ""
    title      its name in messages
    example    a release that is known to work
    unwanted   paths in the wheel that are not unpacked, and hidden in a checkout
    variables  the environment variables of its worker, given a folder for its files
    source     the folder of a git checkout that holds the package
    package    name of its distribution and import package, if another one
    requirements_of  the requirements that fit a tree, for an engine whose releases do not all fit into one venv
    """

    name: str
    title: str
    example: str
    requirements: Path
    venv_gigabytes: float
    release_gigabytes: float
    unwanted: re.Pattern[str]
    variables: Callable[[Path], dict[str, str]]
    source: str = "."
    package: str = ""
    requirements_of: Callable[[Path], Path] | None = None

    @property
    def distribution(self) -> str:
        """The name of its distribution and import package."""
        return self.package or self.name

    def unpack(self, release: str, progress: Progress) -> Path:
        """Return the folder with a release's files."""
        return unpack_wheel(self.name, release, self.unwanted, self.release_gigabytes, progress, self.distribution)


def prepare(engine: EngineReleases, wanted: str, progress: Progress) -> Launch:
    """Return how to start a worker. `wanted` is a release, a path, or "" for the engine installed here."""
    home = cache_folder() / engine.name
    if not wanted:
        return _installed(engine, home)
    if RELEASE.fullmatch(wanted):
        _check_whole(engine, wanted)
        tree = engine.unpack(wanted, progress)
        return _launch(engine, tree, wanted, home / wanted, progress)
    package = _package(engine, wanted)
    tree = Path(wanted).expanduser().absolute()
    own = _folder_for(engine.name, tree)
    used(own)
    return _launch(engine, make_view(package, engine.unwanted, own), str(tree), own, progress)


def _folder_for(engine: str, tree: Path) -> Path:
    """Return the folder in the cache for a checkout of an engine: its view, and what its workers write."""
    return cache_folder() / engine / f"path-{sha256(str(tree).encode()).hexdigest()[:12]}"


def forget(engine: str, tree: Path) -> None:
    """Remove from the cache what was made for a checkout that is there no more."""
    shutil.rmtree(_folder_for(engine, tree.absolute()), ignore_errors=True)


def _check_whole(engine: EngineReleases, wanted: str) -> None:
    """Raise TargetError for a number without a patch: an index takes 0.33 for 0.33.0, a reader for the newest 0.33."""
    [number] = re.findall(r"^\d+(?:\.\d+)*", wanted)
    if len(version_numbers(number)) < NUMBERS:
        here = [one for one in available(engine) if one.startswith(f"{engine.name}@{number}.")]
        patch = here[-1] if here else f"{engine.name}@{number}.0"
        raise TargetError(f"target '{engine.name}@{wanted}' may be any patch of {number}: name one, such as {patch}")


def prepare_tree(engine: EngineReleases, wanted: str, progress: Progress) -> Launch:
    """Return how to start a worker for a release or a path with our own interpreter and what is installed for it."""
    if RELEASE.fullmatch(wanted):
        _check_whole(engine, wanted)
        tree = engine.unpack(wanted, progress)
    else:
        tree = _package(engine, wanted).parent
    home = cache_folder() / engine.name / sha256(str(tree).encode()).hexdigest()[:12]
    return Launch(sys.executable, {"PYTHONPATH": f"{importable()}:{tree}", **engine.variables(home)}, wanted, str(tree))


def _package(engine: EngineReleases, wanted: str) -> Path:
    """The engine's package in a checkout or an unpacked wheel; TargetError if there is none."""
    tree = Path(wanted).expanduser().absolute()
    places = [tree / folder / engine.distribution for folder in (".", engine.source)]
    package = next((place for place in places if (place / "__init__.py").is_file()), None)
    if package is None:
        known = ", ".join(available(engine)) or f"{engine.name}@{engine.example}"
        raise TargetError(
            f"target '{engine.name}@{wanted}': neither a release number nor a folder with "
            f"{engine.distribution}/__init__.py; known: {known}"
        )
    return package


def available(engine: EngineReleases) -> dict[str, str]:
    """Return the releases that are on this machine, as target string -> "ready"."""
    try:
        trees = list((cache_folder() / engine.name).glob("*/tree"))
    except TargetError:
        return {}
    trees.sort(key=lambda tree: version_numbers(tree.parent.name))
    return {f"{engine.name}@{tree.parent.name}": "ready" for tree in trees if (tree / STAMP).exists()}


def between(engine: EngineReleases, first: str, last: str, progress: Progress) -> list[str]:
    """Return the final releases from `first` to `last`, oldest first. TargetError if they cannot be listed."""
    return releases_between(pip_python(progress), engine.distribution, first, last)


def cannot_import(title: str, example: str, error: ImportError) -> TargetError:
    """Return the error of a worker that cannot import the engine, with a remedy that fits its interpreter.

    A name that the engine's modules do not have any more is not for lack of a file: the adapter does not fit.
    """
    package = (error.name or "").partition(".")[0]
    frames = extract_tb(error.__traceback__)
    raised = Path(frames[-1].filename) if frames else Path()
    spec = find_spec(package) if package else None
    if spec and spec.origin and raised.is_relative_to(ADAPTERS):  # a folder of that name on the path has no origin
        return MisfitError(
            f"{title} cannot be imported: {error.msg} ({raised.relative_to(ADAPTERS)}:{frames[-1].lineno})"
        )
    if not Path(sys.prefix).is_relative_to(cache_folder()):
        return TargetError(f"{title} cannot be imported here ({error}); use {example} for an environment of its own")
    return TargetError(
        f"{title} cannot be imported ({error}): if its files were damaged, remove {sys.prefix} or the release's folder "
        f"in {cache_folder()}; if a checkout needs more, `pip --python {sys.executable} install` it"
    )


def _installed(engine: EngineReleases, home: Path) -> Launch:
    if find_spec(engine.distribution) is None:
        raise TargetError(
            f"target '{engine.name}': {engine.title} is not installed for {sys.executable}; "
            f"{engine.name}@{engine.example} makes an environment of its own"
        )
    try:
        number = version(engine.distribution)
    except PackageNotFoundError:
        number = "of unknown version"
    return Launch(sys.executable, engine.variables(home / "installed"), number)


def _launch(engine: EngineReleases, tree: Path, number: str, home: Path, progress: Progress) -> Launch:
    what = f"the environment for {engine.title}"
    requirements = engine.requirements_of(tree) if engine.requirements_of else engine.requirements
    python = make_venv(requirements, what, engine.venv_gigabytes, progress)
    # Without PYTHONSAFEPATH a worker that is started in a checkout would import the engine from there.
    path = {"PYTHONPATH": f"{importable()}:{tree}", "PYTHONSAFEPATH": "1"}
    return Launch(str(python), {**path, **engine.variables(home)}, number, str(tree))
