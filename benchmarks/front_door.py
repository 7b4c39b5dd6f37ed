"""Drawn configurations against the commands in their reports: `python benchmarks/front_door.py --target sglang@0.5.23`.

Each command goes through the engine's own parser and validation; the configuration that comes out is compared, field by
field, with the one of the engine that runs the trace (`targets/ENGINE/front_door.py`). Prints which fields differ, how
often, and why. Exit status 1 if the engine refuses a command, or if a field differs that is not on the list.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.targets.base.front_door import differences, reason_for
from hybridfuzz.targets.base.registry import describe, front_door, load_factory, prepare


def inside(spec: str, count: int, seed: int) -> int:
    """Draw, compare and print, in the engine's interpreter. Return the exit status."""
    factory, door = load_factory(spec.partition("@")[0]), front_door(spec)
    differ: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    example: dict[str, str] = {}
    for index in range(count):
        trace = draw_trace(factory.capabilities, seed, index, {}, factory.supports)
        try:
            described = describe(spec, trace, spec.partition("@")[2])
            os.environ |= described.variables
            found = list(differences(*door.configurations(described, trace)))
        except (Exception, SystemExit) as error:
            wrong[f"refused: {type(error).__name__}: {error}"] += 1
            continue
        for one in found:
            if reason_for(door.BEHIND, one.field):
                differ[one.field] += 1
            else:
                wrong[one.field] += 1
                example.setdefault(one.field, f"is {one.ran}, and {one.server} by the command")
    for behind in door.BEHIND:
        times = {field: count for field, count in differ.items() if reason_for(door.BEHIND, field) == behind.reason}
        print(f"{max(times.values(), default=0):6}  {behind.reason}: {', '.join(sorted(times))}")
    for what, times_wrong in wrong.most_common():
        print(f"{times_wrong:6}  NOT LISTED  {what} {example.get(what, '')}")
    print(f"{count} configurations, {wrong.total()} differences that are not listed")
    return int(bool(wrong))


def main() -> int:
    """Start ourselves again in the engine's interpreter, or compare if this is it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(arguments.target, arguments.count, arguments.seed)
    launch = prepare(arguments.target, print)
    command = [str(launch.python), __file__, *sys.argv[1:], "--inside"]
    env = {**os.environ, **launch.env, "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
