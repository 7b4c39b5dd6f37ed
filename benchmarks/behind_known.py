"""New bugs behind known ones: vLLM 0.33.0 with one line broken, its known causes fixed (`--fixes builtin`).

    python benchmarks/behind_known.py [--only SLUG,...] [--results FILE] [--page benchmarks/behind_known.md]

Each break of vllm_breaks.py that is listed here shows under a signature that a known bug has, too: with a list of known
signatures it would be taken for that bug. The campaign is that of `hybridfuzz fuzz --fixes builtin`, stopped at its
first finding. Exit status 1 unless every campaign has exit status 1 and a new finding.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from difflib import unified_diff
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from breaks import Break, edited
from hybridfuzz.harness.campaign.campaign import Campaign
from hybridfuzz.harness.cli import build_parser
from hybridfuzz.harness.commands import fuzz
from hybridfuzz.harness.events import CampaignEnded, CampaignStarted, Found, TraceDone
from hybridfuzz.harness.findings.fixes import BUILTIN, read_fixes
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
    """Run a campaign with all fixes and one broken line, and stop it at the first finding.

    The line is broken by a patch, too: the overlay is that of a checkout which contains the break.
    """
    path = f"{DRILL.package}/{one.file}"
    old, new = (tree / path).read_text(encoding="utf-8"), edited(DRILL, tree, one)
    diff = unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}")
    (folder / one.slug).mkdir()
    (folder / one.slug / "break.patch").write_text("".join(diff), encoding="utf-8")
    entry = f'[[known]]\nname = "break"\nreason = "{one.slug}"\npatch = "break.patch"\n'
    (folder / one.slug / "known.toml").write_text(entry, encoding="utf-8")
    config = ",".join(f"{key}={value}" for key, value in one.config.items())
    line = ["fuzz", "--target", f"vllm@{RELEASE}", "--fixes", BUILTIN, "--fixes", str(folder / one.slug)]
    line += ["--config", config, "--seed", "11", "--steps", str(STEPS_MAX), "--jobs", "1", "--no-canary"]
    line += ["--reduce", "5s", "--timeout", "10m", "-o", str(folder / one.slug / "out")]
    options = build_parser("fuzz").parse_args(line)
    campaign = Campaign(fuzz.settings_of(options))
    steps = traces = 0
    began = found = time.monotonic()
    signature = ""
    with closing(campaign.run()) as events:
        for event in events:
            if isinstance(event, CampaignStarted):
                began = time.monotonic()
            elif isinstance(event, TraceDone) and not signature:
                steps, traces = steps + event.steps, traces + 1
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
        summary.version, there,
    )  # fmt: skip


def results(slugs: list[str]) -> Iterator[Result]:
    """Yield the results of breaks, one after another."""
    known = {one.slug: one for one in BREAKS}
    tree = Path(prepare(f"vllm@{RELEASE}", print).tree)
    with tempfile.TemporaryDirectory() as folder:
        for slug in slugs:
            yield run(known[slug], tree, Path(folder))


def page(ran: list[Result]) -> str:
    """Return the page."""
    right = [one for one in ran if one.status == 1 and one.known_as]
    lines = [
        "# New bugs behind known ones",
        "",
        f"`python benchmarks/behind_known.py`: vLLM {RELEASE} with its known causes fixed (`--fixes builtin`)",
        f"and one line broken. {len(right)} of {len(ran)} campaigns end with exit status 1 and a new finding whose",
        "signature a known bug has, too. With signatures alone each would be reported as that bug, and exit status 0.",
        "The clock runs from the first worker's start, on a machine that was busy with other work.",
        "",
        "| break | what | exit | finding | known bugs with this signature | trace | steps | seconds |",
        "| --- | --- | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| `{one.slug}` | {one.what} | {one.status} | {one.signature} | {', '.join(one.known_as)} | {one.traces} "
        f"| {one.steps:,} | {one.seconds:.0f} |"
        for one in ran
    ]
    if left := [slug for slug in SLUGS if slug not in {one.slug for one in ran}]:
        lines += ["", f"Not run yet: {', '.join(left)}."]
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
