"""The gate on each listed release, on a git checkout of it, and on that checkout with one line broken.

    python benchmarks/gate_drill.py [--only vllm@0.33.0,...] [--budget SECONDS] [--results FILE] [--page PAGE]

Writes the table of verdicts between the markers of the page (docs/how-to/gate-pull-requests.md). In a checkout the
release's own bugs are acknowledged by a known.toml made from the packaged corpus. Exit status 1 unless two runs on a
checkout have the same verdicts, a checkout of vLLM has those of its release, every broken line turns the gate red (a
quarter of the budget shows that), and no checkout is written to. (A checkout of SGLang has no Rust tree core, so its
search draws other traces.)
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from checkouts import changes, make_checkout
from hybridfuzz.harness.gate.packaged_bugs import shipped
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import parse, prepare
from msgspec import Struct
from trees import Edit

BEGIN, END = "<!-- gate_drill.py: begin -->", "<!-- gate_drill.py: end -->"
BREAKS = {
    "vllm": Edit(
        "vllm/v1/core/single_type_kv_cache_manager.py",
        "return num_new_blocks + num_evictable_computed_blocks",
        "return num_new_blocks",
    ),
    "sglang": Edit(
        "sglang/srt/mem_cache/unified_cache/components/mamba.py",
        "            return lambda node: node.component_data[ct].value is not None\n",
        "            return lambda node: True\n",
    ),
}
"""`evictable-not-counted` of vllm_breaks.py and `match-without-state` of sglang_breaks.py. (A break that shows under a
known signature, such as `state-ahead-of-key`, is taken for the known bug: the gate stays green.)"""
RELEASES = ("vllm@0.28.0", "vllm@0.33.0", "sglang@0.5.23")
STATES = ("PASSED", "FAILED", "XFAIL", "SKIPPED")


class Ran(Struct):
    """One run of the gate."""

    release: str
    what: str
    seconds: float
    outcomes: dict[str, str]
    failures: dict[str, int]
    written: list[str] = []
    budget: float = 60.0


def gate(release: str, what: str, folder: Path, target: str, budget: float, *more: str) -> Ran:
    """Run the gate in a folder, with a budget in seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-v", "--hybridfuzz-target", target, f"--hybridfuzz-budget={budget}s"]
    command += more
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    outcomes = dict(re.findall(r"^(hybridfuzz::\S+) ([A-Z]+)", ran.stdout, re.MULTILINE))
    if not outcomes:
        raise SystemExit(f"the gate on {target} in {folder} ran nothing:\n{ran.stdout}{ran.stderr}")
    failures = Counter(re.findall(r"^signature  (\S+)", ran.stdout, re.MULTILINE))
    result = Ran(release, what, time.monotonic() - began, outcomes, dict(failures), budget=budget)
    print(row(result), flush=True)
    return result


def drill(release: str, budget: float, folder: Path) -> Iterator[Ran]:
    """Run everything for one release."""
    name, number = parse(release).name, parse(release).version
    prepare(release, print)
    (folder / "empty").mkdir()
    yield gate(release, "the release", folder / "empty", release, budget)
    entries = [f'[[known]]\nsignature = "{k.signature}"\nreason = "{k.reason}"\n' for k in shipped(release, number)]
    (folder / "known.toml").write_text("\n".join(entries), encoding="utf-8")
    known = f"--hybridfuzz-known={folder / 'known.toml'}"
    source = cache_folder() / name / number / "tree"
    tree = make_checkout(source, name, [], folder / "unbroken")
    for what in ("a checkout", "a checkout, again"):
        ran = gate(release, what, tree, f"{name}@.", budget, known)
        ran.written = changes(tree)
        yield ran
    tree = make_checkout(source, name, [BREAKS[name]], folder / "broken")
    yield gate(release, "a checkout, broken", tree, f"{name}@.", budget / 4, known)


def row(ran: Ran) -> str:
    """One row of the table."""
    counts = Counter(ran.outcomes.values())
    numbers = " | ".join(str(counts[state]) for state in STATES)
    return f"| `{ran.release}` | {ran.what} | {ran.budget:g} | {ran.seconds:.0f} | {numbers} |"


def failing(ran: Ran) -> str:
    """The items that fail, and under which signatures."""
    items = [name.removeprefix("hybridfuzz::") for name, state in ran.outcomes.items() if state == "FAILED"]
    signatures = ", ".join(f"`{name}`" for name in sorted(ran.failures))
    return f"* {ran.release}, {ran.what}: {', '.join(f'`{name}`' for name in items)} ({signatures})"


def problems(runs: list[Ran]) -> list[str]:
    """What contradicts the claims above, one line each."""
    by = {(ran.release, ran.what): ran for ran in runs}
    found = []
    for release in dict.fromkeys(ran.release for ran in runs):
        first, checkout = by[release, "the release"], by[release, "a checkout"]
        if checkout.outcomes != by[release, "a checkout, again"].outcomes:
            found.append(f"{release}: two runs on a checkout differ")
        if parse(release).name == "vllm" and checkout.outcomes != first.outcomes:
            found.append(f"{release}: a checkout has other verdicts than the release")
        failed = [name for name, state in checkout.outcomes.items() if state == "FAILED"]
        broken = by[release, "a checkout, broken"].outcomes
        if not [name for name, state in broken.items() if state == "FAILED" and name not in failed]:
            found.append(f"{release}: the broken line is not seen")
    return [
        *found,
        *(f"{ran.release}, {ran.what}: the checkout was written to: {ran.written}" for ran in runs if ran.written),
    ]


def page(runs: list[Ran]) -> str:
    """What stands between the markers."""
    lines = ["| release | run | budget s | wall s | passed | failed | known | skipped |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", *map(row, runs)]
    failures = [failing(ran) for ran in runs if ran.what in ("the release", "a checkout") and ran.failures]
    return "\n".join([*lines, "", *(["Failing:", "", *failures, ""] if failures else [])])


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(RELEASES), help='releases, with commas between them; "" runs none')
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--results", type=Path, help="keep results here; releases that are not run come from it")
    parser.add_argument("--page", type=Path, help="write the table between the markers of this page")
    arguments = parser.parse_args()
    kept: Path | None = arguments.results
    runs = msgspec.json.decode(kept.read_bytes(), type=list[Ran]) if kept and kept.exists() else []
    for release in filter(None, arguments.only.split(",")):
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            runs = [*(ran for ran in runs if ran.release != release), *drill(release, arguments.budget, Path(folder))]
        if kept:
            kept.write_bytes(msgspec.json.encode(runs))
    runs.sort(key=lambda ran: RELEASES.index(ran.release))
    print(text := page(runs))
    if arguments.page:
        before, begin, rest = arguments.page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise SystemExit(f"{arguments.page} lacks the markers {BEGIN} and {END}")
        arguments.page.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")
    wrong = problems(runs)
    print("\n".join(wrong) or "same verdicts twice, on checkouts too; every broken line is red; no checkout written to")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
