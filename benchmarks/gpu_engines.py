"""Real models on a device: random traces, known causes, speed. One process is one worker; start several side by side.

    python benchmarks/gpu_engines.py --device cuda --seconds 60 --seed 1 --config mixer=gdn,runner=v2 -o gdn-v2.json
    python benchmarks/gpu_engines.py --device cuda --corpus corpus/vllm -o corpus.json

Needs an importable vLLM, or `--tree` for an unpacked wheel; `--fixes all` (or names in corpus/vllm/known.toml)
uses a copy of that tree in which the known causes are fixed. A violation ends its trace, the campaign goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

NUMBERS = frozenset({"real_model"})


def tree_of(options: argparse.Namespace) -> Path | None:
    """The tree to import vLLM from; None for the one that is installed."""
    tree: Path | None = options.tree
    if tree and options.fixes:
        from hybridfuzz.targets.base.overlay import make_overlay
        from vllm_campaign import fixes_of

        fixes = fixes_of("0.33.0")
        names = list(fixes) if options.fixes == "all" else options.fixes.split(",")
        tree = make_overlay(tree, [fixes[name] for name in names])
    if tree:
        sys.path.insert(0, str(tree))
    return tree


def campaign(options: argparse.Namespace, factory: Any) -> dict[str, Any]:
    """Random traces for a while."""
    from hybridfuzz.harness.generate.grammar import draw_trace
    from hybridfuzz.harness.traces.files import save_trace
    from hybridfuzz.targets.base.protocol import TargetError
    from hybridfuzz.targets.base.trace import TraceError

    overrides = dict(pair.split("=", 1) for pair in options.config.split(",")) if options.config else {}
    found: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    messages: dict[str, str] = {}
    opening = 0.0
    steps = traces = compared = refused = 0
    largest: dict[str, float] = {}
    started = time.monotonic()
    while time.monotonic() - started < options.seconds:
        trace = draw_trace(factory.capabilities, options.seed, traces, overrides, factory.supports)
        try:
            outcome, seen = run(factory, trace, None)
        except (TargetError, TraceError) as error:  # a configuration that vLLM refuses
            traces, refused = traces + 1, refused + 1
            print(f"trace {traces - 1}: refused: {error}", flush=True)
            continue
        traces, steps, compared = traces + 1, steps + outcome.steps, compared + seen["compared"]
        opening += seen["opening"]
        kind = f"{trace.config.options['mixer']}/{trace.config.options['dtype']}"
        if outcome.violation is None:
            largest[kind] = max(largest.get(kind, 0.0), seen["largest"])
        reached.update(outcome.reached)
        if outcome.violation:
            signature = outcome.violation.signature
            found[signature] += 1
            messages.setdefault(signature, f"trace {traces - 1}: {outcome.violation.message}")
            print(f"trace {traces - 1}: {signature}: {outcome.violation.message}", flush=True)
            if options.traces and found[signature] <= 4:
                name = f"{options.out.stem}-{signature}-{traces - 1}.json"
                save_trace(trace, options.traces / name)
    seconds = time.monotonic() - started
    return {
        "traces": traces, "refused": refused, "steps": steps,
        "seconds": round(seconds, 1), "steps/s": round(steps / seconds, 1),
        "opening share": round(opening / seconds, 3), "compared": compared, "largest difference": largest,
        "violations": dict(found), "messages": messages, "reached": dict(reached),
    }  # fmt: skip


class Recorded:
    """A target, with the rows that its real model computed kept."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.rows: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def apply(self, event: Any) -> Any:
        """Let the event happen."""
        effect = self._target.apply(event)
        for record in effect.records:
            if hasattr(record, "tolerance"):
                self.rows += [
                    {"step": record.step, "request": row.request, "position": row.position, "agrees": row.agrees,
                     "logprobs": shortened(row.logprobs), "expected": shortened(row.expected)}
                    for row in record.rows
                ]  # fmt: skip
        return effect


def shortened(values: Any) -> Any:
    """Numbers with four digits behind the point; NaN as None."""
    return None if values is None else [None if math.isnan(one) else round(float(one), 4) for one in values]


def run(factory: Any, trace: Any, observes: frozenset[str] | None) -> tuple[Any, dict[str, Any]]:
    """One trace; what its oracles saw."""
    from hybridfuzz.harness.lockstep.lockstep import Lockstep

    began = time.monotonic()
    target = Recorded(factory.open(trace.config))
    opening = time.monotonic() - began
    try:
        lockstep = Lockstep(target, trace.config, factory.capabilities.observes if observes is None else observes)
        for index, event in enumerate(trace.events):
            if lockstep.apply(event, index):
                break
        else:
            lockstep.drain(len(trace.events))
        seen = {"compared": target.compared, "largest": target.largest, "opening": opening, "rows": target.rows}
        return lockstep.outcome(len(trace.events)), seen
    finally:
        target.close()


