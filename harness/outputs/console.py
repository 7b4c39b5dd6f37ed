"""Shows a campaign to people: a live dashboard on a terminal, plain lines elsewhere, one report at
the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..events import (
    CampaignEnded,
    CampaignEvent,
    CampaignStarted,
    Canary,
    CanaryDone,
    Finding,
    Found,
    Improved,
    Notice,
    Summary,
    Tick,
    TraceDone,
    WorkerLost,
    WorkerState,
)
from ..findings.store import replay_command
from ..units import plural, spell

PLAIN_SECONDS = 10.0
"""How often a line of progress is printed where nobody watches."""
FINDINGS_SHOWN = 8
END_WORDS = {
    "time": "ended by the time limit",
    "steps": "ended by the step limit",
    "traces": "ended by the trace limit",
    "interrupted": "interrupted",
    "error": "ended by an error",
}


class Console:
    """Plain lines."""

    def __init__(self, rich: RichConsole) -> None:
        self.rich = rich
        self.target = ""
        self._shown = time.monotonic()

    def line(self, text: str, style: str = "") -> None:
        """One line as it is."""
        self.rich.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def show(self, record: CampaignEvent) -> None:
        """React to a record."""
        match record:
            case CampaignStarted():
                self.target = record.target
                self.began(record)
            case Found(finding):
                self.found(finding)
            case Improved(finding) if finding.reduced or not finding.reproduced:
                self.settled(finding)
            case WorkerLost():
                self.line(
                    f"warning: worker {record.worker}, trace {record.index}: {record.reason}",
                    "yellow",
                )
            case Notice(text):
                self.line(f"warning: {text}", "yellow")
            case CanaryDone(canary):
                self.line(canary_line(canary), "" if canary.found else "yellow")
            case Tick():
                self.tick(record)
            case CampaignEnded(summary):
                self.ended(summary)
            case _:
                pass

    def began(self, record: CampaignStarted) -> None:
        """What runs, and what an earlier campaign left."""
        version = f" ({record.version})" if record.version and record.version not in record.target else ""
        jobs, out = plural(record.jobs, "worker"), record.out
        self.line(f"fuzzing {record.target}{version}, seed {record.seed}, {jobs}; findings to {out}")
        if record.resumed:
            self.line(f"continuing a campaign that did not end, after {plural(record.resumed, 'trace')}")
        if record.earlier:
            self.line(f"earlier findings in this folder ({len(record.earlier)}):")
            for finding in record.earlier:
                self.line(f"  {finding.signature}  {replay_command(record.target, finding.trace)}")

    def found(self, finding: Finding) -> None:
        """A new signature."""
        self.line(
            f"FOUND {finding.signature} (trace {finding.index}, {finding.events} events)",
            "bold red",
        )
        self.line(f"  {finding.message}")
        self.line(f"  {replay_command(self.target, finding.trace)}")

    def settled(self, finding: Finding) -> None:
        """The end of a reduction."""
        if finding.reproduced:
            self.line(f"  {finding.signature}: reduced to {finding.events} events")
        else:
            self.line(f"  {finding.signature}: did not show again when its trace ran alone", "yellow")

    def tick(self, tick: Tick) -> None:
        """Now and then, how far it is."""
        if time.monotonic() - self._shown >= PLAIN_SECONDS and tick.summary.seconds:
            self._shown = time.monotonic()
            self.line(progress(tick))

    def ended(self, summary: Summary) -> None:
        """The report."""
        for part in report(summary, self.rich.width):
            self.rich.print(part, soft_wrap=isinstance(part, Text))


class Dashboard(Console):
    """Lines as above, over a panel that is redrawn in place."""

    def __init__(self, rich: RichConsole, live: Live) -> None:
        super().__init__(rich)
        self._live = live
        self._workers: dict[int, str] = {}
        self._traces: dict[int, int] = {}

    def show(self, record: CampaignEvent) -> None:
        """Also what each worker does."""
        if isinstance(record, WorkerState):
            self._workers[record.worker] = record.state
        elif isinstance(record, TraceDone):
            self._traces[record.worker] = self._traces.get(record.worker, 0) + 1
        elif isinstance(record, CampaignEnded):
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        super().show(record)

    def tick(self, tick: Tick) -> None:
        """Redraw."""
        self._live.update(self._panel(tick))

    def _panel(self, tick: Tick) -> RenderableType:
        summary = tick.summary
        parts: list[RenderableType] = [Text(progress(tick), style="bold")]
        for number, state in sorted(self._workers.items()):
            parts.append(
                Text(
                    f"  worker {number}  {self._traces.get(number, 0):>8,} traces  {state}",
                    style="dim",
                )
            )
        for finding in sorted(summary.findings, key=lambda each: -each.count)[:FINDINGS_SHOWN]:
            parts.append(
                Text(
                    f"  {finding.count:>6}x {finding.signature} ({finding.events} events)",
                    style="red",
                )
            )
        missing = [*summary.never_exercised, *summary.never_reached]
        if summary.traces and missing:
            parts.append(Text(f"  not reached yet: {', '.join(missing)}", style="yellow", overflow="ellipsis"))
        return Group(*parts)


@contextmanager
def open_console(*, on_stderr: bool) -> Iterator[Console]:
    """A dashboard on a terminal, plain lines elsewhere."""
    rich = RichConsole(stderr=on_stderr)
    if not rich.is_terminal:
        yield Console(rich)
        return
    with Live(console=rich, refresh_per_second=4, transient=True) as live:
        yield Dashboard(rich, live)


def progress(tick: Tick) -> str:
    """One line."""
    summary = tick.summary
    if not summary.seconds:
        return "starting"
    parts = [
        spell(summary.seconds) + (f" ({spell(tick.left)} left)" if tick.left is not None else ""),
        f"{summary.traces:,} traces ({summary.traces / summary.seconds:,.1f}/s)",
        f"{summary.steps:,} steps ({summary.steps_per_second:,.0f}/s)",
        plural(len(summary.findings), "finding"),
        f"{len(summary.reached) - len(summary.never_reached)} of {len(summary.reached)} states",
    ]
    return " · ".join(parts)


def report(summary: Summary, width: int) -> list[RenderableType]:
    """What was exercised, what was reached, what was found, and the verdict."""
    parts: list[RenderableType] = [
        counts("oracles, and how often each was exercised", summary.exercised, width),
        counts("states, and how often each was reached", summary.reached, width),
    ]
    for finding in summary.findings:
        note = "" if finding.reproduced else ", did not show again alone"
        parts.append(
            Text(
                f"\n{finding.signature}: {finding.count}x, {finding.events} events{note}",
                "bold red",
            )
        )
        parts.append(Text(f"  {finding.message}\n  {replay_command(summary.target, finding.trace)}"))
    if summary.lost_workers:
        parts.append(Text(f"{plural(summary.lost_workers, 'worker')} lost, and it did not show again", "yellow"))
    if summary.canary:
        parts.append(Text(canary_line(summary.canary), "" if summary.canary.found else "yellow"))
    parts.append(verdict(summary))
    return parts


def counts(title: str, values: Mapping[str, int], width: int) -> Table:
    """Names with their counts, as many to a row as fit, zeros in red."""
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
    """How the test of the alarm ended."""
    silent = f"; not found: {', '.join(canary.silent)}" if canary.silent else ""
    spent = f"in {plural(canary.traces, 'trace')}, {canary.seconds:.1f} CPU s"
    match canary.state:
        case "found":
            return f"canary: {canary.slug} found {spent} ({canary.signature}){silent}"
        case "silent":
            return f"canary: the planted bugs were not found {spent}: {', '.join(canary.silent)}"
        case "none":
            return "canary: none planted, no mutant is known to be within reach of this configuration"
        case _:
            return f"canary: interrupted before it was found{silent}"


def verdict(summary: Summary) -> Text:
    """The last line."""
    done = (
        f"{plural(summary.traces, 'trace')}, {plural(summary.steps, 'step')} in {spell(summary.seconds)} "
        f"({summary.steps_per_second:,.0f} steps/s), seed {summary.seed}, "
        f"{END_WORDS[summary.exit_reason or 'error']}"
    )
    if summary.findings:
        return Text(f"\n{plural(len(summary.findings), 'finding')}: {done}", "bold red")
    if summary.blind and summary.canary:
        what = f"blind (the canary was silent: {', '.join(summary.canary.silent)} planted and not found)"
        return Text(f"\n{what}: {done}", "bold red")
    missing = len(summary.never_exercised) + len(summary.never_reached)
    if missing:
        what = f"vacuous ({missing} required states or oracles never met; run longer or restrict less)"
        return Text(f"\n{what}: {done}", "bold yellow")
    return Text(f"\nclean: {done}", "bold green")
