"""New bugs behind known ones: vLLM 0.33.0 with one line broken, its known causes fixed (`--fixes builtin`).

    python benchmarks/behind_known.py [--only SLUG,...] [--results FILE] [--page benchmarks/behind_known.md]
    python benchmarks/behind_known.py --conditions FOLDER [--only SLUG,...] [--results FILE] [--page FILE]

Each break of vllm_breaks.py that is listed here shows under a signature that a known bug has, too: with a list of known
signatures it would be taken for that bug. The campaign is that of `hybridfuzz fuzz --fixes builtin`, stopped at its
first finding. Exit status 1 unless every campaign has exit status 1 and a new finding.

With `--conditions` one known cause with the break's signature is not fixed: the campaign has to recognize it by its
condition, while the break is new. FOLDER holds sorted traces with their causes, as benchmarks/identity.py writes them
(collect, truth, evidence); the entries are those that `hybridfuzz known add` writes for the findings of that cause. The
campaign ends after a fixed number of steps. A new finding is the break's if its trace does not fail the same way on the
tree without the break, else a *stray*: a known bug taken for a new one.
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
from hybridfuzz.harness.findings.known import Known, append_entry, entry_for
from hybridfuzz.harness.identity.compare import joined
from hybridfuzz.harness.identity.evidence import EVIDENCE_SUFFIX
from hybridfuzz.harness.traces.files import load_trace, save_trace
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.registry import prepare
from identity import UNSORTED, grouped, load_evidence, load_truth
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


LIVE = {
    "mamba2-first-token": "one-token-prompt",
    "accepted-of-last-owner": "one-token-prompt",
    "seed-off-by-one": "one-token-prompt",
    "padded-tail-as-prefill": "one-token-prompt",
    "initial-state-offset": "one-token-prompt",
    "graph-prefill-admitted": "one-token-prompt",
    "mamba2-accepted": "one-token-prompt",
    "row-of-last-owner": "one-token-prompt",
    "first-boundary-not-reset": "one-token-prompt",
    "accepted-after-copy": "one-token-prompt",
    "zero-draft-row": "one-token-prompt",
    "dummy-tables-stale": "dummy-run-as-prompt",
    "row-not-cleared": "dummy-run-as-prompt",
    "skipped-off-by-one": "inner-state-without-block",
    "in-flight-not-subtracted": "inner-state-without-block",
}
"""Break -> a known cause with the same signature, which is not fixed in a campaign with conditions."""
CONDITION_STEPS = 600
ENTRY_TRACES = 2
"""Traces of a known bug in its entry, the smallest: their evidence is collected again by each campaign."""


class Behind(msgspec.Struct, frozen=True):
    """One campaign with a known cause that is not fixed.

    signature  of the new finding that is the break's, "" for none
    found      number of such findings
    strays     number of new findings that are the known cause's
    known      number of findings that were recognized as the known cause
    failing    number of failing traces
    """

    slug: str
    what: str
    live: str
    entries: int
    status: int
    signature: str
    found: int
    strays: int
    known: int
    failing: int
    steps: int
    seconds: float


def run(one: Break, tree: Path, folder: Path) -> Result:
    """Run a campaign with all fixes and one broken line, and stop it at the first finding.

    The line is broken by a patch, too: the overlay is that of a checkout which contains the break.
    """
    write_break(one, tree, folder / one.slug)
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


def write_break(one: Break, tree: Path, folder: Path) -> None:
    """Write a folder for `--fixes` with a patch that breaks the line."""
    path = f"{DRILL.package}/{one.file}"
    old, new = (tree / path).read_text(encoding="utf-8"), edited(DRILL, tree, one)
    diff = unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}")
    folder.mkdir()
    (folder / "break.patch").write_text("".join(diff), encoding="utf-8")
    entry = f'[[known]]\nname = "break"\nreason = "{one.slug}"\npatch = "break.patch"\n'
    (folder / "known.toml").write_text(entry, encoding="utf-8")


def write_fixes(live: str, folder: Path) -> None:
    """Append the packaged entries of all causes but one, without traces."""
    text = (folder / "known.toml").read_text(encoding="utf-8")
    for entry in builtin():
        if entry.title != live:
            patch = f"{entry.title}.patch"
            (folder / patch).write_bytes((Path(entry.folder) / entry.patch).read_bytes())
            text += f'\n[[known]]\nname = "{entry.title}"\nreason = "{entry.title}"\npatch = "{patch}"\n'
    (folder / "known.toml").write_text(text, encoding="utf-8")


def write_conditions(live: str, sorted_traces: Path, folder: Path) -> int:
    """Append what `hybridfuzz known add` writes for each finding of a cause. Return the number of entries."""
    causes, seen = load_truth(sorted_traces), load_evidence(sorted_traces)
    where = grouped({trace: one.evidence for trace, one in seen.items() if one.evidence and trace in causes})
    members: dict[str, list[str]] = {}
    for trace, name in where.items():
        members.setdefault(name, []).append(trace)
    entries = 0
    for name, traces in members.items():
        if name == UNSORTED or sum(live in causes[trace] for trace in traces) * 2 <= len(traces):
            continue
        evidence = joined(None, [one.evidence for trace in traces if (one := seen[trace]).evidence])
        smallest = sorted(traces, key=lambda trace: len(seen[trace].reduced.events))[:ENTRY_TRACES]
        paths = [folder / f"{name}-{trace}.json" for trace in smallest]
        for path, trace in zip(paths, smallest, strict=True):
            save_trace(seen[trace].reduced, path)
        paths[0].with_suffix(EVIDENCE_SUFFIX).write_bytes(msgspec.json.encode(evidence))
        title = f"{live}-{entries + 1}"
        entry = entry_for(
            name=title, reason=live, target="vllm*", signatures=(), expires=None, patch=None, traces=paths
        )
        if entry.condition is None:
            continue
        append_entry(folder / "known.toml", entry, patch=None, traces=paths)
        entries += 1
    return entries


def builtin() -> list[Known]:
    """Return the packaged entries of the release."""
    return [entry for entry in read_fixes(BUILTIN, "vllm") if RELEASE in entry.releases]


def run_behind(one: Break, tree: Path, sorted_traces: Path, folder: Path) -> Behind:
    """Run a campaign with one broken line and one known cause that goes by its condition."""
    live = LIVE[one.slug]
    write_break(one, tree, folder)
    write_fixes(live, folder)
    entries = write_conditions(live, sorted_traces, folder)
    config = ",".join(f"{key}={value}" for key, value in one.config.items())
    line = ["fuzz", "--target", f"vllm@{RELEASE}", "--fixes", str(folder), "--config", config, "--seed", "11"]
    line += ["--steps", str(CONDITION_STEPS), "--jobs", "1", "--no-canary", "--reduce", "5s", "--timeout", "10m"]
    options = build_parser("fuzz").parse_args([*line, "-o", str(folder / "out")])
    began = time.monotonic()
    with closing(Campaign(fuzz.settings_of(options)).run()) as events:
        for event in events:
            if isinstance(event, CampaignEnded):
                summary = event.summary
    seconds = time.monotonic() - began
    launch = patched(
        prepare(f"vllm@{RELEASE}", print), [entry.read_patch() for entry in builtin() if entry.title != live]
    )
    broken: list[str] = []
    with WorkerClient(f"vllm@{RELEASE}", launch, trace_seconds=300) as worker:
        worker.start()
        for finding in summary.new_findings:
            violation = worker.run(load_trace(Path(finding.trace))).violation
            if violation is None or (violation.signature, violation.event) != (finding.signature, finding.event):
                broken.append(finding.signature)
    return Behind(
        one.slug, one.what, live, entries, fuzz.status(summary), next(iter(broken), ""), len(broken),
        len(summary.new_findings) - len(broken), sum(bool(each.known) for each in summary.findings),
        sum(each.count for each in summary.findings), summary.steps, seconds,
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


def behind_page(ran: list[Behind]) -> str:
    """Return the part of the page about conditions."""
    right = [one for one in ran if one.status == 1 and one.found]
    lines = [
        "## With conditions alone",
        "",
        "`python benchmarks/behind_known.py --conditions FOLDER`: as above, but one known cause with the signature of",
        "the break is not fixed and goes by its condition (entries as `hybridfuzz known add` writes them, from the",
        f"traces of seeds 900 to 913), {CONDITION_STEPS} steps each. {len(right)} of {len(ran)} campaigns end with",
        "exit status 1 and a new finding that is the break's: its trace does not fail the same way on the tree without",
        "the break. Strays are new findings that are the known cause's: when in doubt a finding is new.",
        "",
        "| break | live cause | entries | exit | the break's finding | strays | recognized as known | failing traces |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| `{one.slug}` | {one.live} | {one.entries} | {one.status} | {one.signature or 'none'} | {one.strays} "
        f"| {one.known} | {one.failing} |"
        for one in ran
    ]
    if left := [slug for slug in LIVE if slug not in {one.slug for one in ran}]:
        lines += ["", f"Not run yet: {', '.join(left)}."]
    return "\n".join(lines) + "\n"


def main_behind(arguments: argparse.Namespace, slugs: list[str]) -> int:
    """Run the campaigns with conditions."""
    kept: Path | None = arguments.results
    ran = msgspec.json.decode(kept.read_bytes(), type=list[Behind]) if kept and kept.exists() else []
    known = {one.slug: one for one in BREAKS}
    tree = Path(prepare(f"vllm@{RELEASE}", print).tree)
    done = {one.slug for one in ran}
    for slug in slugs:
        if slug in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            ran.append(run_behind(known[slug], tree, arguments.conditions, Path(folder) / slug))
        print(ran[-1], flush=True)
        if kept:
            kept.write_bytes(msgspec.json.encode(ran))
    if arguments.page:
        first = arguments.page.read_text(encoding="utf-8").partition("## With conditions alone")[0].rstrip()
        arguments.page.write_text(f"{first}\n\n{behind_page(ran)}", encoding="utf-8")
    return int(not all(one.status == 1 and one.found for one in ran))


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="SLUG,...")
    parser.add_argument("--conditions", type=Path, metavar="FOLDER", help="of benchmarks/identity.py, with evidence")
    parser.add_argument("--results", type=Path, help="keep results here, and skip what is in it")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    slugs = [slug for slug in (arguments.only or ",".join(LIVE if arguments.conditions else SLUGS)).split(",") if slug]
    if arguments.conditions:
        return main_behind(arguments, slugs)
    kept: Path | None = arguments.results
    ran = msgspec.json.decode(kept.read_bytes(), type=list[Result]) if kept and kept.exists() else []
    done = {one.slug for one in ran}
    for result in results([slug for slug in slugs if slug not in done]):
        ran.append(result)
        print(result, flush=True)
        if kept:
            kept.write_bytes(msgspec.json.encode(ran))
    if arguments.page:
        arguments.page.write_text(page(ran), encoding="utf-8")
    return int(not all(one.status == 1 and one.known_as for one in ran))


if __name__ == "__main__":
    sys.exit(main())
