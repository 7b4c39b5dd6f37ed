"""Prints a campaign: a live dashboard on a terminal, plain lines elsewhere, a report at the end.

`Console.handle_event` prints a line for an event, `Dashboard` shows the last `Tick`. At the end `Console.ended` prints
`report`: findings, what was reached, self-test, and the `verdict` with its `notes` (`open_lines`: what still waits).
"""

from __future__ import annotations

import argparse
import errno
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ...campaign_events import (
    CampaignEnded,
    CampaignEvent,
    CampaignStarted,
    CanaryDone,
    Found,
    Graded,
    Improved,
    KnownChecked,
    LinesReached,
    Merged,
    NodeLeft,
    Notice,
    NotRun,
    Recognized,
    Retested,
    Tick,
    TraceDone,
    WorkerGivenUp,
    WorkerLost,
    WorkerState,
)
from ...campaign_summary import Canary, Finding, KnownBug, Node, Summary
from ...group.findings.finding_store import cause_words, replay_of, title_line
from ...group.findings.severity import ranked, severity_known, severity_words
from ...judge.oracles import titles
from ...quoting import terminal_line, terminal_lines, terminal_text
from ...tell.changed_words import changed_lines_text, changed_title
from ...tell.silence import silence_lines
from ...units import plural, spell
from .handler import CampaignInfo

PLAIN_SECONDS = 10.0
"""Seconds between two lines of progress where the output is no terminal."""
FINDINGS_SHOWN = 8
OTHERS_SHOWN = 3
STATES_SHOWN = 6
NODES_SHOWN = 12
"""Lost and slow ones first."""
END_WORDS = {
    "time": "ended by the time limit",
    "steps": "ended by the step limit",
    "traces": "ended by the trace limit",
    "risk": "ended as little is left to be seen (--until-risk)",
    "interrupted": "interrupted",
    "error": "ended by an error",
}
EFFORT_WORDS = {"identity": "finding out causes", "severity": "how much they matter"}


def make_handler(options: argparse.Namespace) -> Console:
    """Return a dashboard on a terminal, plain lines elsewhere; on standard error if --json has standard output."""
    rich = Terminal(stderr=options.json)
    return Dashboard(rich) if rich.is_terminal else Console(rich)


class Terminal(RichConsole):
    """A console of rich that reports a closed pipe instead of ending the process, and prints no control sequences of
    the text that it is given. With NO_COLOR there are no styles at all: rich alone would leave bold and dim.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"color_system": None if os.environ.get("NO_COLOR") else "auto", **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape control characters: messages and names may be those of a target or of a stranger's file."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(terminal_text(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again."""
        raise BrokenPipeError(errno.EPIPE, "the reader of the output is gone")


