"""Explorations beside the reducer and beside random search: `python benchmarks/explored.py WHAT`.

mutants  each mutant is explored until a trace fails (--scope hour --events 4 --seconds 15): the length of the
         shortest trace, that of the packaged one, and for the others what their packaged trace needs that the scope
         does not have
random   named states, and pairs of them in one event, that all traces of a scope reach and --traces random ones do
         not, and the other way round; random traces have the scope's configurations. Then uniform walks over the
         scope's events: each state within the bound must be one that was explored
memory   of the coordinator, per million states
"""

from __future__ import annotations

import argparse
import datetime
import random
import resource
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import structs

from hybridfuzz.harness.campaign.canary import known_traces
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.explore.expand import Branch, Expand, Expander, Grown, Parent
from hybridfuzz.harness.explore.exploration import Exploration, Settings
from hybridfuzz.harness.explore.scope import Scope, read_scope
from hybridfuzz.harness.explore.search import Search
from hybridfuzz.harness.group.known.fixes import BUILTIN, apply_fixes, read_fixes
from hybridfuzz.harness.group.known.known_toml import fitting
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.situations import NAMES
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, Fork, Trace, tag_of
from hybridfuzz.targets.hybrid.factory import make_factory
from hybridfuzz.targets.hybrid.mutants import MUTANTS

CAUSES = {
    "one-token-prompt": ("vllm-sessions", 2, 3),
    "prompt-as-decode": ("vllm-sessions", 3, 1),
    "session-dummy-run": ("vllm-sessions", 3, 3),
    "session-behind-ring": ("vllm-sessions", 4, 4),
    "session-behind-stop": ("vllm-sessions", 0, 4),
    "session-keeps-grammar": ("vllm-sessions", 1, 4),
    "published-then-preempted": ("vllm-priority", 0, 3),
    "copy-of-a-state": ("vllm-hits", 0, 2),
    "past-a-partial-hit": ("vllm-hits", 1, 2),
    "copy-of-an-unfilled-block": ("vllm-hits", 1, 3),
    "retry-reserved-twice": ("vllm-connector", 0, 2),
    "loads-wait-for-each-other": ("vllm-connector", 2, 2),
    "state-copied-before-load": ("vllm-connector", 2, 2),
    "inner-state-without-block": ("vllm-mixers", 0, 2),
    "linear-prompt-as-decode": ("vllm-mixers", 4, 1),
    "linear-without-accepted-counts": ("vllm-mixers", 4, 1),
}
"""Cause -> packaged scope, number of a configuration there, and most events."""
VLLM = "vllm@0.33.0"
IGNORED = ("num_blocks", "groups", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "conv_width")
"""Fields of a configuration that are no features: sizes, which the scope has in smaller."""
SIZES = frozenset(
    {"event", "name", "parent", "prompt", "max_new_tokens", "blocks", "length", "rows", "budget", "chunks"}
)
"""Fields of events that the scope has, or has in smaller."""
EXAMPLES = 12


def outside(trace: Trace, scope: Scope) -> list[str]:
    """Return what a trace needs that no configuration or event of the scope has."""
    found = min((_lacking(trace.config, config) for config in scope.configuration), key=len)
    for event in trace.events:
        tag = tag_of(event)
        values = msgspec.to_builtins(event)
        names = {"event", "name", "parent", "prompt", "max_new_tokens", "blocks", "length", "rows", "budget", "chunks"}
        new = [
            name for name in values if name not in names and not any(name in one for one in scope.alphabet.get(tag, ()))
        ]
        found += [f"event {tag}"] if tag not in scope.alphabet else [f"{name} of {tag}" for name in new]
    if (count := sum(isinstance(event, Arrive | Fork) for event in trace.events)) > scope.requests:
        found.append(f"{count} requests")
    return list(dict.fromkeys(found))


