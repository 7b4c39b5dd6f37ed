"""New bugs behind known ones: vLLM 0.33.0 with one line broken, its known causes fixed (`--fixes builtin`).

    python benchmarks/behind_known.py [--only SLUG,...] [--results FILE] [--keep FOLDER] [--page FILE]
    python benchmarks/behind_known.py --conditions FOLDER [the same options]

FILE of `--page` is benchmarks/behind_known.md. `--keep` keeps the campaigns' output folders.

Each break of vllm_breaks.py that is listed here shows under a signature that a known bug has, too: with a list of known
signatures it would be taken for that bug. The campaign is that of `hybridfuzz fuzz --fixes builtin`, stopped at its
first finding. Exit status 1 unless every campaign has exit status 1 and a new finding.

With `--conditions` one known cause with the break's signature is not fixed: the campaign has to recognize it by its
condition, while the break is new. FOLDER holds sorted traces with their causes, as benchmarks/identity.py writes them
(collect, truth, evidence); the entries are those that `hybridfuzz known add` writes for the findings of that cause. The
campaign ends after a fixed number of steps. Then the traces of all findings run on the tree without the break. A new
finding is the break's if one of them does not fail there in the same way, else a *stray*: a known bug taken for a new
one. A finding that was recognized as known is *swallowed* if one of them does not. Exit status 1 unless each campaign
finds its break and swallows nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from difflib import unified_diff
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from breaks import Break, edited
from identity import UNSORTED, grouped, load_evidence, load_truth
from vllm_breaks import BREAKS, DRILL

from hybridfuzz.harness.campaign.campaign import Campaign
from hybridfuzz.harness.campaign.state import Settings
from hybridfuzz.harness.campaign_events import CampaignEnded, CampaignStarted, Finding, Found, TraceDone
from hybridfuzz.harness.cli import build_parser
from hybridfuzz.harness.draw.files import load_trace, save_trace
from hybridfuzz.harness.face.commands import fuzz
from hybridfuzz.harness.group.compare import joined
from hybridfuzz.harness.group.evidence import EVIDENCE_SUFFIX
from hybridfuzz.harness.group.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.group.known import Known, append_entry, entry_for
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.registry import prepare

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


SECOND_PART = "## With conditions alone"
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
    "condense-without-accepted": "one-token-prompt",
    "dummy-tables-stale": "dummy-run-as-prompt",
    "row-not-cleared": "dummy-run-as-prompt",
    "skipped-off-by-one": "inner-state-without-block",
    "in-flight-not-subtracted": "inner-state-without-block",
}
"""Break -> a known cause with the same signature, which is not fixed in a campaign with conditions."""
CONDITION_STEPS = 600
MORE_STEPS: Mapping[str, int] = {
    "zero-draft-row": 2000,
    "dummy-tables-stale": 2000,
    "row-not-cleared": 2000,
    "condense-without-accepted": 1500,
}
"""Steps by break, where no trace of the first 600 meets it."""
ENTRY_TRACES = 2
"""Traces of a known bug in its entry, the smallest: their evidence is collected again by each campaign."""


class Behind(msgspec.Struct, frozen=True):
    """One campaign with a known cause that is not fixed.

    signature  of the new finding that is the break's, "" for none
    found      number of such findings
    strays     number of new findings that are the known cause's
    known      number of findings that were recognized as the known cause
    failing    number of failing traces
    swallowed  number of findings among `known` with a trace that is the break's
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
    swallowed: int = 0


Row = TypeVar("Row", Result, Behind)


def is_new(one: Result) -> bool:
    """Return True if a campaign ended with a new finding that has the signature of a known bug."""
    return one.status == 1 and bool(one.known_as)


def is_found(one: Behind) -> bool:
    """Return True if a campaign with a known cause that is not fixed ended with the break's finding, and swallowed no
    trace of it."""
    return one.status == 1 and one.found > 0 and not one.swallowed


def settings(folder: Path, one: Break, steps: int, *fixes: str) -> Settings:
    """Return the settings of a campaign: `hybridfuzz fuzz --fixes ...` with the break's configuration."""
    line = ["fuzz", "--target", f"vllm@{RELEASE}", *(word for each in fixes for word in ("--fixes", each))]
    line += ["--config", ",".join(f"{key}={value}" for key, value in one.config.items()), "--seed", "11"]
    line += ["--steps", str(steps), "--jobs", "1", "--no-canary", "--reduce", "5s", "--timeout", "10m"]
    options = build_parser("fuzz").parse_args([*line, "-o", str(folder / "out")])
    return fuzz.settings_of(options, fuzz.engine_of(options))


def run(one: Break, tree: Path, folder: Path) -> Result:
    """Run a campaign with all fixes and one broken line, and stop it at the first finding.

    The line is broken by a patch, too: the overlay is that of a checkout which contains the break.
    """
    write_break(one, tree, folder)
    campaign = Campaign(settings(folder, one, STEPS_MAX, BUILTIN, str(folder)))
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
    folder.mkdir(parents=True)
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


