"""The report: everything escaped, nothing loaded from elsewhere, small, and what matters is there and in red."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_events import CampaignEnded, Tick
from hybridfuzz.harness.campaign_summary import Canary, Finding, KnownBug, Level, Node, Reach, Seen, Severity, Summary
from hybridfuzz.harness.draw.trace_files import file_name, load_trace, save_trace
from hybridfuzz.harness.face.outputs.handler import CampaignInfo
from hybridfuzz.harness.face.outputs.totals_over_time import Rates, load_samples
from hybridfuzz.harness.group.bug_history import merge, save_bug_history
from hybridfuzz.harness.group.findings.finding_store import HISTORY_SUFFIX, STATE_FILE
from hybridfuzz.harness.group.known.known_toml import Known
from hybridfuzz.harness.markup import Markup, join, tag
from hybridfuzz.harness.measure.detection.statistics import Detection, summarise
from hybridfuzz.harness.record.history import History
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.harness.tell.timeline_svg import standalone, timeline_svg
from hybridfuzz.reports.data import load_folder, one_finding
from hybridfuzz.reports.page import render
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import TraceError

CORPUS = Path(__file__).parents[2] / "corpus"
FILES = sorted(path.name for path in CORPUS.glob("*.json"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NASTY = "<script>alert(1)</script> & \"quotes\" 'too'"
VOID = {"meta", "br", "hr"}


class Outline(HTMLParser):
    """Checks that elements nest, and collects what they say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        named = dict(attrs)
        self.attributes |= named.keys()
        self.ids += [named["id"] or ""] if "id" in named else []
        self.links += [named["href"] or ""] if "href" in named else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def campaign(folder: Path, count: int = 0, reached: Mapping[str, int] | None = None) -> Summary:
    """A campaign's folder with the findings of the corpus, and `count` more made of the same."""
    (folder / "findings").mkdir(parents=True)
    findings: list[Finding] = []
    for number, name in enumerate([*FILES, *(FILES * (count // len(FILES) + 1))[:count]]):
        slug = name.partition("--")[0]
        trace = load_trace(CORPUS / name)
        outcome, history = record_history(load_factory(f"hybrid:{slug}"), trace)
        violation = outcome.violation
        assert violation is not None
        met = {finding.signature for finding in findings}
        signature = f"{violation.signature}-{number}" if violation.signature in met else violation.signature
        path = folder / "findings" / f"{file_name(signature)}.json"
        save_trace(trace, path)
        path.with_suffix(HISTORY_SUFFIX).write_bytes(msgspec.json.encode(history))
        events = len(trace.events)
        findings.append(
            Finding(
                signature, violation.oracle, violation.message, 1, 1, events, str(path), number, 3, True, True, 3, 3
            )
        )
    states = reached or {"padding rows": 1200, "prefix hit": 0}
    summary = Summary(
        "hybrid", "", 7, {"num_speculative_tokens": "0"}, "traces", 10_000, 500_000, 120.0, findings,
        {"M1": 90_000, "S7": 0}, states, ["S7"], [name for name, times in states.items() if not times],
        canary=Canary("null-as-state-slot", True, "found", "M4-step-mamba-dead-write", 2, 0.1),
    )  # fmt: skip
    (folder / STATE_FILE).write_bytes(msgspec.json.encode(summary))
    save_bug_history(
        folder, merge({}, summary, [Known(signature="M9-*", reason="vLLM #44175")], "2026-01-02T03:04:05+00:00")
    )
    return summary


def test_markup_escapes_what_is_no_markup() -> None:
    assert tag("p", NASTY, title=NASTY) == (
        '<p title="&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot; &#x27;too&#x27;">'
        "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot; &#x27;too&#x27;</p>"
    )
    assert join("a<b", None, "", tag("b", 1)) == "a&lt;b<b>1</b>"
    assert tag("details", class_="x", open=True, id=None, hidden=False) == '<details class="x" open></details>'
    assert isinstance(join("x"), Markup)


def test_a_campaign(tmp_path: Path) -> None:
    campaign(tmp_path / "out")
    page = render(load_folder(tmp_path / "out"))
    outline = Outline(page)
    assert {"overview", "findings", "canary", "states", "oracles"} <= set(outline.ids)
    assert {link.removeprefix("#") for link in outline.links} <= set(outline.ids), "every link leads somewhere"
    histories = [path.read_bytes() for path in (tmp_path / "out" / "findings").glob(f"*{HISTORY_SUFFIX}")]
    assert page.count("<svg") == sum(bool(msgspec.json.decode(one, type=History).marks) for one in histories) > 0
    assert "What must hold" in page
    assert "Passed: the planted bug null-as-state-slot was detected" in page
    assert re.search(r'<li class="never"><span>prefix hit</span>.*?never</span></li>', page)
    assert re.search(r'<li class="never"><span>S7 <span class="dim">NaN</span></span>', page)
    assert "hybridfuzz fuzz --target hybrid --seed 7 --traces 10000 --config num_speculative_tokens=0" in page
    assert page.index("New findings") < page.index("Known: acknowledged") < page.index("vLLM #44175")
    assert "reproduced 3/3" in page
    assert "first seen 2026-01-02 03:04" in page


def test_nodes(tmp_path: Path) -> None:
    """A table of the nodes of a cluster, with their losses; none for a campaign on one machine."""
    summary = Summary("hybrid", "", 7, {}, "traces", 300, 500, 10.0, [], {}, {}, [], [], shard="2/3")
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(summary))
    assert "Nodes" not in (page := render(load_folder(tmp_path)))
    assert "--traces 900 --shard 2/3" in page, "the command that runs the same traces again"
    nodes = [Node("alpha", 0, 200, 400, 3, 10.0), Node(NASTY, 0, 100, 100, 0, 10.0, "lost")]
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(msgspec.structs.replace(summary, nodes=nodes)))
    page = render(load_folder(tmp_path))
    outline = Outline(page)
    assert "nodes" in outline.ids
    assert NASTY not in page
    assert re.search(r">alpha</td><td[^>]*>200</td><td[^>]*>20.0</td><td[^>]*>400</td><td[^>]*>3</td>", page)
    assert re.search(r'class="warn">lost</td>', page)


def test_the_page_lists_the_known_bugs_and_the_command_has_what_was_asked(tmp_path: Path) -> None:
    """The command left out `--fixes`, and so gave another campaign; which bug was not tested stood in the JSON only."""
    bugs = [
        KnownBug("still", "one reason", "still there", patched=True),
        KnownBug("gone", NASTY, "fixed upstream", "3 of 3 pass"),
    ]
    summary = Summary("hybrid", "", 7, {}, "traces", 300, 500, 10.0, [], {}, {}, [], [], known_bugs=bugs)
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(structs.replace(summary, asked=["--fixes", "my fixes"])))
    page = render(load_folder(tmp_path))
    assert "--seed 7 --traces 300 --fixes &#x27;my fixes&#x27;" in page
    assert page.index("<b>gone</b>") < page.index("<b>still</b>"), "what asks for something comes first"
    assert "still there; fixed here" in page and "one reason" in page and "3 of 3 pass" in page
    assert NASTY not in page
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(structs.replace(summary, known_bugs=[])))
    assert "Known bugs" not in render(load_folder(tmp_path))