class Console:
    """Prints plain lines."""

    name = "console"

    def __init__(self, rich: RichConsole) -> None:
        self.rich = rich
        self.target = ""
        self._started = False
        self._self_tested = False
        self._shown = time.monotonic()
        self._workers: dict[int, str] = {}
        """What each worker does."""
        self._lengths: dict[str, int] = {}
        """Number of events last printed for each finding, 0 for a flaky one."""

    def start(self, campaign: CampaignInfo) -> None:
        """Remember the target for the commands that are printed."""
        self.target = campaign.target

    def shutdown(self) -> None:
        """Do nothing: everything is printed."""

    def line(self, text: str, style: str = "") -> None:
        """Print one line, whatever the text holds."""
        self.rich.print(terminal_line(text), style=style, markup=False, highlight=False, soft_wrap=True)

    def sentence(self, text: str) -> None:
        """Print prose, wrapped between words on a terminal (unlike `line`, whose text people copy)."""
        self.rich.print(Text(terminal_line(text)), soft_wrap=not self.rich.is_terminal)

    def handle_event(self, event: CampaignEvent) -> None:
        """Print what people want to know of an event."""
        match event:
            case CampaignStarted():
                self._started = True
                self.began(event)
            case Found(finding):
                self.found(finding)
            case Improved(finding) if finding.reduced or not finding.reproduced:
                self.settled(finding)
            case LinesReached(index, lines):
                where = next(iter(lines)) if len(lines) == 1 else plural(len(lines), "module")
                self.line(f"trace {index}: {plural(sum(map(len, lines.values())), 'new line')} in {where}", "dim")
            case Recognized(finding):
                self.recognized(finding)
            case Graded(finding) if finding.severity:
                self.line(f"  {finding.id}: {severity_words(finding.severity)}")
            case Merged(name, finding):
                self.line(f"  {name}: the same cause as {finding.id}")
            case WorkerState(worker, doing):
                self._workers[worker] = doing
            case WorkerLost():
                where = f" on {event.node}" if event.node else ""
                self.line(f"warning: worker {event.worker}{where}, trace {event.index}: {event.reason}", "yellow")
            case NotRun():
                where = f" on {event.node}" if event.node else ""
                what = f"trace {event.index}{where} was not run: {event.kind}, also alone: {event.message}"
                self.line(f"warning: {what}", "yellow")
            case WorkerGivenUp():
                self.line(f"warning: {given_up_line(event)}", "yellow")
            case NodeLeft():
                self.line(f"warning: node {event.node} {event.state}: {event.reason}", "yellow")
            case Notice(text):
                self.line(f"warning: {text}", "yellow")
            case CanaryDone(canary):
                self._self_tested = True
                self.line(canary_line(canary), "" if canary.found else "yellow")
            case KnownChecked(bug) if bug.outdated:
                self.line(f"warning: {known_line(bug)}", "yellow")
            case Retested() if event.fixed:
                self.line(f"fixed: {event.signature}: its trace runs clean now")
            case Tick():
                self.tick(event)
            case CampaignEnded(summary) if self._started:
                self.ended(summary)
            case _:
                pass

    def began(self, event: CampaignStarted) -> None:
        """Print what runs, and the findings of an earlier campaign in the same folder."""
        version = f" ({event.version})" if event.version and event.version not in event.target else ""
        jobs, out = plural(event.jobs, "worker"), event.out
        self.line(f"fuzzing {event.target}{version}, seed {event.seed}, {jobs}; writing findings to {out}")
        self.line(f"looking into failures takes up to {event.triage_share:.0%} of the workers' time (--triage-share)")
        if event.resumed:
            self.line(f"continuing a campaign that did not end, after {plural(event.resumed, 'trace')}")
        if event.earlier:
            self.line(f"earlier findings in this folder ({len(event.earlier)}):")
            for finding in event.earlier:
                self.line(f"  {finding.id}  {replay_of(finding, event.earlier_target, event.earlier_asked)}")

    def found(self, finding: Finding) -> None:
        """Print a finding with a new signature."""
        self.line(
            f"FOUND {title_line(finding)}: trace {finding.index}, {finding.events} events",
            "bold red",
        )
        self.line(f"  {finding.message}")

    def settled(self, finding: Finding) -> None:
        """Print how a reduction ended; not again for every further trace of the finding."""
        length = finding.events if finding.reproduced else 0
        if self._lengths.get(finding.id) == length:
            return
        self._lengths[finding.id] = length
        if finding.reproduced:
            self.line(f"  {title_line(finding)}: reduced to {plural(finding.events, 'event')}")
        else:
            self.line(f"  {finding.id}: flaky, its trace ran clean when it ran alone", "yellow")

    def recognized(self, finding: Finding) -> None:
        """Print which known bug a finding is."""
        if finding.cause:
            self.line(f"  {finding.id}: known: {cause_words(finding.cause)}")
            if finding.cause.severity:
                self.line(f"    {severity_words(finding.cause.severity)}")

    def tick(self, tick: Tick) -> None:
        """Print a line of progress now and then, with what workers do that run no traces."""
        if time.monotonic() - self._shown >= PLAIN_SECONDS and (tick.summary.seconds or self._workers):
            self._shown = time.monotonic()
            self.line(" · ".join([progress(tick), *others(self._workers.values())]))

    def ended(self, summary: Summary) -> None:
        """Print the report; the result of the self-test only if it comes from an earlier part of the campaign."""
        for part in report(summary, self.rich.width, self_test=not self._self_tested):
            self.rich.print(part, soft_wrap=isinstance(part, Text))
        for text in notes(summary):
            self.sentence(text)