def _lacking(config: Config, has: Config) -> list[str]:
    usual = Config(num_blocks=2, groups=config.groups)
    found = []
    for name in Config.__struct_fields__:
        value = getattr(config, name)
        if name in IGNORED or value in (getattr(has, name), getattr(usual, name)):
            continue
        if name == "num_speculative_tokens" and value <= has.num_speculative_tokens:
            continue
        if name == "options":
            found += [f"{key}={chosen}" for key, chosen in value.items() if has.options.get(key) != chosen]
        elif name not in ("graph_sizes", "enable_prefix_caching"):
            found.append(f"{name}={value}")
    kinds = [group.kind for group in config.groups]
    for kind in ("mamba", "attention"):
        if kinds.count(kind) > 1:
            found.append(f"{kinds.count(kind)} {kind} groups")
    for name in ("window", "chunk", "draft"):
        if any(getattr(group, name) for group in config.groups):
            found.append(f"a group with a {name}")
    if len({group.block_size for group in config.groups}) > 1:
        found.append("unequal blocks")
    if any(group.layers > 1 for group in config.groups):
        found.append("several layers of a group")
    return found


def mutants(scope: Scope, name: str, events: int, seconds: float, only: str) -> None:
    """Print the table of mutants."""
    print(
        "| mutant | shortest | packaged | complete up to | packaged trace needs |\n| --- | ---: | ---: | ---: | --- |"
    )
    for slug in MUTANTS:
        if only and only not in slug:
            continue
        target = f"hybrid:{slug}"
        with TemporaryDirectory() as folder:
            settings = Settings(
                target=target, engine="", patches=(), hybridfuzz="", scope=scope, scope_name=name, events=events,
                out=Path(folder), check_every=0, first=True, seconds=seconds,
            )  # fmt: skip
            launch = prepare(target, lambda text: None)
            certificate = Exploration(settings, partial(WorkerClient, target, launch)).run()
        shortest = min((failing.events for failing in certificate.failures), default=0)
        packaged = sorted(known_traces(slug), key=lambda trace: len(trace.events))
        lengths = ", ".join(str(len(trace.events)) for trace in packaged)
        needs = min((outside(trace, scope) for trace in packaged), key=len, default=["no trace"])
        why = "" if shortest else ", ".join(needs) or "nothing else"
        print(f"| `{slug}` | {shortest or '-'} | {lengths} | {certificate.events} | {why} |", flush=True)


def causes(only: str) -> None:
    """Print the table of known causes of vLLM."""
    entries = read_fixes(BUILTIN, VLLM)
    launch = prepare(VLLM, lambda text: None)
    print("| cause | scope | shortest | packaged | signature |\n| --- | --- | ---: | ---: | --- |")
    for cause, (name, number, events) in CAUSES.items():
        if only not in ("", cause):
            continue
        others = apply_fixes(launch, [one for one in entries if one.name != cause], VLLM, datetime.date.today())
        scope = read_scope(name)
        with TemporaryDirectory() as folder:
            settings = Settings(
                target=VLLM, engine="", patches=(), hybridfuzz="", scope_name=name, events=events, out=Path(folder),
                scope=structs.replace(scope, configuration=scope.configuration[number : number + 1]), first=True,
            )  # fmt: skip
            found = Exploration(settings, partial(WorkerClient, VLLM, others.launch)).run().failures
        packaged = fitting([one for one in entries if one.name == cause], VLLM, launch.version, datetime.date.today())
        lengths = sorted(len(trace.events) for one in packaged for trace in one.read_traces())
        cells = (f"`{cause}`", f"`{name}`", found[0].events if found else "-", ", ".join(map(str, lengths)),
                 ", ".join(failing.signature for failing in found))  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def explore(scope: Scope, events: int) -> Search:
    """Explore in this process."""
    factory = make_factory()
    expander, search = Expander(factory), Search(scope, factory.capabilities, None, 0)
    for _ in range(events):
        for state in search.frontier:
            parent = search.parent(state)
            [grown] = expander.expand(Expand((parent,)), lambda index: None).grown
            search.take(state, parent, grown)
        search.end_level()
    return search


class Reached:
    """Named states, and pairs of them in one event, with a trace that reaches each."""

    def __init__(self, traces: Iterator[Trace]) -> None:
        self.names: dict[str, Trace] = {}
        self.pairs: dict[tuple[str, str], Trace] = {}
        self.traces = 0
        factory = make_factory()
        for trace in traces:
            self.traces += 1
            outcome = run_trace(factory, trace)
            assert not outcome.violation
            for name in outcome.reached:
                self.names.setdefault(name, trace)
            for together in outcome.together:
                for first, one in enumerate(together):
                    for other in together[first + 1 :]:
                        self.pairs.setdefault((NAMES[one], NAMES[other]), trace)