def print_crashes() -> None:
    """Print the traceback of whatever a target raises, too."""
    from hybridfuzz.harness.lockstep import lockstep

    make = lockstep.crash_violation

    def printing(context: Any, error: BaseException) -> Any:
        traceback.print_exception(error)
        return make(context, error)

    lockstep.crash_violation = printing  # type: ignore[assignment]


def corpus(options: argparse.Namespace, factory: Any) -> list[dict[str, Any]]:
    """Known causes: each trace scaled, judged by everything and by the real model's numbers alone."""
    from hybridfuzz.harness.traces.files import load_trace
    from hybridfuzz.targets.vllm.gpu.scaling import candidates

    rows = []
    for path in sorted(options.corpus.glob("0.33.0--*.json")):
        if options.only and not any(word in path.name for word in options.only.split(",")):
            continue
        trace = load_trace(path)
        mixers = [trace.config.options["mixer"]] if "mixer" in trace.config.options else ["gdn", "mamba2"]
        for number, scaled in enumerate(list(candidates(trace, 16))[: options.scalings]):
            for mixer in mixers:
                one = with_options(scaled, mixer=mixer, dtype=options.dtype)
                row: dict[str, Any] = {"cause": path.name.split("--")[1], "scaling": number, "mixer": mixer}
                for name, observes in (("all", None), ("numbers", NUMBERS)):
                    try:
                        outcome, seen = run(factory, one, observes)
                    except Exception as error:
                        row[name] = f"{type(error).__name__}: {error}"
                    else:
                        row[name] = outcome.violation.message if outcome.violation else ""
                        if options.record and name == "numbers" and not number:
                            kept = {"trace": path.name, "mixer": mixer, "fixes": options.fixes, "rows": seen["rows"]}
                            (options.record / f"{path.stem}-{mixer}.json").write_text(json.dumps(kept))
                rows.append(row)
                print(json.dumps(row), flush=True)
    return rows


def with_options(trace: Any, **options: str) -> Any:
    """The trace with other options, and a pool that is large enough for them."""
    from msgspec import structs

    config = structs.replace(trace.config, options={**trace.config.options, **options})
    spare = sum(group.kind == "mamba" for group in config.groups) if options.get("mixer") == "mamba2" else 0
    least = config.smallest_pool() + spare
    return structs.replace(trace, config=structs.replace(config, num_blocks=max(config.num_blocks, least)))


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="interpreter", choices=("cuda", "interpreter"))
    parser.add_argument("--tree", type=Path, help="an unpacked vLLM wheel (the installed one)")
    parser.add_argument("--fixes", default="", help="causes to fix in a copy of the tree, or all")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="", help="key=value,... as for `hybridfuzz fuzz`")
    parser.add_argument("--fills", default="random,nan")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--corpus", type=Path, help="run the traces of a folder instead of random ones")
    parser.add_argument("--only", default="", help="words of which one is in a corpus trace's name")
    parser.add_argument("--scalings", type=int, default=2, help="ways to scale a corpus trace")
    parser.add_argument("--record", type=Path, help="a folder for what the real model computed in corpus traces")
    parser.add_argument("--traces", type=Path, help="a folder for violating traces")
    parser.add_argument("-o", dest="out", type=Path, default=Path("gpu-engines.json"))
    options = parser.parse_args()
    tree_of(options)
    began = time.monotonic()
    from hybridfuzz.targets.vllm.gpu.devices import variables
    from hybridfuzz.targets.vllm.gpu.factory import make_factory

    home = Path(tempfile.gettempdir()) / "hybridfuzz-gpu"
    for name, value in variables(home, options.device).items():
        os.environ.setdefault(name, value)
    factory = make_factory("vllm", options.device)
    print_crashes()
    factory.fills = options.fills.split(",")
    import torch

    result: dict[str, Any] = {
        "name": options.out.stem, "device": options.device, "stood in": factory.stood_in, "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else "", "fixes": options.fixes,
        "config": options.config, "seed": options.seed, "importing": round(time.monotonic() - began, 1),
    }  # fmt: skip
    result["result"] = corpus(options, factory) if options.corpus else campaign(options, factory)
    if options.device == "cuda":
        result["gpu MiB"] = torch.cuda.max_memory_reserved() >> 20
    options.out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result)[:6000])
    sys.stdout.flush()
    os._exit(0)  # vLLM's teardown takes longer than a trace


if __name__ == "__main__":
    sys.exit(main())
