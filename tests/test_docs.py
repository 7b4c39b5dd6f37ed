"""The documentation: its commands run, its links and paths lead somewhere, its drawing is the import graph.

A `console` or `python` block needs a comment before it, in every page and in README.md:

    <!-- test -->                       run; every command must end with 0
    <!-- test: 60s=2s; exit 1 0 -->     "60s" is replaced by "2s" first; the commands end with 1 and 0
    <!-- not run: needs an engine -->   not run, for that reason

The commands of a page run one after another in one temporary folder, with this interpreter's folder first on PATH.
Where output is shown, each line must begin like a line that was printed, in the same order: its first two words count,
digits do not, and "..." stands for anything. A `python` block with `test` is a test file: pytest runs it.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from hybridfuzz.harness import exit_status
from hybridfuzz.harness.campaign import worker_loop
from hybridfuzz.harness.campaign_events import CampaignEvent, TracesDone, WorkerState
from hybridfuzz.harness.cli import COMMANDS
from hybridfuzz.harness.draw import trace_files
from hybridfuzz.harness.face.outputs.ndjson import event_name
from hybridfuzz.harness.group.findings import measured_reach, severity
from hybridfuzz.harness.group.known import known_toml
from hybridfuzz.harness.tell.bug_report import PARTS_OF_PUBLIC
from hybridfuzz.targets.hybrid.mutants import PARTS
from hybridfuzz.targets.hybrid.mutants import titles as mutant_titles

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

CAUSES = sorted((ROOT / "corpus").glob("*/fixes/*/*.md"))
"""Texts of causes: docs/cause_pages.py makes a page of each."""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *CAUSES])
FENCE = re.compile(r"^( *)```([\w-]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (test|not run)(?:: ([^>]*?))? -->\s*\Z")
FOLDERS = ("harness", "targets", "reference", "reports", "corpus", "tests", "benchmarks", "docs")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block: its language and text, and the marker before it ("", "test", "not run") with its words."""

    page: Path
    line: int
    language: str
    text: str
    marker: str
    words: str

    @property
    def where(self) -> str:
        return f"{name(self.page)}:{self.line}"

    @property
    def replaced(self) -> list[tuple[str, str]]:
        """(as shown, as run)."""
        return [(old, new) for old, new in re.findall(r"(\S+?)=([^\s;]+)", self.words)]

    @property
    def exits(self) -> list[int]:
        """Exit statuses of the commands, as far as they are given; the others are 0."""
        found = re.search(r"exit ([\d ]+)", self.words)
        return [int(status) for status in found[1].split()] if found else []


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        marker = MARKER.search(text, 0, found.start())
        indent = len(found[1])
        body = "".join(line[indent:] for line in found[3].splitlines(keepends=True))
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found[2], body, marker[1] if marker else "", (marker[2] or "") if marker else "")


BLOCKS = [block for page in PAGES for block in blocks(page)]
RUNNABLE = [block for block in BLOCKS if block.language in ("console", "python", "sh", "bash")]
TESTED = [block for block in RUNNABLE if block.marker == "test"]


class Command(NamedTuple):
    """A line to type, and the output shown behind it."""

    line: str
    shown: list[str]


def commands(text: str) -> list[Command]:
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif found and found[-1].line.endswith("\\"):
            found[-1] = Command(f"{found[-1].line}\n{line}", [])
        else:
            assert found, f"output before the first command: {line}"
            found[-1].shown.append(line)
    return found


def missing_line(shown: list[str], printed: list[str]) -> str | None:
    """Return the first line shown that is not printed where it should be; None if all are.

    A line `...` stands for any lines, `...` in a line for any text. Further lines may follow the last one shown.
    """
    rest = [" ".join(line.split()) for line in printed if line.strip()]
    anywhere = False
    for line in (" ".join(line.split()) for line in shown if line.strip()):
        if line == "...":
            anywhere = True
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        fitting = [index for index, one in enumerate(rest if anywhere else rest[:1]) if pattern.fullmatch(one)]
        if not fitting:
            return line
        rest, anywhere = rest[fitting[0] + 1 :], False
    return None


