"""hybridfuzz new-target: write the skeleton of a target, which runs clean, and list what to fill in."""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

EXAMPLES = """\
Writes a package NAME with a small engine and its adapter. It runs clean as it is:
each step that you replace can be tried at once.
example: hybridfuzz new-target my_engine
"""
FILES = ("__init__.py", "engine.py", "target.py", "factory.py")
FIRST_TRACE = """\
{"schema": 1,
 "config": {"num_blocks": 30, "groups": [{"kind": "mamba", "block_size": 8}, {"kind": "attention", "block_size": 8}],
            "mamba_cache_mode": "none", "enable_prefix_caching": false},
 "events": [{"event": "arrive", "name": "r0", "prompt": [["a", 9]], "max_new_tokens": 3},
            {"event": "step"}, {"event": "step"}]}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("name", metavar="NAME", help="name of the package, a Python identifier in lower case")
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, default=Path(), help="its parent folder (default: .)")


def run(options: argparse.Namespace) -> int:
    """Write the package and print what comes next."""
    from ....targets.base.protocol import TargetError
    from ....targets.base.registry import engines
    from ...exit_status import CLEAN
    from ...group.findings.finding_store import OutputError

    name, folder = options.name, options.out / options.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise TargetError(f"new-target {name!r}: the name must be a Python identifier in lower case")
    if name in engines():
        raise TargetError(f"new-target {name!r}: hybridfuzz has a target of this name")
    try:
        if folder.exists():
            raise TargetError(f"new-target {name!r}: {folder} exists already")
        write(name, folder)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; choose another folder with -o") from error
    target = f"python:{name}.factory:FACTORY"
    print(f"wrote {folder}; it runs clean as it is:")
    where = "" if options.out == Path() else f"cd {options.out} && "
    print(f"  {where}hybridfuzz replay {name}/first.json --target {target}")
    print(f"  {where}hybridfuzz fuzz --target {target} --time 30s")
    print("what to fill in next (docs/how-to/add-a-target.md):")
    for line in todo(folder):
        print(f"  {line}")
    return CLEAN


def write(name: str, folder: Path) -> None:
    """Write the package `name` into a new folder."""
    from ....targets.base import skeleton

    source = Path(skeleton.__file__).parent
    folder.mkdir(parents=True)
    words = "".join(part.capitalize() for part in name.split("_"))
    for file in FILES:
        text = (source / file).read_text().replace("Skeleton", words).replace('"skeleton"', f'"{name}"')
        if file == "__init__.py":
            text = f'"""{words}."""\n'
        (folder / file).write_text(text)
    (folder / "first.json").write_text(FIRST_TRACE)


def todo(folder: Path) -> list[str]:
    """Return "file:line: what" for each TODO, in their order."""
    found = []
    for file in FILES:
        for number, line in enumerate((folder / file).read_text().splitlines(), 1):
            if match := re.search(r"TODO (\d+): (.*)", line):
                found.append((int(match[1]), f"{folder / file}:{number}: {match[2]}"))
    return [f"{number}. {text}" for number, text in sorted(found)]
