"""Data-parallel ranks in processes of their own, a GPU each: torchrun --nproc-per-node 2 benchmarks/ranks.py cuda 20.

Every process draws the same traces and holds one rank; before each step they vote through NCCL (gloo without a GPU).
Each prints one JSON object; exit status 1 if its rank saw a violation.
"""

import json
import sys
import time

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.ranks import on_ranks, run_ranks
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.hybrid.numeric.collective import join, leave


def main(device: str = "cuda", traces: str = "20") -> int:
    rank, ranks, vote = join()
    factory = load_factory(f"hybrid@{device}")
    began, steps, messages = time.monotonic(), 0, []
    for index in range(int(traces)):
        trace = on_ranks(draw_trace(factory.capabilities, 51, index, supports=factory.supports), ranks)
        outcome = run_ranks(factory, trace, (rank,), vote)
        steps += outcome.steps
        if outcome.violation:
            messages.append(outcome.violation.message)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"rank": rank, "ranks": ranks, "steps": steps, "seconds": seconds, "violations": messages}))
    leave()
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
