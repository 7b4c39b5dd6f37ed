"""What a campaign prints, in terminals of any width."""

import io
import re

import pytest
from msgspec import structs
from rich.console import Console
from rich.text import Text

from hybridfuzz.harness.campaign_events import CampaignStarted, Graded, Improved, NodeLeft, Tick, WorkerState
from hybridfuzz.harness.campaign_summary import Cause, Finding, Node, Reach, Seen, Severity, Summary, Waiting
from hybridfuzz.harness.face.outputs.console import (
    NODES_SHOWN,
    Dashboard,
    Terminal,
    counts,
    effort_line,
    notes,
    open_lines,
    reached_line,
    report,
)
from hybridfuzz.harness.face.outputs.console import Console as Plain


@pytest.mark.parametrize("width", [30, 40, 80, 200])
def test_numbers_are_never_cut_off(width: int) -> None:
    values = {"boundary crossed in a step without a rejection": 1234567, "preempted": 2, "prefix hit": 34567, "rare": 0}
    console = Console(file=(text := io.StringIO()), width=width)
    console.print(counts("states", values, width))
    words = text.getvalue().split()
    assert {"1,234,567", "2", "34,567", "never"} <= set(words)
    assert max(map(len, text.getvalue().splitlines())) <= width


def test_no_control_sequence_reaches_the_terminal() -> None:
    """Titles of windows, colours and cursor moves of a stranger's message are shown, not obeyed."""
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, width=80, color_system=None)
    console.print(Text("a\x1b]0;owned\x07 \x1b[2J\x9b31m b"))
    console.print("\x1b[31mtext", markup=False)
    assert not set("\x1b\x07\x9b") & set(out.getvalue())
    assert r"a\x1b]0;owned" in out.getvalue()


@pytest.mark.parametrize("width", [24, 40, 80])
def test_without_colours_there_are_no_styles(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """With NO_COLOR neither bold nor dim stay. The panel, which is drawn again and again, fits a narrow terminal."""
    monkeypatch.setenv("NO_COLOR", "1")
    dashboard = Dashboard(Terminal(file=(out := io.StringIO()), force_terminal=True, width=width, height=30))
    dashboard._live.auto_refresh = False
    summary = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [], {"M1": 3}, {"preempted twice": 0}, [], [])
    dashboard.handle_event(CampaignStarted("hybrid", "", 1, 2, "out", []))
    began = len(out.getvalue())
    dashboard.rich.print(dashboard._panel(Tick(summary, 3.0)))
    assert not re.search(r"\x1b\[[0-9;]*m", out.getvalue())
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()[began:]).splitlines())) <= width