class Dashboard(Console):
    """Prints lines as above, over a panel that is redrawn in place."""

    def __init__(self, rich: RichConsole) -> None:
        super().__init__(rich)
        self._live = Live(console=rich, refresh_per_second=4, transient=True)
        self._traces: dict[int, int] = {}

    def start(self, campaign: CampaignInfo) -> None:
        """Show the panel."""
        super().start(campaign)
        self._live.start()

    def shutdown(self) -> None:
        """Remove the panel."""
        self._live.stop()

    def handle_event(self, event: CampaignEvent) -> None:
        """Also show what each worker does; on a cluster, what each node does."""
        if isinstance(event, TraceDone):
            self._traces[event.worker] = self._traces.get(event.worker, 0) + 1
        elif isinstance(event, CampaignEnded):
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        super().handle_event(event)

    def tick(self, tick: Tick) -> None:
        """Redraw."""
        self._live.update(self._panel(tick))

    def _panel(self, tick: Tick) -> RenderableType:
        summary = tick.summary
        parts: list[RenderableType] = [Text(progress(tick), style="bold")]
        nodes = sorted(summary.nodes, key=lambda node: (node.state == "up", node.traces_per_second))
        for node in nodes[:NODES_SHOWN]:
            parts.append(Text(f"  {node_line(node)}", "dim" if node.state == "up" else "yellow"))
        if len(nodes) > NODES_SHOWN:
            parts.append(Text(f"  and {len(nodes) - NODES_SHOWN} faster nodes", "dim"))
        for number, state in () if nodes else sorted(self._workers.items()):
            parts.append(
                Text(
                    f"  worker {number}  {self._traces.get(number, 0):>8,} traces  {state}",
                    style="dim",
                )
            )
        for finding in sorted(summary.findings, key=lambda each: -each.count)[:FINDINGS_SHOWN]:
            parts.append(
                Text(
                    f"  {finding.count:>6}x {title_line(finding)}, {finding.events} events",
                    style="red",
                )
            )
        missing = [*summary.never_exercised, *summary.never_reached]
        if summary.traces and missing:
            parts.append(Text(f"  not reached yet: {', '.join(missing)}", style="yellow", overflow="ellipsis"))
        return Group(*parts)


def symptoms(finding: Finding) -> str:
    """Return the symptoms of a finding that shows more than one, and how many of its traces are unsorted."""
    shown = sorted(finding.symptoms.items(), key=lambda item: -item[1])
    words = [f"shows as {', '.join(f'{signature} ({times})' for signature, times in shown)}"] if len(shown) > 1 else []
    words += [f"{plural(finding.unsorted, 'trace')} counted by signature alone"] if finding.unsorted else []
    return "; ".join(words)


def node_line(node: Node) -> str:
    """Return the totals of a node in one line."""
    lost = f", {plural(node.lost, 'worker')} lost" if node.lost else ""
    state = plural(node.workers, "worker") if node.state == "up" else node.state
    return f"{node.name}  {state}  {node.traces:,} traces ({node.traces_per_second:,.1f}/s){lost}"


def progress(tick: Tick) -> str:
    """Return the totals in one line."""
    summary = tick.summary
    if not summary.seconds:
        return "starting"
    parts = [
        spell(summary.seconds) + (f" ({spell(tick.left)} left)" if tick.left is not None else ""),
        f"{summary.traces:,} traces ({summary.traces / summary.seconds:,.1f}/s)",
        *([f"{summary.unopened:,} not opened"] if summary.unopened else []),
        f"{summary.steps:,} steps ({summary.steps_per_second:,.0f}/s)",
        plural(len(summary.findings), "finding"),
        f"{len(summary.reached) - len(summary.never_reached)} of {len(summary.reached)} states",
    ]
    parts += [plural(summary.lines, "line")] if summary.lines is not None else []
    return " · ".join(parts)


def others(doing: Iterable[str]) -> list[str]:
    """Return what workers do that run no traces, the most common first."""
    counted = Counter(each for each in doing if each not in ("fuzzing", "ended"))
    return [f"{plural(count, 'worker')} {each}" for each, count in counted.most_common(OTHERS_SHOWN)]


