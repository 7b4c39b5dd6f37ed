"""hybridfuzz cache: list and clean the folder with environments, releases and copies of engines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....targets.base.stored_environments import Cached

EXAMPLES = """\
list   prints what lies in the cache folder, with its size and its last use
clean  removes what was not used for a time, or what belongs to one engine, or
       both; it asks nothing, and says what it removed. What is missing is made
       again when it is needed. Do not clean while a campaign runs.
The folder is $HYBRIDFUZZ_CACHE, or hybridfuzz in your cache folder.
example: hybridfuzz cache clean --unused-for 30d --dry-run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    from ...units import duration

    parser.add_argument("action", choices=("list", "clean"), metavar="{list,clean}", help="see below")
    unused = "clean: what was not used for TIME, such as 30d"
    parser.add_argument("--unused-for", type=duration, metavar="TIME", help=unused)
    parser.add_argument("--engine", metavar="E", help="list, clean: what belongs to one engine, such as vllm")
    parser.add_argument("--dry-run", action="store_true", help="clean: say what would be removed")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """Run the action."""
    import time

    from ....targets.base.registry import engines
    from ....targets.base.stored_environments import contents
    from ....targets.base.trace import TraceError
    from ...suggestions import did_you_mean

    known = engines()
    if options.engine is not None and options.engine not in known:
        hint = did_you_mean(options.engine, known)
        raise TraceError(f"--engine {options.engine}: there is no such engine{hint} (known: {', '.join(known)})")
    found = [one for one in contents(known) if options.engine in (None, one.engine)]
    if options.action == "list":
        return show(options, found)
    if options.unused_for is None and options.engine is None:
        raise TraceError("cache clean: say what to remove: --unused-for 30d, --engine vllm, or both")
    before = time.time() - (options.unused_for or 0)
    return clean(options, [one for one in found if one.used <= before])


def show(options: argparse.Namespace, found: list[Cached]) -> int:
    """Print a table."""
    import msgspec

    from ....targets.base.environment import cache_folder
    from ...exit_status import CLEAN
    from .common import print_json, printer

    line = printer(options.json)
    for one in found:
        line(row(one))
    line(f"{gigabytes(sum(one.size for one in found))} in {cache_folder()}")
    if options.json:
        print_json(
            {"exit_reason": "done", "folder": str(cache_folder()), "entries": msgspec.to_builtins(found, enc_hook=str)}
        )
    return CLEAN


def clean(options: argparse.Namespace, unused: list[Cached]) -> int:
    """Remove folders. Exit status 2 if one cannot be removed."""
    from ....targets.base.environment import cache_folder
    from ....targets.base.stored_environments import remove
    from ...exit_status import CLEAN, USAGE
    from .common import print_json, printer

    line = printer(options.json)
    removed, problems = list[str](), list[str]()
    freed = 0
    for one in unused:
        try:
            if not options.dry_run:
                remove(one)
        except OSError as error:
            problems.append(f"{error.filename or one.path}: {error.strerror}")
            line(f"not removed: {problems[-1]}")
            continue
        removed.append(str(one.path))
        freed += one.size
        line(f"{'would remove' if options.dry_run else 'removed'}  {row(one)}")
    if not unused:
        line("nothing to remove")
    line(f"{'would free' if options.dry_run else 'freed'} {gigabytes(freed)} in {cache_folder()}")
    if options.json:
        print_json({"exit_reason": "done", "removed": removed, "bytes": freed, "problems": problems})
    return USAGE if problems else CLEAN


def row(one: Cached) -> str:
    """Return an entry in one line."""
    import datetime

    day = datetime.datetime.fromtimestamp(one.used).strftime("%Y-%m-%d")
    return f"{gigabytes(one.size):>9}  {day}  {one.kind:24}  {one.path.parent.name}/{one.path.name}"


def gigabytes(size: int) -> str:
    """Return a size in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
