"""The gate on each listed release, on a git checkout of it, and on that checkout with one line broken.

    python benchmarks/gate_drill.py [--only vllm@0.33.0,...] [--budget SECONDS] [--results FILE] [--page PAGE]
    python benchmarks/gate_drill.py --planted [SLUG,...] [--budget SECONDS] [--items EXPRESSION]

Writes the table of verdicts between the markers of the page (docs/how-to/gate-pull-requests.md). A checkout comes with
a known.toml of its own, as `hybridfuzz known export` writes it for its release. Exit status 1 unless two runs on
a checkout have the same verdicts, a checkout of vLLM has those of its release, every broken line turns the gate red,
and no checkout is written to. (A checkout of SGLang has no Rust tree core, so its search draws other traces.)

With --planted: the gate, with the packaged patches, on checkouts of vLLM 0.33.0 with one bug planted in each. Exit
status 1 unless each bug is one failure, but for one in ten, which may be two.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import sglang_breaks
import vllm_breaks
from checkouts import changes, make_checkout, only, run_gate
from msgspec import Struct
from trees import Edit

from hybridfuzz.harness import cli
from hybridfuzz.harness.gate.pytest_session import SAME_CAUSE
from hybridfuzz.harness.group.known.fixes import KNOWN_FILE
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import parse, prepare

BEGIN, END = "<!-- gate_drill.py: begin -->", "<!-- gate_drill.py: end -->"
BREAKS = {
    "vllm@0.33.0": ("evictable-not-counted", "mamba2-first-token", "zero-draft-row"),
    "sglang@0.5.23": ("match-without-state",),
}
"""Slugs of vllm_breaks.py and sglang_breaks.py. The second and third of vLLM 0.33.0 show under signatures that known
bugs of that release have."""
RELEASES = tuple(BREAKS)
PLANTED = (
    "same-step-hit", "evictable-not-counted", "hits-not-truncated", "dummy-tables-stale", "zero-draft-row",
    "accepted-after-copy", "boundary-not-saved", "row-not-cleared", "mamba2-first-token", "window-freed-early",
)  # fmt: skip
"""Slugs of vllm_breaks.py, for --planted. The line of row-not-cleared is one that a packaged patch changes."""
BROKEN = "a checkout, broken: "
STATES = ("PASSED", "FAILED", "XFAIL", "SKIPPED")


class Ran(Struct):
    """One run of the gate."""

    release: str
    what: str
    seconds: float
    cpu: float
    late: int
    outcomes: dict[str, str]
    failures: dict[str, int]
    written: list[str] = []
    budget: float = 60.0


def gate(release: str, what: str, folder: Path, target: str, budget: float, *more: str) -> Ran:
    """Run the gate in a folder, with a budget in seconds."""
    ran = run_gate(folder, target, budget, "-v", *more)
    outcomes = dict(re.findall(r"^(hybridfuzz::\S+) ([A-Z]+)", ran.text, re.MULTILINE))
    if not outcomes:
        raise SystemExit(f"the gate on {target} in {folder} ran nothing:\n{ran.text}")
    failures = Counter(re.findall(r"^signature  (\S+)", ran.text, re.MULTILINE))
    result = Ran(release, what, ran.wall, ran.cpu, ran.late, outcomes, dict(failures), budget=budget)
    print(row(result), flush=True)
    return result


def drill(release: str, budget: float, folder: Path) -> Iterator[Ran]:
    """Run everything for one release."""
    name, number = parse(release).name, parse(release).version
    prepare(release, print)
    (folder / "empty").mkdir()
    yield gate(release, "the release", folder / "empty", release, budget)
    own = folder / KNOWN_FILE
    if cli.main(["known", "export", "--target", release, "-o", str(own)]):
        raise SystemExit(f"the known bugs of {release} cannot be exported")
    fixes = f"--hybridfuzz-fixes={own}"
    source = cache_folder() / name / number / "tree"
    tree = make_checkout(source, name, [], folder / "unbroken")
    for what in ("a checkout", "a checkout, again"):
        ran = gate(release, what, tree, f"{name}@.", budget, fixes)
        ran.written = changes(tree)
        yield ran
    for slug in BREAKS[release]:
        tree = make_checkout(source, name, [edit_of(name, slug)], folder / slug)
        yield gate(release, f"{BROKEN}{slug}", tree, f"{name}@.", budget / 2, fixes)


def planted(slugs: Sequence[str], budget: float, items: str) -> int:
    """Run the gate on each planted bug and print a table. Return the exit status."""
    release = "vllm@0.33.0"
    prepare(release, print)
    source = cache_folder() / "vllm" / parse(release).version / "tree"
    found = []
    print("| planted bug | failures | of the same cause | no time for | lines of log | wall s | CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for slug in slugs:
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            tree = make_checkout(source, "vllm", [edit_of("vllm", slug)], Path(folder, slug))
            ran = run_gate(tree, "vllm@.", budget, "--hybridfuzz-fixes=builtin", *only(items))
        log = ran.text.splitlines()
        last = log[-1]
        [failed, same] = [int((re.findall(rf"(\d+) {what}", last) or ["0"])[0]) for what in ("failed", SAME_CAUSE)]
        found.append(failed)
        print(f"| {slug} | {failed} | {same} | {ran.late} | {len(log)} | {ran.wall:.0f} | {ran.cpu:.0f} |", flush=True)
        if failed != 1:
            print(ran.text, file=sys.stderr)
    return int(found.count(1) * 10 < 9 * len(found) or max(found) > 2 or not min(found))


def edit_of(engine: str, slug: str) -> Edit:
    """Return a one-line break of an engine by its name."""
    [one] = [one for one in (vllm_breaks if engine == "vllm" else sglang_breaks).BREAKS if one.slug == slug]
    return Edit(f"{engine}/{one.file}", one.old, one.new)


def row(ran: Ran) -> str:
    """One row of the table."""
    counts = Counter(ran.outcomes.values())
    numbers = " | ".join(str(number) for number in [*(counts[state] for state in STATES), ran.late])
    return f"| `{ran.release}` | {ran.what} | {ran.budget:g} | {ran.seconds:.0f} | {ran.cpu:.0f} | {numbers} |"


def failing(ran: Ran) -> str:
    """The items that fail, and under which signatures."""
    items = [name.removeprefix("hybridfuzz::") for name, state in ran.outcomes.items() if state == "FAILED"]
    signatures = ", ".join(f"`{name}`" for name in sorted(ran.failures))
    return f"* {ran.release}, {ran.what}: {', '.join(f'`{name}`' for name in items)} ({signatures})"


def agree(one: Ran, other: Ran) -> bool:
    """Return True if two runs have the same items with the same verdicts, but for what a run had no time for."""
    late = {name for ran in (one, other) if ran.late for name, state in ran.outcomes.items() if state == "SKIPPED"}
    same = {name for name, state in one.outcomes.items() if other.outcomes.get(name) == state}
    return one.outcomes.keys() == other.outcomes.keys() == same | late


def problems(runs: list[Ran]) -> list[str]:
    """What contradicts the claims above, one line each."""
    by = {(ran.release, ran.what): ran for ran in runs}
    found = []
    for release in dict.fromkeys(ran.release for ran in runs):
        first, checkout = by[release, "the release"], by[release, "a checkout"]
        if not agree(checkout, by[release, "a checkout, again"]):
            found.append(f"{release}: two runs on a checkout differ")
        if parse(release).name == "vllm" and not agree(first, checkout):
            found.append(f"{release}: a checkout has other verdicts than the release")
        failed = [name for name, state in checkout.outcomes.items() if state == "FAILED"]
        for ran in runs:
            if ran.release != release or not ran.what.startswith(BROKEN):
                continue
            if not [name for name, state in ran.outcomes.items() if state == "FAILED" and name not in failed]:
                found.append(f"{release}: {ran.what} is not seen")
    return [
        *found,
        *(f"{ran.release}, {ran.what}: the checkout was written to: {ran.written}" for ran in runs if ran.written),
    ]


def page(runs: list[Ran]) -> str:
    """What stands between the markers."""
    lines = ["| release | run | budget s | wall s | CPU s | passed | failed | xfailed | skipped | of these no time |"]
    lines += ["| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", *map(row, runs)]
    failures = [failing(ran) for ran in runs if ran.what in ("the release", "a checkout") and ran.failures]
    return "\n".join([*lines, "", *(["Failing:", "", *failures, ""] if failures else [])])


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(RELEASES), help='releases, with commas between them; "" runs none')
    parser.add_argument("--budget", type=float, default=60, metavar="SECONDS")
    parser.add_argument("--results", type=Path, help="keep results here; releases that are not run come from it")
    parser.add_argument("--page", type=Path, help="write the table between the markers of this page")
    parser.add_argument("--planted", nargs="?", const=",".join(PLANTED), metavar="SLUG,...", help="see above")
    parser.add_argument("--items", default="", metavar="EXPRESSION", help="with --planted: as for pytest's -k")
    arguments = parser.parse_args()
    if arguments.planted:
        return planted(arguments.planted.split(","), arguments.budget, arguments.items)
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