def test_every_colour_of_the_page_is_defined() -> None:
    """The letters of P0 had the colour of nothing."""
    style = (Path(__file__).parents[2] / "reports" / "templates" / "style.css").read_text()
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= set(re.findall(r"(--[\w-]+):", style))


def test_a_finding_that_is_like_a_known_bug_says_so(tmp_path: Path) -> None:
    finding = Finding("M4-a", "M4", "message", 0, 0, 1, "t.json", 0, like=f"listed ({NASTY})")
    summary = Summary("hybrid", "", 7, {}, "traces", 1, 1, 1.0, [finding], {}, {}, [], [])
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(summary))
    page = render(load_folder(tmp_path))
    assert "like the known bug listed (" in page and NASTY not in page


def test_bars_of_different_counts_look_different(tmp_path: Path) -> None:
    """On a scale of logarithms nearly all of them had four fifths of the width."""
    summary = Summary("hybrid", "", 7, {}, "traces", 1, 1, 1.0, [], {}, {"a": 10_000, "b": 100, "c": 0}, [], ["c"])
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(summary))
    assert re.findall(r"width:([\d.]+)%", render(load_folder(tmp_path))) == ["0.0", "100.0", "10.0"]


def test_nothing_runs_and_nothing_is_loaded(tmp_path: Path) -> None:
    campaign(tmp_path / "out")
    page = render(load_folder(tmp_path / "out"))
    outline = Outline(page)
    assert not outline.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert not {name for name in outline.attributes if name.startswith("on")} | outline.attributes & {"src", "srcset"}
    assert all(link.startswith("#") for link in outline.links)
    assert not re.search(r"url\(|@import", page)
    assert set(re.findall(r"https?://[^\"\s<]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in page


def test_names_and_messages_are_harmless(tmp_path: Path) -> None:
    trace = load_trace(CORPUS / FILES[0])
    history = record_history(load_factory(f"hybrid:{FILES[0].partition('--')[0]}"), trace)[1]
    assert history.violation
    violation = msgspec.structs.replace(history.violation, told=NASTY, field=NASTY)
    marks = tuple(msgspec.structs.replace(mark, who=NASTY, content=NASTY) for mark in history.marks)
    broken = msgspec.structs.replace(history, violation=violation, marks=marks)
    page = render(one_finding(tmp_path / "x.json", trace, f"python:{NASTY}", broken))
    assert "<script" not in page
    Outline(page)


def test_ten_thousand_traces_stay_small(tmp_path: Path) -> None:
    states = {f"state {number}": number for number in range(60)}
    campaign(tmp_path / "out", count=300, reached=states)
    page = render(load_folder(tmp_path / "out"))
    assert len(page.encode()) < 2_000_000
    assert page.count('<details class="finding"') == 300 + len(FILES)
    assert page.count('<details class="finding" open') == 3


@pytest.mark.parametrize("name", FILES)
def test_a_timeline_is_a_picture_of_its_own(name: str) -> None:
    history = record_history(load_factory(f"hybrid:{name.partition('--')[0]}"), load_trace(CORPUS / name))[1]
    svg = timeline_svg(history)
    if not history.marks:
        assert svg == ""
        return
    root = ElementTree.fromstring(standalone(svg))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for one in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(one.attrib["x"]) <= float(one.attrib["x"]) + float(one.attrib["width"]) <= width
        assert 0 <= float(one.attrib["y"]) <= float(one.attrib["y"]) + float(one.attrib["height"]) <= height


def test_a_matrix(tmp_path: Path) -> None:
    runs = [Detection("a-bug", 0, 3, 40, 0.2, "M1-x", "M1", "M1: x", 2), Detection("a-bug", 1, 99, 4000, 60.0)]
    rows = [summarise("a-bug", "A title", runs)]
    (tmp_path / "matrix.json").write_bytes(msgspec.json.encode({"mutants": rows}))
    page = render(load_folder(tmp_path))
    Outline(page)
    assert "a-bug" in page
    assert "1/2" in page
    assert "/ never" in page


def test_not_a_folder_of_ours(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"neither campaign\.json nor"):
        load_folder(tmp_path)
    (tmp_path / "campaign.json").write_text("{")
    with pytest.raises(TraceError, match=r"campaign\.json: "):
        load_folder(tmp_path)


def test_rates_keep_a_bounded_number_of_samples(tmp_path: Path) -> None:
    summary = campaign(tmp_path / "out")
    rates = Rates()
    rates.start(CampaignInfo(target="hybrid", version="", seed=1, out=tmp_path / "out"))
    for second in range(1, 5000):
        last = msgspec.structs.replace(summary, seconds=float(second), traces=second * 10)
        rates.handle_event(Tick(last, None))
    rates.handle_event(CampaignEnded(last))
    assert 60 < len(rates.samples) <= 240
    assert rates.samples[-1].seconds > 4900
    assert load_samples(tmp_path / "out") == rates.samples
    page = render(load_folder(tmp_path / "out"))
    assert page.count('class="chart"') == 4, "without counts of species there is no curve of what is left"
    assert "10 now, 10 at most" in page


def test_what_is_left_has_a_curve(tmp_path: Path) -> None:
    """Also where nothing new was seen for long: a chance of 0 stands on the axis."""
    summary = campaign(tmp_path / "out")
    rates = Rates()
    rates.start(CampaignInfo(target="hybrid", version="", seed=1, out=tmp_path / "out"))
    for alone in (9, 5, 1, 0):
        traces = 1000 - 100 * alone
        seen = Seen(traces, 0, 300, alone, 2, alone, 2, alone, 2)
        summary = msgspec.structs.replace(summary, seconds=float(traces), traces=traces, seen=seen)
        rates.handle_event(Tick(summary, None))
    (tmp_path / "out" / STATE_FILE).write_bytes(msgspec.json.encode(summary))
    rates.handle_event(CampaignEnded(summary))
    page = render(load_folder(tmp_path / "out"))
    Outline(page)
    assert page.count('class="chart"') == 6
    assert "What is left: the next trace shows something new with a chance of 0 %" in page
    assert "0 % now; the axis is 0.10 %, the top 100 %" in page
    assert "At most 0.30 % of this generator" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.parametrize(("width", "scheme"), [(1200, 1), (1200, 0), (400, 1)])
def test_a_browser_shows_it(tmp_path: Path, width: int, scheme: int) -> None:
    """Nothing is wider than the window, and the page's colours follow the reader's."""
    campaign(tmp_path / "out")
    page = tmp_path / "report.html"
    probe = (
        "<script>addEventListener('load', () => { document.title = JSON.stringify(["
        "document.documentElement.scrollWidth, innerWidth, getComputedStyle(document.body).backgroundColor, "
        "document.querySelectorAll('svg').length]) })</script>"
    )
    page.write_text(render(load_folder(tmp_path / "out")) + probe, encoding="utf-8")
    assert CHROMIUM
    ended = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         f"--window-size={width},900", f"--blink-settings=preferredColorScheme={scheme}", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    title = re.search(r"<title>\[(\d+),(\d+),\"(.*?)\",(\d+)\]</title>", ended.stdout)
    assert title, ended.stdout[:500]
    assert int(title[1]) <= int(title[2]), "it scrolls sideways"
    assert title[3] == ("rgb(18, 21, 27)" if scheme == 0 else "rgb(246, 247, 249)")
    assert int(title[4]) > 0


def test_control_characters_become_visible() -> None:
    """XML cannot hold them, terminals obey them; a drawing with one was not well-formed."""
    assert tag("text", "a\x1b[31m\x00\ud800", title="\x07") == '<text title="\\x07">a\\x1b[31m\\x00\\ud800</text>'
    ElementTree.fromstring(tag("text", "a\x1b[31m\x00\ud800\ufffe", title="\x07"))


def test_a_state_file_names_no_other_files(tmp_path: Path) -> None:
    """Only traces and histories of the folder itself are read."""
    campaign(tmp_path / "out")
    secret = tmp_path / "secret.json"
    (sorted((tmp_path / "out" / "findings").glob("*.json"))[0]).rename(secret)
    state = tmp_path / "out" / STATE_FILE
    summary = msgspec.json.decode(state.read_bytes(), type=Summary)
    finding = msgspec.structs.replace(summary.findings[0], trace=str(secret))
    state.write_bytes(msgspec.json.encode(msgspec.structs.replace(summary, findings=[finding])))
    [shown] = load_folder(tmp_path / "out").findings
    assert shown.trace is None
    assert shown.history is None


def test_what_the_default_does_not_show_stands_at_the_end(tmp_path: Path) -> None:
    summary = campaign(tmp_path / "out")
    reaches = [Reach(implementations={"V2": False, "V1": True}, default="V2"), Reach(["--x"]), Reach()]
    levels: list[Level] = ["P0", "P3", "P1"]
    shown = [
        structs.replace(finding, severity=Severity(level, "wrong tokens", reach))
        for finding, reach, level in zip(summary.findings, reaches, levels, strict=False)
    ]
    data = load_folder(tmp_path / "out")
    findings = [structs.replace(one, finding=new) for one, new in zip(data.findings, shown, strict=False)]
    page = render(structs.replace(data, findings=findings))
    words = ["New findings", ">P1<", ">P3<", "not the default: new findings", ">P0<"]
    places = [page.index(text) for text in words]
    assert places == sorted(places)
    assert "P3, wrong tokens; needs --x" in page
