"""A copy of an engine's tree with patches applied. It is made of links: nothing is written to the tree.

A folder that holds no patched file is one symbolic link; in the others each entry is one, and patched files are new
files. So whatever a patch names, only files below the new folder are written. Its name is a digest of its content:
campaigns that run at the same time share it, and one in use never changes. It is filled under another name and renamed.
"""

from __future__ import annotations

import ast
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from msgspec import structs

from .checkout import fill
from .environment import cache_folder, used
from .launch import Launch
from .patch_names import lacking
from .patches import FILE_BYTES_MAX, FilePatch, Patch, PatchError, has_word, located, merged, with_words
from .protocol import TargetError
from .renamed import new_words

FOLDER = "patched"
NO_TREE = "patches cannot be applied to this target; they can to a release or a path, such as vllm@0.33.0"


def patched(launch: Launch, patches: Sequence[Patch]) -> Launch:
    """Return a launch that imports the engine from its tree with patches applied.

    Raises PatchError if a patch does not fit or two conflict, TargetError if this target takes no patches or the
    overlay cannot be made.
    """
    if not patches:
        return launch
    if not launch.tree:
        raise TargetError(NO_TREE)
    tree = Path(launch.tree)
    words = cache(partial(new_words, tree))
    folder = str(make_overlay(tree, [in_tree(patch, tree, words) for patch in patches]))
    if "PYTHONPATH" in launch.env:
        path = [folder if part == launch.tree else part for part in launch.env["PYTHONPATH"].split(os.pathsep)]
    else:  # a user's module: its worker inherits ours, and looks in the working directory
        path = [folder, str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    version = f"{launch.version} + {len(patches)} {'fix' if len(patches) == 1 else 'fixes'}".strip(" +")
    env = {**launch.env, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    return structs.replace(launch, env=env, tree=folder, version=version)


def misfits(launch: Launch, patches: Sequence[Patch]) -> Mapping[str, str]:
    """Return, by name, why a patch does not apply to a target's tree, or with which earlier patch it conflicts.

    All others apply together. Raises TargetError if the target takes no patches.
    """
    if patches and not launch.tree:
        raise TargetError(NO_TREE)
    problems: dict[str, str] = {}
    kept: list[Patch] = []
    tree = Path(launch.tree)
    words = cache(partial(new_words, tree))
    for patch in patches:
        try:
            one = in_tree(patch, tree, words)
            merged([*kept, one], _reader(tree))
        except PatchError as error:
            problems[patch.name] = str(error)
        else:
            kept.append(one)
    return problems


def as_applied(launch: Launch, patch: Patch, sources: str = "") -> tuple[str, list[str]]:
    """Return a patch as a diff of a target's tree, with its line numbers and without what stands before the files: one
    made for another release has other lines. And the lines of the tree that it changes, or before which it adds some:
    "path:line". `sources`: the folder of the engine's repository that has its packages, which the diff names, too.
    Raises PatchError if it does not fit."""
    tree = Path(launch.tree)
    read = _reader(tree)
    inside = in_tree(patch, tree, cache(partial(new_words, tree)))
    before = f"{sources}/" if sources else ""
    diff = "".join(
        line for path, text in merged([inside], read).items() for line in _diff(f"{before}{path}", read(path), text)
    )
    return diff, [f"{path}:{change.start + 1}" for path, changes in located(inside, read) for change in changes]


def functions_at(launch: Launch, places: Iterable[str]) -> list[str]:
    """Return the functions of a target's tree that these lines, "path:line", are in, each once: "Class.method" and
    "function"; "Class" between methods. Other lines, and those of files that are no Python, have none."""
    found = dict[str, None]()
    for place in places:
        path, _, line = place.rpartition(":")
        if path.endswith(".py") and (name := _function_at(Path(launch.tree) / path, int(line))):
            found[name] = None
    return [*found]


def _function_at(path: Path, line: int) -> str:
    """Return the outermost function that a line is in, with its class, or the class alone."""
    around: list[str] = []
    body = ast.parse(path.read_text(encoding="utf-8")).body
    while one := next((each for each in body if each.lineno <= line <= (each.end_lineno or 0)), None):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            return ".".join([*around, one.name])
        if not isinstance(one, ast.ClassDef):
            break
        around, body = [*around, one.name], one.body
    return ".".join(around)


def _diff(path: str, before: str | None, after: str) -> Iterator[str]:
    """Yield the lines of a file's diff."""
    names = ("/dev/null" if before is None else f"a/{path}", f"b/{path}")
    for line in unified_diff((before or "").splitlines(keepends=True), after.splitlines(keepends=True), *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def in_tree(patch: Patch, tree: Path, words: Callable[[], Mapping[str, str]]) -> Patch:
    """Return what a patch changes in the packages of `tree`. Raises PatchError if that is nothing.

    A patch made in a repository may name a folder above the package (python/sglang/... of SGLang), which is dropped,
    and tests and documents, which are left out. It is rewritten with the names that the engine has renamed since
    (`words`, old name -> new one), if it fits then: also where only its added lines have an old name, unless that still
    stands in the file. One that needs a name which is gone does not apply (`patch_names`).
    """
    files, names = [], {}
    for file in patch.files:
        if inside := path_in_packages(file.path, tree):
            files.append(FilePatch(inside, file.hunks, file.new))
            names[inside] = patch.names.get(file.path, ())
    if not files:
        raise PatchError(f"patch {patch.name} does not apply: it changes nothing in the packages of {tree}")
    found, read = structs.replace(patch, files=tuple(files), names=names), _reader(tree)
    found = _renamed(found, tree, read, words) if words() else found
    for path, name in lacking(found, read):
        raise PatchError(f"patch {patch.name} does not apply: {path}: it needs {name!r}, which is not there any more")
    return found


def _renamed(
    found: Patch, tree: Path, read: Callable[[str], str | None], words: Callable[[], Mapping[str, str]]
) -> Patch:
    """Return a patch with the engine's new names, as far as it fits then."""
    texts = {file.path: read(file.path) or "" for file in found.files}
    gone = {path: {old: new for old, new in words().items() if not has_word(text, old)} for path, text in texts.items()}
    ways = (with_words(found, gone), found, with_words(found, dict.fromkeys(texts, words())))
    return next((way for way in ways if _fits(way, tree)), found)


def path_in_packages(path: str, tree: Path) -> str:
    """Return a path of a repository as one below `tree`, from which its packages are imported; "" for a file that is
    in none of them."""
    parts = path.split("/")
    first = next((first for first in range(min(2, len(parts))) if _importable(tree / parts[first])), None)
    return "" if first is None else "/".join(parts[first:])


def _fits(patch: Patch, tree: Path) -> bool:
    try:
        merged([patch], _reader(tree))
    except PatchError:
        return False
    return True


def make_overlay(tree: Path, patches: Sequence[Patch]) -> Path:
    """Return a folder in the cache with the packages of `tree` and patches applied. Raises PatchError, TargetError."""
    try:
        texts = merged(patches, _reader(tree))
        links = dict(_links(tree, texts))
        digest = sha256(repr((sorted(links.items()), sorted(texts.items()))).encode("utf-8", "surrogateescape"))
        place = cache_folder() / FOLDER / digest.hexdigest()[:16]
        if not place.is_dir():
            fill(place, links, texts)
        used(place)
    except OSError as error:
        raise TargetError(f"cannot make a patched copy of {tree}: {error.strerror or error}") from error
    return place


def _reader(tree: Path) -> Callable[[str], str | None]:
    def read(path: str) -> str | None:
        """Return the text of a file of the tree, None if there is none. Raises PatchError for anything else."""
        try:
            descriptor = os.open(tree / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise PatchError(f"{path}: not a regular file")
                data = file.read(FILE_BYTES_MAX + 1)
            if len(data) > FILE_BYTES_MAX:
                raise PatchError(f"{path}: more than {FILE_BYTES_MAX} bytes")
            return data.decode("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise PatchError(f"{path}: cannot be read as text: {error}") from None

    return read


def _links(tree: Path, texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (path in the overlay, path that it links to): everything but the patched files and their folders."""
    mixed = {parent.as_posix() for path in texts for parent in Path(path).parents}
    for inside in sorted(mixed):
        for child in (tree / inside).iterdir() if (tree / inside).is_dir() else ():
            name = child.relative_to(tree).as_posix()
            wanted = child.name != "__pycache__" if inside != "." else _importable(child)
            if wanted and name not in mixed and name not in texts:
                yield name, str(child)


def _importable(path: Path) -> bool:
    """Return True for a package, a module or the metadata of a distribution: what a tree is imported for."""
    if path.suffix in (".dist-info", ".egg-info"):
        return path.is_dir()
    return path.is_file() if path.suffix == ".py" else (path / "__init__.py").is_file()
