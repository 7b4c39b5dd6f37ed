"""New bugs behind known ones: vLLM 0.33.0 with one line broken, its nine known causes fixed (`--fixes builtin`).

    python benchmarks/behind_known.py [--only SLUG,...] [--results FILE] [--page benchmarks/behind_known.md]

Each break of vllm_breaks.py that is listed here shows under a signature that a known bug has, too: with a list of known
signatures it would be taken for that bug. The campaign is that of `hybridfuzz fuzz --target vllm@TREE --fixes builtin`
and is stopped at its first finding. Exit status 1 unless every campaign has exit status 1 and a new finding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from breaks import Break, edited, overlay
from hybridfuzz.harness.campaign.campaign import Campaign
from hybridfuzz.harness.cli import build_parser
from hybridfuzz.harness.commands import fuzz
from hybridfuzz.harness.events import CampaignEnded, Found, TraceDone
from hybridfuzz.harness.findings.fixes import BUILTIN, read_fixes
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import prepare
from vllm_breaks import BREAKS, DRILL

RELEASE = "0.33.0"
SLUGS = (
    "skipped-off-by-one", "accepted-after-copy", "mamba2-first-token", "in-flight-not-subtracted",
    "accepted-of-last-owner", "seed-off-by-one", "padded-tail-as-prefill", "initial-state-offset",
    "graph-prefill-admitted", "graph-states-not-staged", "mamba2-accepted", "row-of-last-owner", "zero-draft-row",
    "dummy-tables-stale", "row-not-cleared", "first-boundary-not-reset",
)  # fmt: skip
STEPS_MAX = 3000


class Result(msgspec.Struct, frozen=True):
    """One campaign. `steps`, `traces`, `seconds` up to the finding; `known_as` are known bugs with its signature."""

    slug: str
    what: str
    status: int
    signature: str
    known_as: list[str]
    steps: int
    traces: int
    seconds: float
    version: str
    still_there: int


def run(one: Break, tree: Path, folder: Path) -> Result:
    """Break the line in a copy of the tree, run a campaign on it with all fixes, stop at the first finding."""
    inside = Path(DRILL.package) / one.file
    text = edited(DRILL, tree, one)
    overlay(tree, folder / one.slug, inside)
    (folder / one.slug / inside).write_text(text, encoding="utf-8")
    config = ",".join(f"{key}={value}" for key, value in one.config.items())
    line = ["fuzz", "--target", f"vllm@{folder / one.slug}", "--fixes", BUILTIN, "--config", config, "--seed", "11"]
    line += ["--steps", str(STEPS_MAX), "--jobs", "1", "--no-canary", "--reduce", "5s", "--timeout", "10m"]
    options = build_parser("fuzz").parse_args([*line, "-o", str(folder / f"{one.slug}-out")])
    campaign = Campaign(fuzz.settings_of(options))
    steps = traces = 0
    began = found = time.monotonic()
    signature = ""
    with closing(campaign.run()) as events:
        for event in events:
            if isinstance(event, TraceDone) and not signature:
                steps, traces = steps + event.steps, traces + 1
                began = began if traces > 1 else time.monotonic()
            elif isinstance(event, Found) and not signature:
                signature, found = event.finding.signature, time.monotonic()
                campaign.stop("steps")
            elif isinstance(event, CampaignEnded):
                summary = event.summary
    entries = [entry for entry in read_fixes(BUILTIN, "vllm") if RELEASE in entry.releases]
    known_as = [one.title for one in entries if any(fnmatchcase(signature, each) for each in one.signatures)]
    there = sum(bug.verdict == "still there" for bug in summary.known_bugs)
    return Result(
        one.slug, one.what, fuzz.status(summary), signature, known_as, steps, traces, found - began,
        summary.version.removeprefix(str(folder / one.slug)), there,
    )  # fmt: skip


def results(slugs: list[str]) -> Iterator[Result]:
    """Yield the results of breaks, one after another."""
    known = {one.slug: one for one in BREAKS}
    tree = Path(prepare(f"vllm@{RELEASE}", print).tree)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        for slug in slugs:
            yield run(known[slug], tree, Path(folder))


def page(ran: list[Result]) -> str:
    """Return the page."""
    right = [one for one in ran if one.status == 1 and one.known_as]
    lines = [
        "# New bugs behind known ones",
        "",
        f"`python benchmarks/behind_known.py`: vLLM {RELEASE} with its nine known causes fixed (`--fixes builtin`) and",
        f"one line broken. {len(right)} of {len(ran)} campaigns end with exit status 1 and a new finding with the",
        "signature of a known bug. With signatures alone each would be reported as that bug, with exit status 0.",
        "The clock runs from the end of the first trace, on a machine that was busy with other work.",
        "",
        "| break | what | exit | finding | known bugs with this signature | trace | steps | seconds |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| `{one.slug}` | {one.what} | {one.status} | {one.signature} | {', '.join(one.known_as)} | {one.traces} "
        f"| {one.steps:,} | {one.seconds:.0f} |"
        for one in ran
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(SLUGS), metavar="SLUG,...")
    parser.add_argument("--results", type=Path, help="keep results here, and skip what is in it")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    kept: Path | None = arguments.results
    ran = msgspec.json.decode(kept.read_bytes(), type=list[Result]) if kept and kept.exists() else []
    done = {one.slug for one in ran}
    for result in results([slug for slug in arguments.only.split(",") if slug and slug not in done]):
        ran.append(result)
        print(result, flush=True)
        if kept:
            kept.write_bytes(msgspec.json.encode(ran))
    if arguments.page:
        arguments.page.write_text(page(ran), encoding="utf-8")
    return int(not all(one.status == 1 and one.known_as for one in ran))


if __name__ == "__main__":
    sys.exit(main())