def all_traces(search: Search, scope: Scope) -> Iterator[Trace]:
    """Yield the first trace to each state."""
    for state in range(search.frontier.stop):
        index, events = search.trace_of(state)
        if events:
            yield Trace(scope.configuration[index], events)


def random_traces(scope: Scope, count: int) -> Iterator[Trace]:
    """Yield traces of the usual workload, with the scope's configurations in turn."""
    capabilities = make_factory().capabilities
    for index in range(count):
        config = scope.configuration[index % len(scope.configuration)]
        fields = {name: getattr(config, name) for name in Config.__struct_fields__ if name != "options"}
        yield draw_trace(capabilities, 1, index, fields)


def compare(scope: Scope, name: str, events: int, count: int) -> None:
    """Print what each way reaches alone."""
    search = explore(scope, events)
    explored, drawn = Reached(all_traces(search, scope)), Reached(random_traces(scope, count))
    print(
        f"{explored.traces} traces of scope {name} up to {events} events reach {len(explored.names)} named states and "
        f"{len(explored.pairs)} pairs; {drawn.traces} random ones {len(drawn.names)} and {len(drawn.pairs)}"
    )
    for title, one, other in (("exploration", explored, drawn), ("random traces", drawn, explored)):
        states, pairs = sorted(one.names.keys() - other.names.keys()), sorted(one.pairs.keys() - other.pairs.keys())
        print(f"\nonly by {title}: {len(states)} named states, {len(pairs)} pairs")
        for state in states:
            print(f"- {state}")
        for pair in sorted(pairs, key=lambda pair: len(one.pairs[pair].events))[:EXAMPLES]:
            trace = one.pairs[pair].events
            told = msgspec.json.encode(trace).decode() if len(trace) <= events else f"a trace of {len(trace)} events"
            print(f"- {' + '.join(pair)}: {told}")
    print()
    walk(scope, search, events, count)


def walk(scope: Scope, search: Search, events: int, count: int) -> None:
    """Run uniform walks over the scope's events, and print which states of them were not explored."""
    factory, source = make_factory(), random.Random(1)
    expander, known, met, missed = Expander(factory), set(search._prints), set[int](), 0
    for number in range(count):
        index = number % len(scope.configuration)
        config, alphabet = scope.configuration[index], search.alphabets[index]
        trace = []
        for _ in range(events):
            trace.append(source.choice(alphabet.after(trace)))
        parent = Parent(config, tuple(trace), (), alphabet.context(trace), ())
        [grown] = expander.expand(Expand((parent,)), lambda index: None).grown
        met.add(grown.fingerprint)
        missed += grown.fingerprint not in known
    print(
        f"{count} uniform walks of {events} events end in {len(met)} states, {missed} walks in one that was not "
        f"explored; exploration has {len(known)} states, {len(known - met)} of which no walk ended in"
    )


def memory(count: int) -> None:
    """Print the coordinator's memory for states that are reached by ever the same events."""
    scope = read_scope("minute")
    search = Search(scope, make_factory().capabilities, None, 0)
    parent = search.parent(0)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    fingerprint = 1
    while search.states < count:
        branches = tuple(
            Branch((fingerprint + number) * 0x9E3779B97F4A7C15 % 2**64) for number in range(len(parent.branches))
        )
        search.take(0, parent, Grown(1, branches))
        fingerprint += len(branches)
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    seconds = time.process_time() - began
    print(f"{search.states} states: {used / search.states * 1e6:.0f} MiB per million states; {seconds:.1f} s")


def main() -> None:
    """Run a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("mutants", "random", "memory", "causes"))
    parser.add_argument("--scope", default="hour")
    parser.add_argument("--events", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--traces", type=int, default=500)
    parser.add_argument("--states", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="mutants with this in their name; one cause")
    arguments = parser.parse_args()
    scope = read_scope(arguments.scope)
    if arguments.what == "mutants":
        mutants(scope, arguments.scope, arguments.events, arguments.seconds, arguments.only)
    elif arguments.what == "causes":
        causes(arguments.only)
    elif arguments.what == "random":
        compare(scope, arguments.scope, arguments.events, arguments.traces)
    else:
        memory(arguments.states)


if __name__ == "__main__":
    main()
