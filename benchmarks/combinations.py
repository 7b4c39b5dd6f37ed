"""Combinations of rows that the workload meets: `python benchmarks/combinations.py [--candidates N]`.

A combination is about the rows of a planned batch, in its order: a row's kind and its offset from a block boundary, two
kinds in one batch, three neighbours, a row's kind in two consecutive steps, a row that is left out of a step. Kinds:

    f, c      first chunk of a prompt, a later one       e, o   the last chunk (the end), or not
    1, p      one token, or more                         D, R   with drafts; computed again after a preemption
    d, w, v   decode without drafts, with some, with all

Counts the distinct combinations in --steps steps of each seed on a target in this process.

With --candidates N each step is steered: of N steps that the grammar draws, the one is taken whose combinations are the
rarest in the trace so far, by a forecast of the scheduler (`Forecast`). The product does not do this; decisions.md has
the reason.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybridfuzz.harness.draw.choices import RandomChoices
from hybridfuzz.harness.draw.configurations import draw_valid_config
from hybridfuzz.harness.draw.grammar import Grammar
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Effect, Planned
from hybridfuzz.targets.base.protocol import Capabilities, Target, TargetFactory
from hybridfuzz.targets.base.proxy import FactoryProxy, TargetProxy
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Abort, AnyEvent, Arrive, Config, Event, Park, Preempt, Resume, Step, Trace

Combination = tuple[object, ...]


class Row(NamedTuple):
    """A row of a batch: its request, its kind, and its offset from a block boundary (".": more than one token)."""

    name: str
    kind: str
    offset: str


def offset(end: int, block: int) -> str:
    """Return where a row ends."""
    return {0: "0", 1: "1", block - 1: "-"}.get(end % block, ".")


def combinations(rows: Sequence[Row], before: dict[str, str]) -> set[Combination]:
    """Return the combinations of a batch; `before` has the kinds of the last one's rows."""
    kinds = [row.kind for row in rows]
    now = {row.name: row.kind for row in rows}
    found: set[Combination] = {("row", row.kind, row.offset) for row in rows}
    found |= {("pair", one.kind, one.offset, kind) for i, one in enumerate(rows) for kind in kinds[i + 1 :]}
    found |= {("neighbours", *kinds[i : i + 3]) for i in range(len(kinds) - 2)}
    found |= {("then", before[name], kind, len(rows) > 1) for name, kind in now.items() if name in before}
    found |= {("left out", kind, min(len(rows), 3)) for name, kind in before.items() if name not in now}
    return found


class Plans(TargetProxy):
    """Keeps the plans of a run, and the lengths of prompts."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.plans: list[Planned] = []
        self.prompts: dict[str, int] = {}

    def apply(self, event: Event) -> Effect:
        """Forward an event."""
        if isinstance(event, Arrive):
            self.prompts[event.name] = sum(tokens for _, tokens in event.prompt)
        effect = super().apply(event)
        self.plans += [record for record in effect.records if isinstance(record, Planned)]
        return effect

    def batches(self, config: Config) -> Iterator[list[Row]]:
        """Yield the rows of each planned batch."""
        k, block = config.num_speculative_tokens, min(group.block_size for group in config.groups)
        done: Counter[str] = Counter()
        for planned in self.plans:
            rows = []
            for row in planned.rows:
                end = row.start + row.num_tokens - row.drafts
                kind = "d" if not row.drafts else "v" if row.drafts == k else "w"
                if row.start < self.prompts.get(row.name, 0):
                    kind = "1" if end == row.start + 1 else "p"
                    kind += "f" if row.admitted else "c"
                    kind += "e" if end >= self.prompts[row.name] else "o"
                    kind += "D" * bool(row.drafts)
                again = end <= done[row.name] or (row.admitted and row.start < done[row.name])
                rows.append(Row(row.name, "R" * again + kind, offset(end, block)))
                done[row.name] = max(done[row.name], end)
            yield rows


class Recording(FactoryProxy):
    """Opens targets that keep their plans."""

    last: Plans

    def open(self, config: Config) -> Target:
        """Open a target."""
        self.last = Plans(super().open(config))
        return self.last


@dataclass
class Expected:
    """A request as the forecast sees it. `known` tokens are there to compute, `computed` of them are computed."""

    prompt: int
    total: int
    known: int
    computed: int = 0
    running: bool = False
    drafts: int = 0
    right: int = 0
    most: int = 0


class Forecast:
    """Predicts batches: running requests first, then waiting ones, within the budget. It knows no pool and no hits."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.block = min(group.block_size for group in config.groups)
        self.requests: dict[str, Expected] = {}
        self.seen: Counter[Combination] = Counter()
        self.before: dict[str, str] = {}

    def happen(self, event: AnyEvent) -> None:
        """Take note of an event."""
        if isinstance(event, Arrive | Resume):
            prompt = sum(tokens for _, tokens in event.prompt)
            self.requests[event.name] = Expected(prompt, prompt + event.max_new_tokens, prompt)
        elif isinstance(event, Abort | Park):
            self.requests.pop(event.name, None)
        elif isinstance(event, Preempt) and event.name in self.requests:
            request = self.requests.pop(event.name)
            request.computed, request.running, request.drafts = 0, False, 0
            self.requests = {event.name: request, **self.requests}
        elif isinstance(event, Step):
            self._step(event)

    def score(self, step: Step) -> float:
        """Return how rare the combinations of a step are in the trace so far."""
        rows = [row for row, _, _ in self._batch(step)]
        return sum(1 / (1 + self.seen[each]) ** 2 for each in combinations(rows, self.before))

    def _batch(self, step: Step) -> list[tuple[Row, int, int]]:
        """Return the rows of a step with their tokens and drafts."""
        config, planned = self.config, []
        budget = min(step.budget or config.max_num_batched_tokens, config.max_num_batched_tokens)
        running = [name for name, request in self.requests.items() if request.running]
        waiting = [name for name, request in self.requests.items() if not request.running]
        for name in running + waiting[: max(config.max_num_seqs - len(running), 0)]:
            request = self.requests[name]
            todo = request.known - request.computed
            limits = [todo, step.chunks.get(name, todo), config.long_prefill_token_threshold or todo, budget]
            tokens = min(limits)
            if config.mamba_cache_mode == "align" and tokens < todo:
                tokens = (request.computed + tokens) // self.block * self.block - request.computed
            if tokens <= 0:
                continue
            decodes = request.computed >= request.prompt and todo == 1
            drafts = min(request.drafts, budget - tokens, max(request.total - request.known - 1, 0)) * decodes
            budget -= tokens + drafts
            planned.append((self._row(name, request, tokens, drafts), tokens, drafts))
        return planned

    def _row(self, name: str, request: Expected, tokens: int, drafts: int) -> Row:
        end = request.computed + tokens
        kind = "d" if not drafts else "v" if drafts == self.config.num_speculative_tokens else "w"
        if request.computed < request.prompt:
            kind = ("1" if tokens == 1 else "p") + ("c" if request.running else "f")
            kind += "e" if end >= request.prompt else "o"
        again = end <= request.most or (not request.running and request.computed < request.most)
        return Row(name, "R" * again + kind, offset(end, self.block))

    def _step(self, step: Step) -> None:
        planned = self._batch(step)
        rows = [row for row, _, _ in planned]
        self.seen.update(combinations(rows, self.before))
        self.before = {row.name: row.kind for row in rows}
        for row, tokens, drafts in planned:
            request = self.requests[row.name]
            request.running = True
            request.computed += tokens + min(request.right, drafts)
            request.most = max(request.most, request.computed)
            if request.computed >= request.known:
                request.known = min(request.computed + 1, request.total)
            request.drafts, request.right = step.per_request.get(row.name, (step.drafts, step.right))
            if request.computed >= request.total - 1:
                del self.requests[row.name]


