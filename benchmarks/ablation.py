"""What each oracle, event and workload feature is good for: `python benchmarks/ablation.py [--only SLUG,...]`.

An oracle is judged by what is lost without it: every run that it ended is repeated without it, and either another
oracle ends it, or nobody does. A workload feature is judged by what is no longer found, and by how many more traces
the rest takes (geometric mean; a run that found nothing counts what it spent, a lower bound).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
from recorded import Ask, Record

from hybridfuzz.harness.draw.choices import RandomChoices
from hybridfuzz.harness.draw.configurations import draw_valid_config
from hybridfuzz.harness.draw.grammar import Grammar
from hybridfuzz.harness.judge import lockstep
from hybridfuzz.harness.judge.oracles import ORACLES, Oracle
from hybridfuzz.harness.measure.detection.matrix import chosen_mutants
from hybridfuzz.harness.measure.detection.statistics import Detection, ratio
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Config, Step, Trace


class NoSharing(Grammar):
    def _shared_path(self, room: int) -> None:
        return None


class NoClusters(Grammar):
    def length(self, most: int) -> int:
        return self.choices.integer(1, most)


class NoSwarm(Grammar):
    def _enabled(self) -> list[tuple[int, Callable[[], AnyEvent]]]:
        choices, self.choices = self.choices, Always()
        try:
            return super()._enabled()
        finally:
            self.choices = choices


class Always(RandomChoices):
    def __init__(self) -> None:
        super().__init__(0)

    def chance(self, percent: int) -> bool:
        return True


class PlainSteps(Grammar):
    def step(self) -> Step:
        step = super().step()
        return Step(drafts=step.drafts, right=step.right, per_request=step.per_request)


class EqualRows(Grammar):
    def step(self) -> Step:
        return msgspec.structs.replace(super().step(), per_request={})


class OneAtATime(Grammar):
    def arrive(self) -> Arrive:
        self.burst = 1
        return super().arrive()


class NoContinuation(Grammar):
    def _shared_path(self, room: int) -> tuple[tuple[str, int], ...] | None:
        path = super()._shared_path(room)
        return None if path is None or any(document == "~" for document, _ in path) else path


class Feature(msgspec.Struct, frozen=True):
    """What is taken away."""

    capabilities: Callable[[Capabilities], Capabilities] = lambda capabilities: capabilities
    grammar: type[Grammar] = Grammar
    configure: Callable[[Config], Config] = lambda config: config


def without_event(tag: str) -> Feature:
    return Feature(capabilities=lambda given: msgspec.structs.replace(given, events=given.events - {tag}))


def fixed(**fields: object) -> Feature:
    return Feature(capabilities=lambda given: msgspec.structs.replace(given, **fields))


def configured(**fields: object) -> Feature:
    return Feature(configure=lambda config: msgspec.structs.replace(config, **fields))


def features(capabilities: Capabilities) -> dict[str, Feature]:
    """Everything that is taken away, one at a time."""
    rare = sorted(capabilities.events - {"arrive", "step", "sleep", "wake"})
    events = {f"event {tag}": without_event(tag) for tag in rare}
    events["events sleep, wake"] = Feature(
        capabilities=lambda given: msgspec.structs.replace(given, events=given.events - {"sleep", "wake"})
    )
    modes = {
        f"mode {mode}": fixed(modes=tuple(other for other in capabilities.modes if other != mode))
        for mode in sorted(set(capabilities.modes))
    }
    return {
        **events,
        **modes,
        "shared prefixes": Feature(grammar=NoSharing),
        "continued answers": Feature(grammar=NoContinuation),
        "clustered lengths": Feature(grammar=NoClusters),
        "swarm (all rare events on)": Feature(grammar=NoSwarm),
        "step budgets, chunks, padding": Feature(grammar=PlainSteps),
        "drafts of single requests": Feature(grammar=EqualRows),
        "several requests at a time": Feature(grammar=OneAtATime),
        "tight pools": Feature(
            configure=lambda config: msgspec.structs.replace(config, num_blocks=config.num_blocks + 300)
        ),
        "speculation": fixed(max_speculative_tokens=0),
        "EAGLE block drop": fixed(eagle_block_drop=False),
        "steps in flight": fixed(max_async_depth=0),
        "priority": fixed(policies=("fcfs",)),
        "several groups of a kind": fixed(group_counts=((1, 1), (0, 1))),
        "several layers": fixed(layers_per_group=(1,)),
        "sliding windows": fixed(windows=()),
        "drafter's groups": fixed(draft_block_sizes=()),
        "unequal block sizes": fixed(block_sizes=((8, 8), (16, 16))),
        "long-prefill threshold": configured(long_prefill_token_threshold=0),
        "graph padding": configured(graph_sizes=()),
        "several convolution widths": fixed(conv_widths=(4,)),
    }


def detect(ask: Ask, seconds: float) -> Detection:
    """One run without an oracle or a feature, by name. In a process of its own, so that the oracles may be changed."""
    mutant, seed = ask.mutant, ask.seed
    lockstep.ORACLES = tuple(oracle for oracle in ORACLES if oracle.__name__ != ask.variant)
    factory = load_factory(f"hybrid:{mutant}")
    taken = features(factory.capabilities).get(ask.variant, Feature())
    capabilities = taken.capabilities(factory.capabilities)
    traces = steps = 0
    began = time.process_time()
    while (spent := time.process_time() - began) < seconds:
        choices = RandomChoices(seed, traces)
        config = taken.configure(draw_valid_config(choices, factory.supports, capabilities, {}))
        events = taken.grammar(config, capabilities, choices).all_events()
        outcome = lockstep.run_trace(factory, Trace(config, events))
        traces, steps = traces + 1, steps + outcome.steps
        if violation := outcome.violation:
            spent = time.process_time() - began
            return Detection(
                mutant, seed, traces, steps, spent, violation.signature, violation.oracle, violation.message
            )
    return Detection(mutant, seed, traces, steps, spent)


Runs = Callable[[Sequence[Ask]], Sequence[Detection]]


def judging() -> list[type[Oracle]]:
    """The oracles that this target's observations allow, in their order."""
    observes = load_factory("hybrid").capabilities.observes
    return [oracle for oracle in ORACLES if oracle.needs <= observes]


