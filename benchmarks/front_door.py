"""Drawn configurations of vLLM against the commands in their reports: `python benchmarks/front_door.py [--count 1000]`.

Each command goes through vLLM's own parser and validation; the configuration that comes out is compared, field by
field, with the one of the engine that runs the trace (`targets/vllm/front_door.py`). Prints which fields differ, how
often, and why. Exit status 1 if vLLM refuses a command, or if a field differs that is not on the list.

The model is the one of the shadow layers instead of the command's checkpoint, and its own MTP layer instead of an EAGLE
checkpoint. Sizes are those of the trace.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.targets.base.registry import describe, load_factory, prepare
from hybridfuzz.targets.base.trace import Trace
from hybridfuzz.targets.vllm.deployment import DRAFTER
from hybridfuzz.targets.vllm.front_door import BEHIND, Difference, at_the_door, differences, reason_for

CHECKPOINT = {"--load-format": 2, "--hf-overrides": 2, "--use-replayssm": 1}
"""Flags that only the command's checkpoint takes, each with its number of words."""


def compared(spec: str, trace: Trace) -> Iterator[Difference]:
    """Yield the differences of one trace. Raises what vLLM raises for a command that it refuses."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from hybridfuzz.targets.vllm.shadow_config import MODEL
    from hybridfuzz.targets.vllm.shadow_kit import shadow_engine

    described = describe(spec, trace, spec.partition("@")[2])
    os.environ |= described.variables
    words = [*described.flags, *described.sizes]
    for flag in CHECKPOINT.keys() & set(words):
        del words[words.index(flag) : words.index(flag) + CHECKPOINT[flag]]
    words = [word.replace(f'"method": "eagle3", "model": "{DRAFTER}"', '"method": "mtp"') for word in words]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = EngineArgs.from_cli_args(parser.parse_args(["--model", str(MODEL), "--skip-tokenizer-init", *words]))
    ran = shadow_engine(trace.config).vllm_config
    yield from differences(parsed.create_engine_config(), ran, at_the_door(parsed))


def inside(spec: str, count: int, seed: int) -> int:
    """Draw, compare and print, in the engine's interpreter. Return the exit status."""
    factory = load_factory("vllm")
    differ: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    example: dict[str, str] = {}
    for index in range(count):
        trace = draw_trace(factory.capabilities, seed, index, {}, factory.supports)
        try:
            found = list(compared(spec, trace))
        except (Exception, SystemExit) as error:
            wrong[f"refused: {type(error).__name__}: {error}"] += 1
            continue
        for one in found:
            if reason_for(one.field):
                differ[one.field] += 1
            else:
                wrong[one.field] += 1
                example.setdefault(one.field, f"is {one.ran}, and {one.server} by the command")
    for behind in BEHIND:
        times = {field: count for field, count in differ.items() if reason_for(field) == behind.reason}
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
