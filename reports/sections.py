"""All sections of a page except its findings: verdict, tiles, self-test, mutants, states, oracles, rates."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from ..harness.campaign_summary import Canary, KnownBug, Summary
from ..harness.face.outputs.console import effort_line, open_lines
from ..harness.face.outputs.totals_over_time import Sample
from ..harness.judge.oracles import titles
from ..harness.markup import Markup, Section, join, tag
from ..harness.measure.detection.statistics import MutantRow, Spread
from ..harness.tell.changed_words import changed_lines_text, changed_title
from ..harness.tell.silence import silence_lines
from ..harness.units import plural, spell
from .charts import rate_charts, silence_charts
from .data import Shown
from .findings import state_of

SHARD = re.compile(r"\d{1,7}/\d{1,7}")


def verdict(summary: Summary, findings: Sequence[Shown]) -> tuple[str, str]:
    """Return (class, words) for the result of a campaign."""
    news = [one for one in findings if state_of(one) in ("new", "flaky")]
    missing = len(summary.never_exercised) + len(summary.never_reached)
    if news:
        return "bad", f"{len(news)} new {'finding' if len(news) == 1 else 'findings'}"
    if summary.blind:
        return "warn", "blind: the planted bug was not detected"
    if missing:
        return "warn", f"vacuous: {missing} required states or oracles never reached"
    if summary.findings:
        count = len(summary.findings)
        return "good", f"no new findings: {count} known {'finding' if count == 1 else 'findings'}"
    return "good", "clean"


def overview(summary: Summary) -> Section:
    """Return the numbers of a campaign and the command that runs it again."""
    met = len(summary.reached) - len(summary.never_reached)
    exercised = sum(map(bool, summary.exercised.values()))
    tiles = [
        ("traces", f"{summary.traces:,}", ""),
        ("steps", f"{summary.steps:,}", f"{summary.steps_per_second:,.0f} a second"),
        ("time", spell(summary.seconds), f"ended by {summary.exit_reason or 'nothing yet'}"),
        ("findings", str(len(summary.findings)), f"{sum(one.count for one in summary.findings):,} failing traces"),
        ("states reached", f"{met} of {len(summary.reached)}", "" if not summary.never_reached else "see below"),
        ("oracles exercised", f"{exercised} of {len(summary.exercised)}", ""),
    ]
    cards = [
        tag("div", tag("span", name, class_="dim"), tag("b", value), tag("small", note), class_="tile")
        for name, value, note in tiles
    ]
    again = ["hybridfuzz", "fuzz", "--target", summary.target, "--seed", str(summary.seed)]
    shards = int(summary.shard.partition("/")[2] or 1) if SHARD.fullmatch(summary.shard) else 1
    again += ["--traces", str(max(summary.traces + summary.unopened, 1) * shards)]
    if shards > 1:
        again += ["--shard", summary.shard]
    if summary.changed:
        again += ["--changed-since", summary.changed.since]
    again += summary.asked
    if summary.source != "seeded":
        again += ["--source", summary.source]
    for key, value in summary.overrides.items():
        again += ["--config", f"{key}={value}"]
    for key, value in summary.workload.items():
        again += ["--workload", f"{key}={value}"]
    lost = f"{plural(summary.lost_workers, 'worker')} lost, and it did not show again." if summary.lost_workers else ""
    refused = f"{plural(summary.refused, 'trace')} did not run: the target refused them." if summary.refused else ""
    not_run = [f"{plural(count, 'trace')} did not run: {kind}." for kind, count in summary.not_run.items()]
    if summary.given_up:
        not_run.append(f"{plural(summary.given_up, 'worker')} given up: not all of them could run side by side.")
    changed = [changed_title(summary.changed), *changed_lines_text(summary.changed)] if summary.changed else []
    content = join(
        tag("div", *cards, class_="tiles"),
        tag("p", lost) if lost else None,
        tag("p", refused, class_="warn") if refused else None,
        *(tag("p", line, class_="warn") for line in not_run),
        *(tag("p", line, class_="dim") for line in filter(None, (effort_line(summary), *open_lines(summary)))),
        *(tag("p", line) for line in changed),
        tag("p", f"The same traces again{', but for those that were aimed' if changed else ''}:", class_="dim"),
        tag("code", shlex.join(again), class_="command"),
    )
    return Section("overview", "Overview", content)


def canary_section(canary: Canary | None) -> Section:
    """Return the result of the self-test."""
    return Section("canary", "Self-test", join(*_canary(canary)))


def _canary(canary: Canary | None) -> Iterator[Markup]:
    if canary is None:
        yield tag("p", "No bug was planted: nothing shows that a bug would have been detected.", class_="warn")
        return
    words_of = {
        "found": ("good", f"Passed: the planted bug {canary.slug} was detected"),
        "silent": ("bad", f"Failed: the planted bugs {', '.join(canary.silent)} were not detected"),
        "unfinished": ("warn", f"Interrupted before the planted bug {canary.slug} was detected"),
        "none": ("warn", "No known bug is within reach of these overrides, so none was planted"),
    }
    kind, words = words_of[canary.state]
    spent = f" after {canary.traces:,} traces and {canary.seconds:.1f} s of CPU time"
    seen = f", as {canary.signature}" if canary.signature else ""
    yield tag("p", words + (spent if canary.state != "none" else "") + seen + ".", class_=kind)


def mutants_section(rows: Sequence[MutantRow]) -> Section | None:
    """Return the detection matrix."""
    if not rows:
        return None
    heads = ("mutant", "found", "signatures", "traces", "CPU s", "events")
    lines = []
    for row in rows:
        kind = "good" if row.found == row.runs else "bad" if not row.found else "warn"
        signatures = ", ".join(row.signatures)
        lines.append(
            tag(
                "tr",
                tag("td", tag("b", row.mutant), tag("br"), tag("span", row.title, class_="dim")),
                tag("td", f"{row.found}/{row.runs}", class_=kind),
                tag("td", signatures, class_="mono"),
                tag("td", _spread(row.traces), class_="number"),
                tag("td", _spread(row.seconds, 2), class_="number"),
                tag("td", "" if row.events is None else f"{row.events:g}", class_="number"),
            )
        )
    table = tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *lines))
    found = sum(row.found == row.runs for row in rows)
    words = f"{found} of {len(rows)} were found with every seed. Traces and seconds: median / worst."
    scroll = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="mutants")
    return Section("mutants", "Mutants", join(tag("p", words), scroll))


def _spread(spread: Spread, digits: int = 0) -> str:
    values = (spread.median, spread.worst)
    return " / ".join("never" if value is None else f"{value:,.{digits}f}" for value in values)


def known_section(bugs: Sequence[KnownBug]) -> Section | None:
    """Return the known bugs of the target with their verdicts, those first that ask for something."""
    if not bugs:
        return None
    heads = ("known bug", "verdict", "failing traces", "reason")
    rows = []
    for bug in sorted(bugs, key=lambda one: (not one.outdated, one.verdict)):
        verdict_words = f"{bug.verdict}; {'fixed here' if bug.patched else 'acknowledged'}"
        rows.append(
            tag(
                "tr",
                tag("td", tag("b", bug.name)),
                tag("td", verdict_words, tag("br"), tag("span", bug.detail, class_="dim"),
                    class_="warn" if bug.outdated else None),
                tag("td", f"{bug.covered:,}", class_="number"),
                tag("td", bug.reason),
            )
        )  # fmt: skip
    table = tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *rows))
    scroll = tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="known bugs")
    words = "The verdict is that of each one's own traces on the engine without its patch."
    return Section("known", "Known bugs", join(tag("p", words, class_="dim"), scroll))


def states_section(summary: Summary) -> Section:
    """Return the reached states, those never reached first and in red."""
    missing = ""
    if summary.never_reached:
        missing = f"{len(summary.never_reached)} required states were never reached: nothing was tested there."
    warning = tag("p", missing, class_="bad") if missing else None
    return Section("states", "Reached states", join(warning, bars(summary.reached, {})))


def defaults_section(summary: Summary) -> Section | None:
    """Return the share of the steps with each setting of the stock server, rare ones first; None without a server."""
    if not summary.default_shares:
        return None
    rows = [
        tag("tr", tag("td", name, class_="mono"), tag("td", f"{100 * share:.0f} %", class_="number"))
        for name, share in summary.default_shares.items()
    ]
    head = tag("thead", tag("tr", tag("th", "what a server sets otherwise with"), tag("th", "steps at its default")))
    words = "Whoever starts the server with its model alone has the default of each setting."
    return Section("defaults", "Defaults of the stock server", join(
        tag("p", words, class_="dim"), tag("table", head, tag("tbody", *rows)),
    ))  # fmt: skip


def oracles_section(summary: Summary) -> Section:
    """Return how often each oracle was exercised."""
    return Section("oracles", "Oracles exercised", bars(summary.exercised, titles()))


def bars(counts: Mapping[str, int], titles: Mapping[str, str]) -> Markup:
    """Return counts as bars whose lengths are square roots, zeros first: logarithms of counts look all alike."""
    most = math.sqrt(max([1, *counts.values()]))
    ordered = sorted(counts.items(), key=lambda pair: pair[1] > 0) if 0 in counts.values() else counts.items()
    rows = []
    for name, count in ordered:
        width = f"width:{100 * math.sqrt(max(count, 0)) / most:.1f}%"
        bar = tag("span", tag("i", style=width), class_="bar")
        title = tag("span", titles[name], class_="dim") if name in titles else None
        number = tag("span", f"{count:,}" if count else "never", class_="number")
        label = tag("span", name, " " if title else None, title)
        rows.append(tag("li", label, bar, number, class_=None if count else "never"))
    return tag("ul", *rows, class_="bars")


def nodes_section(summary: Summary) -> Section | None:
    """Return the machines of a cluster, or the parts of a merged campaign; None for a campaign on one machine."""
    if not summary.nodes:
        return None
    heads = ("part" if summary.merged else "node", "traces", "traces/s", "steps", "workers lost", "state")
    lines = []
    for node in summary.nodes:
        cells = [
            tag("td", node.name, class_="mono"),
            tag("td", f"{node.traces:,}", class_="number"),
            tag("td", f"{node.traces_per_second:,.1f}", class_="number"),
            tag("td", f"{node.steps:,}", class_="number"),
            tag("td", f"{node.lost:,}", class_="number"),
            tag("td", "ended" if node.state == "up" else node.state, class_="good" if node.state == "up" else "warn"),
        ]
        lines.append(tag("tr", *cells))
    table = tag("table", tag("thead", tag("tr", *(tag("th", head) for head in heads))), tag("tbody", *lines))
    title = "Merged campaigns" if summary.merged else "Nodes"
    return Section("nodes", title, tag("div", table, class_="scroll", tabindex=0, role="region", aria_label="nodes"))


def silence_section(summary: Summary, samples: Sequence[Sample]) -> Section | None:
    """Return what the silence of a campaign is worth, None where nothing can be estimated."""
    lines = [tag("p", f"{line[0].upper()}{line[1:]}.") for line in silence_lines(summary.seen)]
    if not lines:
        return None
    charts = silence_charts(samples)
    return Section("left", "What is left", join(*lines, tag("div", *charts, class_="charts") if charts else None))


def rates_section(samples: Sequence[Sample]) -> Section | None:
    """Return rates over time; None for a campaign that was too short for samples."""
    charts = rate_charts(samples)
    if not charts:
        return None
    return Section("rates", "Over time", tag("div", *charts, class_="charts"))