def oracle_table(base: Sequence[Detection], run: Runs) -> list[str]:
    """Runs that each oracle ended first, how they end without it, and mutants that are lost.

    Two oracles may give verdicts under one id: a run was ended by this one if it ends otherwise without it.
    """
    lines = ["| oracle | runs ended first | of them lost without it | ended by others instead | lost mutants |"]
    lines.append("| --- | --- | --- | --- | --- |")
    suspects = {oracle: [one for one in base if one.oracle in oracle.ids()] for oracle in judging()}
    asked = {
        oracle: [Ask(one.mutant, one.seed, oracle.__name__) for one in suspected]
        for oracle, suspected in suspects.items()
    }
    run([ask for some in asked.values() for ask in some])
    for oracle, suspected in suspects.items():
        again = [
            now
            for one, now in zip(suspected, run(asked[oracle]), strict=True)
            if (one.steps, one.signature) != (now.steps, now.signature)
        ]
        others = sorted({one.oracle for one in again if one.found})
        lost = [one.mutant for one in again if not one.found]
        gone = [
            mutant
            for mutant in dict.fromkeys(lost)
            if lost.count(mutant) == sum(one.found for one in base if one.mutant == mutant)
        ]
        name = f"{'/'.join(oracle.ids())} {oracle.title}"
        lines.append(f"| {name} | {len(again)} | {len(lost)} | {', '.join(others)} | {', '.join(gone)} |")
    return lines


def feature_table(base: Sequence[Detection], names: Sequence[str], run: Runs) -> list[str]:
    """What is lost without each feature, and what the rest costs."""
    lines = ["| without | runs found | traces | CPU seconds | lost mutants |", "| --- | --- | --- | --- | --- |"]
    found = {one.mutant for one in base if one.found}
    lines.append(f"| nothing | {sum(one.found for one in base)} of {len(base)} | x1.00 | x1.00 | |")
    asked = {name: [Ask(one.mutant, one.seed, name) for one in base] for name in names}
    run([ask for some in asked.values() for ask in some])
    for name in names:
        again = run(asked[name])
        lost = sorted(found - {one.mutant for one in again if one.found})
        traces = ratio([one.traces for one in again], [one.traces for one in base], 1)
        seconds = ratio([one.seconds for one in again], [one.seconds for one in base], 0.01)
        count = sum(one.found for one in again)
        lines.append(f"| {name} | {count} of {len(again)} | x{traces:.2f} | x{seconds:.2f} | {', '.join(lost)} |")
    return lines


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mutants, separated by commas (all)")
    parser.add_argument("--features", default="", help="features, separated by semicolons (all; '-' for none)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds for each run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--record", type=Path, help="keep the runs in this file, and go on from those in it")
    options = parser.parse_args()
    mutants = list(chosen_mutants("hybrid", [slug for slug in options.only.split(",") if slug]))
    every = list(features(load_factory("hybrid").capabilities))
    names = [name for name in options.features.split(";") if name] or every
    record = Record(options.record)
    with ProcessPoolExecutor(options.jobs) as executor:

        def run(asked: Sequence[Ask]) -> list[Detection]:
            return record.measure(asked, detect, options.seconds, executor)

        base = run([Ask(mutant, seed) for mutant in mutants for seed in range(options.seeds)])
        print("\n".join(oracle_table(base, run)), flush=True)
        if names != ["-"]:
            print("\n".join(feature_table(base, names, run)))


if __name__ == "__main__":
    main()
