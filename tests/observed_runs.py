"""Prints the observations of this interpreter's hybridfuzz as JSON: `python observed_runs.py CORPUS TRACES`.

Run by `test_compiled.py` with the sources as they are and with the hot modules compiled.
"""

import json
import sys
from pathlib import Path

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge import lockstep, run
from hybridfuzz.targets.base.registry import load_factory


def clean(traces: int) -> list[object]:
    """Return the observations of random traces on the correct target."""
    factory = load_factory("hybrid")
    observed: list[object] = []
    for index in range(traces):
        trace = draw_trace(factory.capabilities, 91, index, {}, factory.supports)
        outcome = run.run_trace(factory, trace)
        observed.append([outcome.digest, outcome.steps, outcome.exercised, outcome.reached, str(outcome.violation)])
    return observed


def broken(corpus: Path) -> dict[str, object]:
    """Return the observations of every mutant on its reduced traces."""
    observed: dict[str, object] = {}
    for path in sorted(corpus.glob("*.json")):
        outcome = run.run_trace(load_factory(f"hybrid:{path.name.partition('--')[0]}"), load_trace(path))
        signature = outcome.violation.signature if outcome.violation else ""
        message = outcome.violation.message if outcome.violation else ""
        # A crash names its file, which a compiled module knows by where it was compiled.
        observed[path.stem] = [signature, message.replace(" src/", " "), outcome.digest]
    return observed


if __name__ == "__main__":
    runs = {"from": lockstep.__file__, "clean": clean(int(sys.argv[2])), "broken": broken(Path(sys.argv[1]))}
    json.dump(runs, sys.stdout)
