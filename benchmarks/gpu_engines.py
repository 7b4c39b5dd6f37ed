"""Real models on a device: random traces, known causes, speed. One process is one worker; start several side by side.

    python benchmarks/gpu_engines.py --device cuda --seconds 60 --seed 1 --config mixer=gdn,runner=v2 -o gdn-v2.json
    python benchmarks/gpu_engines.py --device cuda --corpus corpus/vllm -o corpus.json

    python benchmarks/gpu_engines.py --device cuda --proof 40 --config mixer=gdn,runner=v2 -o proof.json

`--proof` runs traces on new engines, then twice more in other orders on engines that are reset between traces, and
compares every bit of what the target reports. `--clock` and `--profile` report where the time goes. With
`VLLM_BATCH_INVARIANT=1` finished requests are also compared with the same steps alone, bit by bit. Needs an importable
vLLM, or `--tree` for an unpacked wheel; `--fixes all` (or names in corpus/vllm/known.toml) uses a copy of it in which
the known causes are fixed. A violation ends its trace, the campaign goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import hashlib
import json
import math
import os
import pstats
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hybridfuzz.harness.units import settings

NUMBERS = frozenset({"real_model"})


def tree_of(options: argparse.Namespace) -> Path | None:
    """The tree to import vLLM from; None for the one that is installed."""
    tree: Path | None = options.tree
    if tree and options.fixes:
        from vllm_campaign import fixes_of

        from hybridfuzz.targets.base.patched_copy import make_overlay

        fixes = fixes_of("0.33.0")
        names = list(fixes) if options.fixes == "all" else options.fixes.split(",")
        tree = make_overlay(tree, [fixes[name] for name in names])
    if tree:
        sys.path.insert(0, str(tree))
    return tree


def campaign(options: argparse.Namespace, factory: Any) -> dict[str, Any]:
    """Random traces for a while."""
    from hybridfuzz.harness.draw.grammar import draw_trace
    from hybridfuzz.harness.draw.trace_files import save_trace
    from hybridfuzz.harness.draw.workload import with_ratios
    from hybridfuzz.targets.base.protocol import TargetError
    from hybridfuzz.targets.base.trace import TraceError

    overrides, workload = options.config, with_ratios(options.workload)
    found: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    messages: dict[str, str] = {}
    opening = 0.0
    steps = traces = compared = refused = ill_conditioned = 0
    largest: dict[str, float] = {}
    exact: Counter[str] = Counter()
    started = saved = time.monotonic()

    def so_far() -> dict[str, Any]:
        seconds = time.monotonic() - started
        return {
            "traces": traces, "refused": refused, "steps": steps,
            "seconds": round(seconds, 1), "steps/s": round(steps / seconds, 1),
            "opening share": round(opening / seconds, 3), "compared": compared, "ill-conditioned": ill_conditioned,
            "largest difference": largest,
            "exact": dict(exact),
            "violations": dict(found), "messages": messages, "reached": dict(reached),
        }  # fmt: skip

    while time.monotonic() - started < options.seconds:
        number = traces * options.stride
        trace = draw_trace(factory.capabilities, options.seed, number, overrides, factory.supports, workload=workload)
        try:
            outcome, seen = run(factory, trace, None)
        except (TargetError, TraceError) as error:  # a configuration that vLLM refuses
            traces, refused = traces + 1, refused + 1
            print(f"trace {traces - 1}: refused: {error}", flush=True)
            continue
        traces, steps, compared = traces + 1, steps + outcome.steps, compared + seen["compared"]
        opening, ill_conditioned = opening + seen["opening"], ill_conditioned + seen["ill-conditioned"]
        exact.update(seen["exact"])
        kind = f"{trace.config.options['mixer']}/{trace.config.options['dtype']}"
        if outcome.violation is None and seen["largest"] > largest.get(kind, 0.0):
            largest[kind] = seen["largest"]
            print(f"trace {traces - 1}: {kind}: off by {seen['largest']:.6f}", flush=True)
        reached.update(outcome.reached)
        if outcome.violation:
            signature = outcome.violation.signature
            found[signature] += 1
            messages.setdefault(signature, f"trace {traces - 1}: {outcome.violation.message}")
            print(f"trace {traces - 1}: {signature}: {outcome.violation.message}", flush=True)
            if options.traces and found[signature] <= 4:
                name = f"{options.out.stem}-{signature}-{traces - 1}.json"
                save_trace(trace, options.traces / name)
            if options.until_violation or "AcceleratorError" in signature:  # a GPU that failed stays so
                break
        if time.monotonic() - saved > 5:  # for a process that is killed
            saved = time.monotonic()
            known = {"config": options.config, "seed": options.seed, "partial": True, "result": so_far()}
            options.out.write_text(json.dumps(known) + "\n")
    return so_far()


class Clock:
    """Seconds by part of the work; what one part calls of another counts for that one only. Time that the device needs
    counts where the host waits for it. Start it when the engines are built: a reset would put back the clock, too."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open = ["oracles and the rest"]
        self._since = time.perf_counter()

    def switch(self) -> None:
        """Book the time since the last switch."""
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Book the time in a method."""
        function = getattr(owner, method)

        @functools.wraps(function)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self.switch()
            self._open.append(part)
            try:
                return function(*arguments, **keywords)
            finally:
                self.switch()
                self._open.pop()

        setattr(owner, method, timed)

    def shares(self) -> dict[str, float]:
        """Of the time so far, the largest first."""
        self.switch()
        total = sum(self.seconds.values())
        return {part: round(seconds / total, 3) for part, seconds in self.seconds.most_common()}


def clock() -> Clock:
    """A clock on the parts of a target with a real model."""
    from hybridfuzz.targets.vllm import runner_adapter
    from hybridfuzz.targets.vllm.gpu import mirror, real_engine, real_model, same_tokens, target

    made = Clock()
    made.watch(runner_adapter.RunnerAdapter, "execute", "engine: runner")
    made.watch(runner_adapter.RunnerAdapter, "dummy_run", "engine: runner")
    made.watch(target.Lane, "_schedule", "engine: scheduler")
    made.watch(real_model.RealModel, "walk", "mirror")
    made.watch(real_model.RealModel, "compute_logits", "log-probabilities")
    for name in ("copied", "zeroed", "block_copied", "end_step"):
        made.watch(mirror.MirrorRecorder, name, "recorder")
    made.watch(target.Lane, "happen", "event of a lane")
    made.watch(target.Lane, "_collect", "log-probabilities")
    made.watch(target.Lane, "fill_freed", "fills")
    made.watch(target.RealTarget, "_real_forwards", "comparison")
    made.watch(same_tokens.SameTokens, "_run", "reference")
    made.watch(real_engine.RealEngine, "reset", "reset")
    made.watch(real_engine.RealEngine, "__init__", "building engines")
    return made


def digest_of(outcome: Any, records: list[Any]) -> str:
    """Every bit that a target reported for a trace."""
    import numpy as np

    made = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, np.ndarray):
            made.update(value.tobytes())
        elif isinstance(value, (list, tuple)):
            made.update(b"[")
            for one in value:
                feed(one)
        elif isinstance(value, dict):
            feed(sorted(value.items()))
        elif hasattr(value, "__struct_fields__"):
            made.update(type(value).__name__.encode())
            for name in value.__struct_fields__:
                feed(getattr(value, name))
        else:
            made.update(repr(value).encode())

    feed(records)
    made.update(f"{outcome.digest} {outcome.steps} {outcome.violation and outcome.violation.message}".encode())
    return made.hexdigest()


def proof(options: argparse.Namespace, factory: Any) -> dict[str, Any]:
    """The same traces on new engines, and on engines that other traces have used."""
    from hybridfuzz.harness.draw.grammar import draw_trace
    from hybridfuzz.targets.vllm.gpu.engines_of_process import kept

    overrides = options.config
    traces = [
        draw_trace(factory.capabilities, options.seed, index * options.stride, overrides, factory.supports)
        for index in range(options.proof)
    ]
    fresh: dict[int, str] = {}
    violations: Counter[str] = Counter()
    steps = 0
    began = time.monotonic()
    for number, trace in enumerate(traces):
        kept().forget()
        outcome, seen = run(factory, trace, None, keep=True)
        fresh[number] = digest_of(outcome, seen["records"])
        steps += outcome.steps
        violations[outcome.violation.signature if outcome.violation else "none"] += 1
        if time.monotonic() - began > options.seconds / 2:
            break
    built, differing, compared = kept().built, [], 0
    for order in (sorted(fresh, reverse=True), sorted(fresh, key=lambda number: (number * 7919) % 1009)):
        for number in order:
            outcome, seen = run(factory, traces[number], None, keep=True)
            compared += 1
            if digest_of(outcome, seen["records"]) != fresh[number]:
                differing.append(number)
                print(f"trace {number} differs after a reset: {outcome.violation and outcome.violation.message}")
    return {
        "traces": len(fresh), "steps": steps, "compared": compared, "differing": differing, "outcomes": violations,
        "engines built for the first pass": built, "afterwards": kept().built - built,
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def rerun(options: argparse.Namespace, factory: Any) -> dict[str, Any]:
    """Each trace of a folder: the signature of its violation, "" for none."""
    from hybridfuzz.harness.draw.trace_files import load_trace

    verdicts = {}
    for path in sorted(options.run.glob("*.json")):
        try:
            outcome, _ = run(factory, load_trace(path), None)
            verdicts[path.name] = outcome.violation.signature if outcome.violation else ""
        except Exception as error:
            verdicts[path.name] = f"{type(error).__name__}: {error}"
    return verdicts


class Recorded:
    """A target, with the rows that its real model computed kept."""

    def __init__(self, target: Any, keep: bool = False, rows: bool = False) -> None:
        self._target = target
        self._keep, self._rows = keep, rows
        self.records: list[Any] = []
        self.rows: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def apply(self, event: Any) -> Any:
        """Let the event happen."""
        effect = self._target.apply(event)
        if self._keep:
            self.records += effect.records
        for record in effect.records if self._rows else ():
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


def run(
    factory: Any, trace: Any, observes: frozenset[str] | None, keep: bool = False, rows: bool = False
) -> tuple[Any, dict[str, Any]]:
    """One trace; what its oracles saw."""
    from hybridfuzz.harness.judge.lockstep import Lockstep
    from hybridfuzz.targets.base.protocol import open_supported

    began = time.monotonic()
    target = Recorded(open_supported(factory, trace.config), keep, rows)
    opening = time.monotonic() - began
    try:
        lockstep = Lockstep(target, trace.config, factory.capabilities.observes if observes is None else observes)
        for index, event in enumerate(trace.events):
            if lockstep.apply(event, index):
                break
        else:
            lockstep.drain(len(trace.events))
        compared = target.comparison
        seen = {
            "compared": compared.rows, "largest": compared.largest, "ill-conditioned": compared.ill_conditioned,
            "opening": opening, "rows": target.rows, "records": target.records,
        }  # fmt: skip
        lives = target.lives
        seen["exact"] = {"rows": lives.rows, "states": lives.states, **lives.left} if lives else {}
        return lockstep.outcome(len(trace.events)), seen
    finally:
        target.close()


def print_crashes() -> None:
    """Print the traceback of whatever a target raises, too."""
    from hybridfuzz.harness.judge import lockstep

    make = lockstep.crash_violation

    def printing(context: Any, error: BaseException, *rest: Any) -> Any:
        traceback.print_exception(error)
        return make(context, error, *rest)

    lockstep.crash_violation = printing  # type: ignore[assignment]


def corpus(options: argparse.Namespace, factory: Any) -> list[dict[str, Any]]:
    """Known causes: each trace scaled, judged by everything and by the real model's numbers alone."""
    from hybridfuzz.harness.draw.trace_files import load_trace
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
                        outcome, seen = run(factory, one, observes, rows=bool(options.record))
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
    parser.add_argument("--config", type=settings, default={}, help="key=value,... as for `hybridfuzz fuzz`")
    parser.add_argument("--workload", type=settings, default={}, help="key=value,... as for `hybridfuzz fuzz`")
    parser.add_argument("--fills", default="random,nan")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tolerance", type=float, help="of S6 in float32; a row beyond it is compared with rounding")
    parser.add_argument("--corpus", type=Path, help="run the traces of a folder instead of random ones")
    parser.add_argument("--only", default="", help="words of which one is in a corpus trace's name")
    parser.add_argument("--scalings", type=int, default=2, help="ways to scale a corpus trace")
    parser.add_argument("--record", type=Path, help="a folder for what the real model computed in corpus traces")
    parser.add_argument("--proof", type=int, default=0, metavar="N", help="compare N traces on new and reset engines")
    parser.add_argument(
        "--stride", type=int, default=1, help="of the traces' numbers (24: each has its own configuration)"
    )
    parser.add_argument("--clock", action="store_true", help="say where the time goes")
    parser.add_argument("--profile", type=Path, help="a file for Python's profile of the traces")
    parser.add_argument("--warm", type=float, default=0.0, help="seconds of random traces that are not counted")
    parser.add_argument("--run", type=Path, help="run the traces of a folder, for their verdicts")
    parser.add_argument("--at", type=float, default=0.0, help="Unix time at which to begin: several side by side")
    parser.add_argument("--until-violation", action="store_true", help="end at the first violation")
    parser.add_argument("--traces", type=Path, help="a folder for violating traces")
    parser.add_argument("-o", dest="out", type=Path, default=Path("gpu-engines.json"))
    options = parser.parse_args()
    tree_of(options)
    began = time.monotonic()
    from hybridfuzz.targets.vllm.gpu import comparison
    from hybridfuzz.targets.vllm.gpu.factory import make_factory
    from hybridfuzz.targets.vllm.gpu.stand_ins import variables

    home = Path(tempfile.gettempdir()) / "hybridfuzz-gpu"
    for name, value in variables(home, options.device).items():
        os.environ.setdefault(name, value)
    factory = make_factory("vllm", options.device)
    print_crashes()
    if options.tolerance:
        comparison.EXACT_PRODUCTS = options.tolerance
    factory.fills = options.fills.split(",")
    import torch

    result: dict[str, Any] = {
        "name": options.out.stem, "device": options.device, "stood in": factory.stood_in, "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else "", "fixes": options.fixes,
        "config": options.config, "seed": options.seed, "importing": round(time.monotonic() - began, 1),
    }  # fmt: skip
    if options.warm:
        campaign(argparse.Namespace(**{**vars(options), "seconds": options.warm, "traces": None}), factory)
    time.sleep(max(options.at - time.time(), 0))
    watched = clock() if options.clock else None
    what = corpus if options.corpus else proof if options.proof else rerun if options.run else campaign
    profile = cProfile.Profile() if options.profile else contextlib.nullcontext()
    with profile:
        result["result"] = what(options, factory)
    if options.profile:
        with options.profile.open("w") as file:
            profile.dump_stats(options.profile.with_suffix(".pstats"))
            pstats.Stats(profile, stream=file).sort_stats("tottime").print_stats(60).sort_stats("cumtime").print_stats(
                110
            )
    if watched:
        result["shares of the time"] = watched.shares()
    if options.device == "cuda":
        result["gpu MiB"] = torch.cuda.max_memory_reserved() >> 20
    options.out.write_text(json.dumps(result) + "\n")
    print(json.dumps(result)[:6000])
    sys.stdout.flush()
    os._exit(0)  # vLLM's teardown takes longer than a trace


if __name__ == "__main__":
    sys.exit(main())