class Steered(Grammar):
    """The grammar, with a choice of steps."""

    def __init__(self, config: Config, capabilities: Capabilities, choices: RandomChoices, candidates: int) -> None:
        super().__init__(config, capabilities, choices)
        self.forecast = Forecast(config)
        self.candidates = candidates

    def next_event(self) -> AnyEvent:
        """Return the next event of the trace."""
        event = super().next_event()
        self.forecast.happen(event)
        return event

    def step(self) -> Step:
        """Return the candidate with the rarest combinations."""
        drawn = []
        for _ in range(self.candidates):
            left, uncomputed = dict(self.left), dict(self.uncomputed)
            drawn.append((super().step(), self.left, self.uncomputed))
            self.left, self.uncomputed = left, uncomputed
        best, self.left, self.uncomputed = max(drawn, key=lambda one: self.forecast.score(one[0]))
        return best


def draw(factory: TargetFactory, seed: int, index: int, candidates: int) -> Trace:
    """Return a trace of the workload; with one candidate that of a campaign."""
    choices = RandomChoices(seed, index)
    config = draw_valid_config(choices, factory.supports, factory.capabilities, {})
    return Trace(config, Steered(config, factory.capabilities, choices, candidates).all_events())


def measure(target: str, seed: int, steps_min: int, candidates: int) -> str:
    """Return one line for one seed."""
    factory = Recording(load_factory(target))
    seen: Counter[Combination] = Counter()
    sizes: Counter[int] = Counter()
    steps = draining = index = 0
    began = time.process_time()
    while steps < steps_min:
        trace = draw(factory, seed, index, candidates)
        outcome = run_trace(factory, trace)
        assert outcome.violation is None, outcome.violation
        index, steps = index + 1, steps + outcome.steps
        draining += max(len(factory.last.plans) - sum(isinstance(event, Step) for event in trace.events), 0)
        before: dict[str, str] = {}
        for rows in factory.last.batches(trace.config):
            sizes[min(len(rows), 3)] += 1
            seen.update(combinations(rows, before))
            before = {row.name: row.kind for row in rows}
    shares = ", ".join(f"{100 * sizes[size] // sizes.total()} %" for size in range(4))
    often = sum(times >= 20 for times in seen.values())
    return (
        f"| {seed} | {candidates} | {len(seen):,} | {often} | {shares} | {100 * draining // steps} % | "
        f"{time.process_time() - began:.1f} |"
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="hybrid")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10_000, help="steps for each seed")
    parser.add_argument("--candidates", type=int, default=1)
    options = parser.parse_args()
    print("| seed | candidates | combinations | 20 times or more | batches of 0, 1, 2, 3+ rows | draining | CPU s |")
    print("| ---: | ---: | ---: | ---: | --- | ---: | ---: |")
    for seed in range(1, options.seeds + 1):
        print(measure(options.target, seed, options.steps, options.candidates), flush=True)


if __name__ == "__main__":
    main()