@pytest.mark.parametrize("kind", [Plain, Dashboard])
def test_what_workers_wait_for_is_shown(kind: type[Plain], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the clock starts, which is when the first worker is ready."""
    monkeypatch.setattr("hybridfuzz.harness.face.outputs.console.PLAIN_SECONDS", 0)
    out = io.StringIO()
    console = kind(Console(file=out, width=120, force_terminal=kind is Dashboard, color_system=None))
    for worker, doing in enumerate(["fuzzing", "compiling kernel 7, copy", "compiling kernel 7, copy", "ended"]):
        console.handle_event(WorkerState(worker, doing))
    console.handle_event(Tick(Summary("hybrid", "", 1, {}, None, 0, 0, 0.0, [], {}, {}, [], []), None))
    if isinstance(console, Dashboard):
        console.rich.print(console._live.renderable)
        assert out.getvalue().count("0 traces  compiling kernel 7, copy") == 2
    else:
        assert out.getvalue() == "starting · 2 workers compiling kernel 7, copy\n"


def test_the_dashboard_shows_nodes_the_lost_and_the_slow_ones_first() -> None:
    """Of hundreds of nodes as many as there is room for; a node that leaves is a warning."""
    nodes = [Node(f"node-{number:03}", 8, 10 * number, 100 * number, 0, 10.0) for number in range(1, 200)]
    nodes += [Node("gone", 0, 500, 5000, 2, 10.0, "lost")]
    summary = Summary("hybrid", "", 1, {}, None, 9, 9, 10.0, [], {}, {}, [], [], nodes=nodes)
    dashboard = Dashboard(Terminal(file=(out := io.StringIO()), force_terminal=True, width=100, height=40))
    dashboard._live.auto_refresh = False
    dashboard.handle_event(CampaignStarted("hybrid", "", 1, 1600, "out", []))
    dashboard.handle_event(NodeLeft("gone", "lost", "the node died"))
    dashboard.rich.print(dashboard._panel(Tick(summary, None)))
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue()).splitlines()]
    assert "warning: node gone lost: the node died" in lines
    shown = [line for line in lines if re.match(r"(gone|node-\d+)  ", line)]
    assert len(shown) == NODES_SHOWN
    assert shown[0] == "gone  lost  500 traces (50.0/s), 2 workers lost"
    assert shown[1] == "node-001  8 workers  10 traces (1.0/s)"
    assert f"and {200 - NODES_SHOWN} faster nodes" in lines


def test_a_reduction_is_printed_once_not_for_every_further_trace() -> None:
    console = Plain(Terminal(file=(out := io.StringIO()), width=100))
    finding = Finding("M1-step-free", "M1", "m", step=0, event=0, events=3, trace="t.json", index=0, reduced=True)
    for events, count in ((3, 1), (3, 2), (2, 3), (2, 4)):
        console.handle_event(Improved(structs.replace(finding, events=events, count=count)))
    printed = [line.strip() for line in out.getvalue().splitlines()]
    assert printed == ["M1-step-free: reduced to 3 events", "M1-step-free: reduced to 2 events"]


def test_where_the_time_went_and_what_nobody_looked_into_is_said() -> None:
    cut_off = Finding("S3-a", "S3", "m", 1, 1, 9, "findings/S3-a.json", 0)
    known = structs.replace(cut_off, signature="S3-b", cause=Cause("mine"))
    summary = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [cut_off, known], {}, {}, [], [])
    effort = {"fuzzing": 14.0, "confirming": 1.0, "reducing": 0.0, "identity": 5.0}
    summary = structs.replace(summary, effort=effort, triage_share=0.3, waiting=[Waiting(1, 7, "S3-a", "S3-a")])
    assert effort_line(summary) == (
        "workers' time: fuzzing 70%, looking into failures 30% (confirming 5%, finding out causes 25%); "
        "the share is 30% while traces run"
    )
    took = {"drawing": 0.06, "engine": 7.0, "judging": 2.0}
    assert effort_line(structs.replace(summary, took=took)).startswith(
        "workers' time: fuzzing 70% (engine 35%, starting and waiting 25%, judging 10%), looking into failures 30% ("
    )
    unfinished, waiting = open_lines(summary)
    assert unfinished == "not looked into for lack of time: S3-a", "a known bug is not reduced"
    assert "1 further failing trace not looked into, kept in waiting/; the next campaign in this folder" in waiting
    *_, waiting = open_lines(structs.replace(summary, merged=["hybrid#1"]))
    assert "in the folder of each campaign" in waiting
    assert effort_line(structs.replace(summary, effort={})) == ""


@pytest.mark.parametrize("width", [40, 80])
def test_sentences_behind_the_report_continue_on_the_next_line_between_words(width: int) -> None:
    summary = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [], {}, {}, [], [], effort={"fuzzing": 14.0, "x": 6.0})
    summary = structs.replace(summary, seen=Seen(1000, 1, 2000, 20, 10, 12, 9, 40, 14))
    sentences = list(notes(summary))
    assert max(map(len, sentences)) > 150
    Plain(Terminal(file=(out := io.StringIO()), width=width, force_terminal=True)).ended(summary)
    lines = out.getvalue().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("what is left: "))
    assert max(map(len, lines[begin:])) <= width
    assert " ".join(line.rstrip() for line in lines[begin:]) == " ".join(sentences)
    Plain(Terminal(file=(out := io.StringIO()), width=width)).ended(summary)
    assert set(sentences) <= set(out.getvalue().splitlines()), "a line stays one for programs"


def test_states_are_one_line_of_the_terminal() -> None:
    """Their table had 85 lines, behind which the findings scrolled away."""
    reached = {f"state {number}": int(number > 8) for number in range(1, 86)}
    never = [name for name, count in reached.items() if not count]
    summary = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [], {}, reached, [], never)
    shown = ", ".join(never[:6])
    expected = f"77 of 85 engine states occurred (how often: see the report); never: {shown} and 2 more"
    assert reached_line(summary) == expected
    console = Console(file=(out := io.StringIO()), width=200)
    for part in report(summary, 200):
        console.print(part)
    assert len(out.getvalue().splitlines()) < 10
    assert reached_line(structs.replace(summary, never_reached=[])).endswith("(how often: see the report)")


def test_the_report_has_the_most_severe_finding_first_with_what_it_needs() -> None:
    one = Finding("S3-a", "S3", "m", 1, 1, 9, "findings/S3-a.json", 0, reduced=True)
    lost_hit = structs.replace(one, severity=Severity("P3", "slower", Reach(["--x"])))
    wrong = structs.replace(one, signature="S3-b", severity=Severity("P0", "wrong tokens", Reach()))
    known = structs.replace(one, signature="S3-c", cause=Cause("mine", severity=Severity("P1", "hang", Reach(["--y"]))))
    console = Plain(Terminal(file=(out := io.StringIO()), width=100))
    console.handle_event(Graded(wrong))
    assert out.getvalue().strip() == "S3-b: P0, wrong tokens; on the stock server"
    summary = Summary("hybrid", "", 1, {}, "time", 9, 9, 10.0, [lost_hit, wrong, known], {}, {}, [], [])
    for part in report(summary, 100):
        console.rich.print(part)
    text = out.getvalue()
    places = [text.index(words) for words in ("P0 S3-b: seen", "P1 S3-c: seen", "P3 S3-a: seen")]
    assert places == sorted(places)
    assert "P1, hang; needs --y" in text and "P3, slower; needs --x" in text