def run_behind(one: Break, tree: Path, folder: Path, sorted_traces: Path) -> Behind:
    """Run a campaign with one broken line and one known cause that goes by its condition."""
    live, steps = LIVE[one.slug], MORE_STEPS.get(one.slug, CONDITION_STEPS)
    write_break(one, tree, folder)
    write_fixes(live, folder)
    entries = write_conditions(live, sorted_traces, folder)
    began = time.monotonic()
    with closing(Campaign(settings(folder, one, steps, str(folder))).run()) as events:
        for event in events:
            if isinstance(event, CampaignEnded):
                summary = event.summary
    seconds = time.monotonic() - began
    broken = breaks_own(summary.findings, live)
    found = [each.signature for each in summary.new_findings if each.id in broken]
    return Behind(
        one.slug, one.what, live, entries, fuzz.status(summary), next(iter(found), ""), len(found),
        len(summary.new_findings) - len(found), sum(bool(each.known) for each in summary.findings),
        sum(each.count for each in summary.findings), summary.steps, seconds,
        sum(bool(each.known) and each.id in broken for each in summary.findings),
    )  # fmt: skip


def breaks_own(findings: Sequence[Finding], live: str) -> set[str]:
    """Return the names of the findings with a trace that does not fail in the same way without the break."""
    patches = [entry.read_patch() for entry in builtin() if entry.title != live]
    own: set[str] = set()
    launch = patched(prepare(f"vllm@{RELEASE}", print), patches)
    with WorkerClient(f"vllm@{RELEASE}", launch, trace_seconds=300) as without:
        without.start()
        for finding in findings:
            for path in (finding.trace, *finding.extras):
                violation = without.run(load_trace(Path(path))).violation
                if violation is None or violation.signature not in (finding.symptoms or {finding.signature: 1}):
                    own.add(finding.id)
    return own


def continued(
    kind: type[Row], one: Callable[[Break, Path, Path], Row], slugs: Sequence[str], kept: Path | None, folder: Path
) -> list[Row]:
    """Return the results in a file and those of the other breaks, and write each new one to the file at once."""
    ran = msgspec.json.decode(kept.read_bytes(), type=list[kind]) if kept and kept.exists() else []  # type: ignore[valid-type]
    done = {row.slug for row in ran}
    known = {each.slug: each for each in BREAKS}
    tree = Path(prepare(f"vllm@{RELEASE}", print).tree)
    for slug in slugs:
        if slug not in done:
            ran.append(one(known[slug], tree, folder / slug))
            print(ran[-1], flush=True)
            if kept:
                kept.write_bytes(msgspec.json.encode(ran))
    return ran


def page(ran: list[Result]) -> str:
    """Return the page."""
    right = [*filter(is_new, ran)]
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


def outcome(one: Behind) -> str:
    """Return what became of the break: without a finding of it and without a swallowed one it was not met."""
    return "**swallowed**" if one.swallowed else "found" if one.found else "not met"


def behind_page(ran: list[Behind]) -> str:
    """Return the part of the page about conditions."""
    right = [*filter(is_found, ran)]
    lines = [
        SECOND_PART,
        "",
        "`python benchmarks/behind_known.py --conditions FOLDER`: as above, but one known cause with the signature of",
        "the break is not fixed and goes by its condition (entries as `hybridfuzz known add` writes them, from the",
        f"traces of seeds 900 to 913). {len(right)} of {len(ran)} campaigns end with exit status 1 and a new finding",
        "that is the break's: a trace of it does not fail in the same way on the tree without the break. Strays are",
        "new findings that are the known cause's: when in doubt a finding is new. A finding that was recognized as",
        "known is swallowed if a trace of it is the break's.",
        "",
        "| break | live cause | entries | exit | the break | its finding | strays | recognized as known "
        "| failing traces | steps |",
        "| --- | --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| `{one.slug}` | {one.live} | {one.entries} | {one.status} | {outcome(one)} | {one.signature or 'none'} "
        f"| {one.strays} | {one.known} | {one.failing} | {one.steps:,} |"
        for one in ran
    ]
    if left := [slug for slug in LIVE if slug not in {one.slug for one in ran}]:
        lines += ["", f"Not run yet: {', '.join(left)}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, print, write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="SLUG,...")
    parser.add_argument("--conditions", type=Path, metavar="FOLDER", help="of benchmarks/identity.py, with evidence")
    parser.add_argument("--results", type=Path, help="keep results here, and skip the breaks in it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the campaigns' output folders here")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    slugs = [slug for slug in (arguments.only or ",".join(LIVE if arguments.conditions else SLUGS)).split(",") if slug]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        if arguments.conditions:
            behind = partial(run_behind, sorted_traces=arguments.conditions)
            alone = continued(Behind, behind, slugs, arguments.results, folder)
            good, first, second = all(map(is_found, alone)), "", behind_page(alone)
        else:
            fixed = continued(Result, run, slugs, arguments.results, folder)
            good, first, second = all(map(is_new, fixed)), page(fixed), ""
    if arguments.page:
        before, _, after = arguments.page.read_text(encoding="utf-8").partition(SECOND_PART)
        first, second = first or f"{before.rstrip()}\n", second or SECOND_PART + after
        arguments.page.write_text(f"{first}\n{second}", encoding="utf-8")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
