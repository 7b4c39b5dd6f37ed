"""hybridfuzz targets: list the targets, or the capabilities of one."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping

VARIANTS_MAX = 20
"""More are listed with their engine alone."""
EXAMPLES = """\
Variants of hybrid and sequences are mutants. With a target: makes its environment if it is
missing, starts it and prints its capabilities.
example: hybridfuzz targets vllm@0.33.0
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments."""
    parser.add_argument("target", nargs="?", metavar="T", help="one target, for example vllm@0.33.0")
    parser.add_argument("--workload", action="store_true", help="print the ratios by which traces are drawn")
    parser.add_argument("--names", action="store_true", help="print the names alone, one a line")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def run(options: argparse.Namespace) -> int:
    """List, or describe one."""
    from ....targets.base.registry import known_targets
    from ...exit_status import CLEAN
    from .common import print_json

    if options.workload:
        return print_workload(options)
    if options.target:
        return describe(options)
    known = known_targets()
    if options.json:
        print_json(known)
        return CLEAN
    if options.names:
        print("\n".join(name for name in known if not name.startswith("python:")))
        return CLEAN
    for line in listing(known, columns()):
        print(line)
    return CLEAN


def columns() -> int:
    """Return the width of the terminal, 0 if there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def listing(known: Mapping[str, str], columns: int) -> Iterator[str]:
    """Yield a line for each target, then the variants of each engine that has few; cut to `columns`, 0 for no limit."""
    engines = {target: title for target, title in known.items() if not _is_variant(target)}
    yield from _table(engines, columns)
    for engine in dict.fromkeys(target.partition(":")[0] for target in known if _is_variant(target)):
        yield ""
        if (count := len(_variants(known, engine))) > VARIANTS_MAX:
            yield f"{engine} has {count} variants: hybridfuzz targets {engine}"
        else:
            yield from variants_of(known, engine, columns)


def variants_of(known: Mapping[str, str], engine: str, columns: int) -> Iterator[str]:
    """Yield a heading and a line for each variant of an engine, nothing if there is none."""
    if variants := _variants(known, engine):
        yield f"variants of {engine} ({len(variants)}):"
        yield from _table(variants, columns)


def print_workload(options: argparse.Namespace) -> int:
    """Print the table of the workload, which is the same for all targets."""
    from ...draw.workload import DEFAULT, rows_of
    from ...exit_status import CLEAN
    from .common import print_json

    rows = rows_of(DEFAULT)
    if options.json:
        print_json({name: value for name, (value, _) in rows.items()})
        return CLEAN
    width = max(map(len, rows))
    for name, (value, line) in rows.items():
        print(f"{name:{width}}  {value:>3}  {line}" if value.isdigit() else f"{name:{width}}       {line}: {value}")
    return CLEAN


def _variants(known: Mapping[str, str], engine: str) -> dict[str, str]:
    return {one: title for one, title in known.items() if _is_variant(one) and one.startswith(f"{engine}:")}


def _is_variant(target: str) -> bool:
    return ":" in target and not target.startswith("python:")


def _table(known: Mapping[str, str], columns: int) -> Iterator[str]:
    width = max(map(len, known))
    for target, title in known.items():
        line = f"  {target:{width}}  {title}".rstrip()
        yield line if not 0 < columns < len(line) else f"{line[: columns - 4].rstrip()} ..."


def describe(options: argparse.Namespace) -> int:
    """Start a target and print its capabilities and what they enable."""
    import msgspec

    from ....targets.base.registry import behind_the_door, kit_limits, known_targets
    from ....targets.base.tested import narrower
    from ...exit_status import CLEAN
    from ...judge.oracles import applicable
    from ...judge.state_catalogue import required_oracles, required_states
    from ...workers.worker_client import WorkerClient
    from .common import launch_target, print_json

    launch = launch_target(options.target)
    with WorkerClient(options.target, launch) as worker:
        ready = worker.start()
    facts = {
        "target": options.target,
        "version": launch.version,
        "python": launch.python,
        **msgspec.to_builtins(ready.capabilities, order="sorted"),
        "oracles": applicable(ready.capabilities),
        "required oracles": required_oracles(ready.capabilities),
        "required states": required_states(ready.capabilities),
    }
    if notice := narrower(options.target, launch.version, ready.capabilities):
        facts["note"] = notice
    limits, behind = kit_limits(options.target), behind_the_door(options.target)
    if options.json:
        tables = {"kits cannot": limits, "behind the front door": behind}
        print_json(facts | {name: msgspec.to_builtins(table) for name, table in tables.items() if table})
        return CLEAN
    for name, value in facts.items():
        words = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        print(f"{name:22} {words}")
    for line in variants_of(known_targets(), options.target, columns()):
        print(line)
    for kit in dict.fromkeys(limit.kit for limit in limits):
        print(f"\nkit {kit} refuses")
        print("\n".join(f"  {limit.feature:22} {limit.reason}" for limit in limits if limit.kit == kit))
    if behind:
        print("\nset behind the engine's front door, the same for all traces")
        print("\n".join(f"  {one.reason}" for one in behind))
    return CLEAN