def report(summary: Summary, width: int, *, self_test: bool = True) -> list[RenderableType]:
    """Return the report: what was exercised and reached, what was found, and the verdict."""
    names = titles()
    exercised = {f"{oracle} {names.get(oracle, '')}".strip(): count for oracle, count in summary.exercised.items()}
    parts: list[RenderableType] = [
        counts("Checks made by each oracle", exercised, width),
        Text(reached_line(summary)),
    ]
    if summary.default_shares:
        parts.append(Text(defaults_line(summary)))
    for finding in ranked(summary.findings):
        note = ("" if finding.reproduced else ", flaky") + (", damaged: its trace is lost" if finding.damaged else "")
        parts.append(
            Text(
                terminal_lines(
                    "",
                    f"{title_line(finding)}: seen in {plural(finding.count, 'trace')}; "
                    f"shortest: {plural(finding.events, 'event')}{note}",
                ),
                "bold red",
            )
        )
        again = replay_of(finding, summary.target, summary.asked)
        parts.append(Text(terminal_lines(f"  {finding.message}", f"  {again}")))
        if severity := severity_known(finding):
            parts.append(Text(terminal_line(f"  {severity_words(severity)}")))
        if finding.cause:
            parts.append(Text(terminal_line(f"  known: {cause_words(finding.cause)}")))
        if finding.like:
            parts.append(Text(terminal_line(f"  like the known bug {finding.like}; there is no patch to confirm it")))
        if also := symptoms(finding):
            parts.append(Text(terminal_line(f"  {also}")))
    for node in summary.nodes:
        parts.append(Text(node_line(node), "" if node.state == "up" and not node.lost else "yellow"))
    if summary.lost_workers:
        parts.append(Text(f"{plural(summary.lost_workers, 'worker')} lost; the trace ran clean in a new one", "yellow"))
    if summary.changed:
        lines = (f"  {line}" for line in changed_lines_text(summary.changed))
        parts.append(Text(terminal_lines("", changed_title(summary.changed), *lines)))
    if summary.canary and self_test:
        parts.append(Text(canary_line(summary.canary), "" if summary.canary.found else "yellow"))
    parts.append(verdict(summary))
    return parts


def defaults_line(summary: Summary) -> str:
    """Return the smallest and the largest share of the steps with a default of the stock server."""
    shares = summary.default_shares
    least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    return (
        f"defaults of the stock server ran in {100 * shares[least]:.0f} % ({least}) to {100 * shares[most]:.0f} % "
        f"({most}) of the steps; the report has the table"
    )


def reached_line(summary: Summary) -> str:
    """Return how many engine states occurred, and some of those that did not; all of them stand in the report."""
    met = len(summary.reached) - len(summary.never_reached)
    shown = ", ".join(summary.never_reached[:STATES_SHOWN])
    more = len(summary.never_reached) - STATES_SHOWN
    never = f"; never: {shown}" + (f" and {more} more" if more > 0 else "") if shown else ""
    return f"{met} of {len(summary.reached)} engine states occurred (how often: see the report){never}"