@pytest.mark.parametrize("block", RUNNABLE, ids=lambda block: block.where)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert block.marker, "needs <!-- test --> or <!-- not run: REASON --> before it"
    assert block.marker == "test" or block.words, "a reason"
    for old, _ in block.replaced:
        assert old in block.text, "nothing to replace"
    if block.language == "console" and block.marker == "test":
        assert len(block.exits) <= len(commands(block.text))


@pytest.mark.parametrize("page", sorted({block.page for block in TESTED}), ids=name)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    """All tested blocks of one page, in order, in one folder."""
    folder = tmp_path / "page"
    shutil.copytree(page.parent, folder, ignore=lambda _, names: [one for one in names if not one.endswith(".py")])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HYBRIDFUZZ_CACHE": str(tmp_path / "cache"), "COLUMNS": "120"}
    for block in [block for block in TESTED if block.page == page]:
        text = block.text
        for old, new in block.replaced:
            text = text.replace(old, new)
        if block.language == "python":
            (folder / "test_block.py").write_text(text, encoding="utf-8")
            text = f"$ {sys.executable} -m pytest -q -p no:cacheprovider -p no:xdist test_block.py\n"
        typed = commands(text)
        for command, status in zip(typed, block.exits + [0] * (len(typed) - len(block.exits)), strict=True):
            ran = subprocess.run(
                ["bash", "-c", command.line], cwd=folder, env=environment, text=True, timeout=120, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert ran.returncode == status, f"{block.where}: {command.line}\n{ran.stdout}"
            missing = missing_line(command.shown, ran.stdout.splitlines())
            assert missing is None, f"{block.where}: {command.line}\nnot printed: {missing}\n{ran.stdout}"


def test_blocks_are_found_and_output_is_compared() -> None:
    """The checks above can fail."""
    assert {name(block.page) for block in TESTED} >= {"README.md", "docs/tutorial/first-finding.md"}
    assert commands("$ a \\\n  b\nout\n$ c\n") == [Command("a \\\n  b", ["out"]), Command("c", [])]
    assert missing_line(["found 3 bugs", "...", "report: x"], ["found 3 bugs", "noise", "report: x"]) is None
    assert missing_line(["found 3 bugs", "...", "report: x"], ["found 3 bugs", "report: y"]) == "report: x"
    assert missing_line(["found 3 bugs"], ["found 4 bugs"]) == "found 3 bugs"
    assert missing_line(["a", "c"], ["a", "b", "c"]) == "c"
    assert missing_line(["...", "b", "a"], ["a", "b"]) == "a"
    assert missing_line(["took ... s", "..."], ["took 3 s", "more"]) is None


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: ids of HTML elements, and headings that GitHub and MkDocs spell alike."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = set(re.findall(r'\bid="([^"]+)"', text))
    for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        github = re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-")
        if github == re.sub(r"-+", "-", github):  # MkDocs makes one hyphen of several
            found.add(github)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_exist(page: Path) -> None:
    """Our files that a page names: `harness/...`, `tests/...`; NAME and * stand for anything."""
    text = re.sub(r"(?ms)^```toml\n.*?^```|\]\([^)]*\)", "", page.read_text(encoding="utf-8"))
    paths = re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./*+-]*", text)
    wrong = [path for path in paths if not list(ROOT.glob(re.sub(r"[A-Z]{4,}", "*", path.rstrip(".")) + "*"))]
    assert not wrong


def defined_in(file: Path) -> set[str]:
    """Names that a module defines: `NAME`, `Class`, `Class.method`, `Class.field`, also those of `self`."""
    found: set[str] = set()

    def add(body: Sequence[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(f"{prefix}{node.name}")
            if isinstance(node, ast.ClassDef):
                add(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found.update(f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name))

    add(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


def named_places() -> Iterator[tuple[str, Sequence[str]]]:
    """(file, what is said to be in it) of architecture.md from "Where to look" on: a path, a colon, then names."""
    text = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8").partition("## Where to look")[2]
    for found in re.finditer(r"`([\w./]+/[\w./]*)`(?::\s((?:`[^`]+`(?:,\s)?)+))?", text):
        yield found[1], re.findall(r"`([^`]+)`", found[2] or "")


def test_places_to_look_exist() -> None:
    """In files of Python a name has to be defined, in others, and for an option, to occur."""
    wrong = []
    for path, names in named_places():
        made_for = [ROOT / path.replace("ENGINE", one) for one in ("vllm", "sglang", "transformers", "llamacpp")]
        for file in dict.fromkeys(made_for):
            if not file.exists():
                wrong.append(path)
                continue
            there = defined_in(file) if file.suffix == ".py" and file.is_file() else set()
            wrong += [f"{path}: {name}" for name in names if name not in there and not occurs(name, file)]
    assert not wrong
    assert sum(len(names) for _, names in named_places()) > 150


def occurs(name: str, file: Path) -> bool:
    return (name.startswith("--") or file.suffix != ".py") and name in file.read_text(encoding="utf-8")


def test_configuration_files_parse() -> None:
    for block in BLOCKS:
        if block.language == "toml":
            tomllib.loads(block.text)


def test_every_page_is_in_the_navigation() -> None:
    """MkDocs warns of pages that are left out, and --strict makes that an error; this needs no MkDocs."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w./-]+\.md", navigation)) == pages


def rows(page: str) -> set[str]:
    """First words of the rows of a reference page's tables."""
    text = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    return set(re.findall(r"^\| `?([\w-]+)", text, flags=re.MULTILINE))


def test_reference_pages_are_complete() -> None:
    """Each mutant, command and exit status has a row, and no mutant has one that is gone."""
    assert set(COMMANDS) <= rows("command-line.md")
    statuses = {str(value) for key, value in vars(exit_status).items() if key.isupper() and isinstance(value, int)}
    assert len(statuses) > 4
    assert statuses <= rows("command-line.md")
    page = (ROOT / "docs/reference/mutants.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert set(re.findall(r"^\| ([\w-]+) \|", page, flags=re.MULTILINE)) - {"slug", "---"} == set(PARTS)


def cells(page: str) -> dict[str, list[str]]:
    """Return the cells of a reference page's rows by the first word, up to the first heading after the title."""
    text = (ROOT / "docs/reference" / page).read_text(encoding="utf-8").partition("\n## ")[0]
    found = [[cell.strip() for cell in row.split(" | ")] for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE)]
    return {row[0].split()[0]: row for row in found}


def test_the_table_of_oracles_is_current() -> None:
    """`python docs/oracles_page.py --write` brings it up to date."""
    from oracles_page import PAGE, written

    assert PAGE.read_text(encoding="utf-8") == written()


def test_titles_of_mutants_are_those_of_the_code() -> None:
    """`hybridfuzz targets` prints the same."""
    page = cells("mutants.md")
    assert {slug: page[slug][2] for slug in PARTS} == mutant_titles()


def test_limits_in_security_are_those_of_the_readers() -> None:
    """The figures of its table."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    limits = dict(re.findall(r"^\| ([^|]*) \| (.*) \|$", text, re.MULTILINE))
    assert f"at most {trace_files.TRACE_BYTES_MAX >> 20} MiB" in limits["trace file"]
    assert limits["events"].startswith(f"1 to {trace_files.EVENTS_MAX:,};")
    assert f"2<sup>{trace_files.TOKENS_MAX.bit_length() - 1}</sup> in all prompts" in limits["tokens"]
    assert limits["state files"].startswith(f"{trace_files.STATE_BYTES_MAX >> 20} MiB;")
    texts = (
        f"{known_toml.KNOWN_BYTES_MAX >> 20} MiB, {known_toml.ENTRIES_MAX:,} entries, {known_toml.TEXT_MAX} characters"
    )
    assert limits["`known.toml`"].startswith(texts)


def test_environment_variables_and_events_are_listed() -> None:
    """Each variable that the sources read, and each event of the NDJSON stream."""
    sources = [path for folder in ("harness", "targets", "reports") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r'"(HYBRIDFUZZ_[A-Z_]+[A-Z])"', path.read_text("utf-8"))}
    assert "HYBRIDFUZZ_CACHE" in used
    assert used <= rows("command-line.md")
    events = [one for one in get_args(CampaignEvent) if one not in (TracesDone, WorkerState)]
    streamed = {event_name(type(one.__name__, (), {})()) for one in events}
    night = (ROOT / "docs/how-to/run-every-night.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"^\| `events.ndjson`.*", night, re.MULTILINE)
    assert streamed <= set(re.findall(r"`(\w+)`", listed))


def test_the_output_of_the_how_to_can_be_registered(tmp_path: Path) -> None:
    """docs/how-to/announce.py, as an installed package would register it, in a campaign of its own."""
    metadata = tmp_path / "announce-1.dist-info"
    metadata.mkdir()
    shutil.copy(ROOT / "docs/how-to/announce.py", tmp_path)
    [entry] = [block.text for block in blocks(ROOT / "docs/how-to/add-an-output.md") if block.language == "toml"]
    points = tomllib.loads(entry)["project"]["entry-points"]["hybridfuzz.handlers"]
    lines = ["[hybridfuzz.handlers]", *(f"{key} = {value}" for key, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    (metadata / "METADATA").write_text("Name: announce\nVersion: 1\n", encoding="utf-8")
    command = "fuzz --target hybrid:hit-before-commit --traces 4 --seed 2 --no-canary -o out --announce found.txt"
    ran = subprocess.run(
        [sys.executable, "-m", "hybridfuzz.harness.cli", *command.split()],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    text = (tmp_path / "found.txt").read_text(encoding="utf-8")
    assert text.startswith("hybrid:hit-before-commit: S5-step-mamba-early-hit: S5: ")
    assert text.count("\n") == 1


def test_the_page_of_severities_has_the_table_of_the_code() -> None:
    page = (ROOT / "docs/reference/severity.md").read_text(encoding="utf-8")
    rows = [f"| {effect} | {' | '.join(levels.values())} |" for effect, levels in severity.TABLE.items()]
    assert "\n".join(rows) in page
    assert f"at most {measured_reach.RUNS_MAX} runs and {worker_loop.SEVERITY_SECONDS:.0f} seconds" in page


@pytest.mark.parametrize("path", CAUSES, ids=name)
def test_a_cause_is_told_in_one_place(path: Path) -> None:
    """Its text has all fields; its page has each trace of its entries, and the patch or why there is none."""
    import cause_pages as causes

    cause = causes.read(path)
    assert set(causes.REQUIRED) <= set(cause.fields) <= {*causes.REQUIRED, *causes.OPTIONAL}
    shown = causes.page(cause)
    assert path.read_text(encoding="utf-8") in shown
    if cause.engine in causes.BINARIES:
        assert not cause.patch.exists() and "There is no patch: a release is a binary." in shown
    else:
        assert cause.patch.read_text(encoding="utf-8").rstrip() in shown
    assert all(trace.name in shown for trace in cause.traces)
    assert cause.traces or "None is packaged." in shown


@pytest.mark.parametrize("path", CAUSES, ids=name)
def test_a_public_number_stands_with_how_it_differs(path: Path) -> None:
    """A maintainer read nine numbers of "related" reports, and could not tell which of them was this defect."""
    import cause_pages as causes

    cause = causes.read(path)
    for part in PARTS_OF_PUBLIC.split(cause.fields["public"]) if cause.path.parent.name in WITH_CLAUSES else ():
        words = re.sub(r"\(.*?\)|[\w.-]*\s?#\d+|\b(PRs?|RFC|and|to)\b|[,:]", " ", part).split()
        assert len(words) >= 2, part
    assert "adds" not in cause.fields or "same" in cause.fields, "only a comment adds to a report"


WITH_CLAUSES = ("0.33.0", "0.5.23", "5.23.0")
"""The newest release of each engine that has texts of causes."""
RELEASES = ("vllm 0.33.0", "sglang 0.5.23", "sglang 0.5.20", "transformers 5.23.0", "llamacpp 2026.10.11549")
"""Those whose causes have texts."""


@pytest.mark.parametrize("release", RELEASES)
def test_each_cause_of_a_release_has_a_row(release: str) -> None:
    """`python docs/cause_pages.py --write` brings the tables up to date. Each patch of these releases has a text."""
    import cause_pages as causes

    engine, version = release.split()
    [page] = [page for page in causes.pages() if f"<!-- causes {release}: begin" in page.read_text(encoding="utf-8")]
    text = page.read_text(encoding="utf-8")
    assert text == causes.written(text)
    patches = {path.stem for path in (ROOT / f"corpus/{engine}/fixes/{version}").glob("*.patch")}
    assert patches - {cause.path.stem for cause in causes.causes(engine, version)} <= {"snapshot-slots-not-swapped"}


def test_a_text_without_a_patch_is_told_by_its_entries() -> None:
    """Two entries may share a text. A text that no entry and no trace names is forgotten, and has no page."""
    import cause_pages as causes

    folder = ROOT / "corpus/llamacpp/fixes/2026.10.11549"
    assert len(causes.read(folder / "save-of-a-new-copy.md").traces) == 2
    [unrecognized] = causes.read(folder / "checkpoint-of-another-prompt.md").traces
    assert unrecognized.parent.name == "server"
    with pytest.raises(KeyError):
        assert causes.Cause(folder / "forgotten.md", "13. Forgotten", {}, "").traces


@pytest.mark.parametrize("engine", sorted({release.partition(" ")[0] for release in RELEASES}))
def test_every_text_that_an_entry_names_is_there(engine: str) -> None:
    for entry in known_toml.load_known(ROOT / "corpus" / engine / "known.toml"):
        assert not entry.text or (ROOT / "corpus" / engine / entry.text) in CAUSES


def test_the_site_has_a_page_for_each_cause() -> None:
    """The hook turns a link to a text into a link to its page; both depend on the depth of the page that links."""
    import cause_pages as causes

    class Here:
        src_uri = "explanation/vllm.md"

    class Page:
        file = Here

    link = "[x](../../corpus/vllm/fixes/0.33.0/one-token-prompt.md)"
    shown = causes.on_page_markdown(link, Page, None, None)  # type: ignore[arg-type]
    assert shown == "[x](../causes/vllm/0.33.0/one-token-prompt.md)"
    link = "[x](../../corpus/llamacpp/fixes/2026.10.11549/save-of-a-new-copy.md)"
    shown = causes.on_page_markdown(link, Page, None, None)  # type: ignore[arg-type]
    assert shown == "[x](../causes/llamacpp/2026.10.11549/save-of-a-new-copy.md)"


def test_the_coverage_page_lists_what_is_excluded() -> None:
    """`python docs/coverage_exclusions.py --write` brings it up to date."""
    from coverage_exclusions import PAGE, written

    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page)


def test_the_site_has_the_tables_of_kits() -> None:
    from kit_limits import MARKER, on_page_markdown

    text = (ROOT / "docs/reference/kits.md").read_text(encoding="utf-8")
    shown = on_page_markdown(text, None, None, None)  # type: ignore[arg-type]
    assert MARKER in text and MARKER not in shown
    assert {f"## {engine}: script" in shown for engine in ("vllm", "sglang", "transformers", "llamacpp")} == {True}
    assert "| conv_width | conv_width is 4 |" in shown and "## vllm: behind the front door" in shown


def test_the_architecture_page_shows_the_import_graph() -> None:
    """`python docs/architecture_graph.py --write` brings it up to date."""
    from architecture_graph import PAGE, written

    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page)