def counts(title: str, values: Mapping[str, int], width: int) -> Table:
    """Return a table of names with their counts, as many to a row as fit, zeros in red."""
    table = Table.grid(padding=(0, 2))
    cells = [
        (Text(name, "" if count else "red"), Text(f"{count:,}") if count else Text("never", "red"))
        for name, count in values.items()
    ]
    longest = max((name.cell_len + count.cell_len for name, count in cells), default=0) + 4
    columns = max(width // longest, 1) if longest else 1
    digits = max((count.cell_len for _, count in cells), default=0)
    room = max(width // columns - digits - 4, 8)
    for _ in range(columns):
        table.add_column(no_wrap=True, max_width=room)  # in a narrow terminal names are cut off, numbers never
        table.add_column(justify="right", no_wrap=True)
    for start in range(0, len(cells), columns):
        table.add_row(*(text for cell in cells[start : start + columns] for text in cell))
    table.title = title
    table.title_justify = "left"
    table.title_style = "bold"
    return table


def canary_line(canary: Canary) -> str:
    """Return the result of the self-test in one line."""
    silent = f"; not detected: {', '.join(canary.silent)}" if canary.silent else ""
    spent = f"in {plural(canary.traces, 'trace')}, {canary.seconds:.1f} CPU s"
    match canary.state:
        case "found":
            return f"self-test passed: planted bug {canary.slug} detected {spent} ({canary.signature}){silent}"
        case "silent":
            return f"self-test FAILED: planted bugs were not detected {spent}: {', '.join(canary.silent)}"
        case "none":
            return "self-test: no bug was planted, since none is known to be within reach of this configuration"
        case _:
            return f"self-test: interrupted before the planted bug was detected{silent}"


def given_up_line(event: WorkerGivenUp) -> str:
    """Return in one line why a worker was given up."""
    why = f"trace {event.index} ran alone" if event.index >= 0 else "it could not start"
    where = f" on {event.node}" if event.node else ""
    left = f"the campaign goes on with {plural(event.left, 'worker')}{where}"
    return f"worker {event.worker} ended, {event.kind} beside the others ({why}): {left}: {event.message}"


def known_line(bug: KnownBug) -> str:
    """Return the verdict on a known bug in one line."""
    return f"known bug {bug.name}: {bug.verdict}: {bug.detail}"


def verdict(summary: Summary) -> Text:
    """Return the last line of the report."""
    others = [f"{summary.refused:,} more refused"] if summary.refused else []
    others += [f"{count:,} more not run: {kind}" for kind, count in summary.not_run.items()]
    unopened = f" ({'; '.join(others)})" if others else ""
    done = (
        f"{plural(summary.traces, 'trace')}{unopened}, {plural(summary.steps, 'step')} in "
        f"{spell(summary.seconds)} "
        f"({summary.steps_per_second:,.0f} steps/s), seed {summary.seed}, "
        f"{END_WORDS[summary.exit_reason or 'error']}"
    )
    if summary.findings:
        return Text(f"\n{plural(len(summary.findings), 'finding')} in {done}", "bold red")
    if summary.exit_reason in ("interrupted", "error"):
        return Text(f"\nnot finished, no finding so far: {done}", "bold yellow")
    if summary.blind and summary.canary:
        what = f"blind (the self-test failed: {', '.join(summary.canary.silent)} planted and not found)"
        return Text(f"\n{what}: {done}", "bold red")
    missing = len(summary.never_exercised) + len(summary.never_reached)
    if missing:
        what = f"vacuous ({missing} required states or oracles never occurred; run longer or restrict less)"
        return Text(f"\n{what}: {done}", "bold yellow")
    return Text(f"\nclean: {done}", "bold green")


def effort_line(summary: Summary) -> str:
    """Return where the workers' time went, "" if that is unknown."""
    if not (total := sum(summary.effort.values())):
        return ""
    shares = {name: seconds / total for name, seconds in summary.effort.items()}
    fuzzing = shares.pop("fuzzing", 0.0)
    parts = ", ".join(f"{EFFORT_WORDS.get(name, name)} {part:.0%}" for name, part in shares.items() if part)
    failures = f"looking into failures {1 - fuzzing:.0%}" + (f" ({parts})" if parts else "")
    went = {name: seconds / total for name, seconds in summary.took.items()}
    went["starting and waiting"] = max(fuzzing - sum(went.values()), 0.0)
    largest = sorted(went.items(), key=lambda one: -one[1])
    into = ", ".join(f"{name} {part:.0%}" for name, part in largest if summary.took and part >= 0.005)
    traces = f"fuzzing {fuzzing:.0%}" + (f" ({into})" if into else "")
    return f"workers' time: {traces}, {failures}; the share is {summary.triage_share:.0%} while traces run"


def open_lines(summary: Summary) -> Iterator[str]:
    """Yield what nobody has looked into."""
    unreduced = [one for one in summary.findings if one.unfinished]
    if unreduced:
        yield f"not looked into for lack of time: {', '.join(one.id for one in unreduced)}"
    if summary.waiting:
        count, where = plural(len(summary.waiting), "further failing trace"), "this folder"
        if summary.merged:
            where = "the folder of each campaign"
        yield f"{count} not looked into, kept in waiting/; the next campaign in {where} does that as time allows"


def notes(summary: Summary) -> Iterator[str]:
    """Yield what follows the report: what the silence is worth, where the time went, which findings are known or flaky,
    and whether any is new."""
    yield from silence_lines(summary.seen)
    if line := effort_line(summary):
        yield line
    yield from open_lines(summary)
    if summary.given_up:
        yield f"{plural(summary.given_up, 'worker')} given up, as memory or the device did not carry all of them"
    verdicts = Counter(bug.verdict for bug in summary.known_bugs)
    if fixed := sum(bug.patched for bug in summary.known_bugs):
        yield f"ran with {plural(fixed, 'known bug')} fixed, in a copy of the engine"
    if verdicts:
        yield f"known bugs: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}"
    for bug in summary.known_bugs:
        if bug.outdated:
            yield known_line(bug)
        if bug.warning and bug.covered:
            yield f"warning: known bug {bug.name} covered {plural(bug.covered, 'failing trace')}; {bug.warning}"
    for finding in summary.findings:
        if finding.known:
            yield f"known: {finding.id} ({finding.known})"
        elif finding.flaky:
            yield f"flaky: {finding.id}: {finding.shown} of {finding.tried} runs of its trace alone failed"
    if summary.findings and not summary.new_findings:
        yield "no new findings: all are known"
