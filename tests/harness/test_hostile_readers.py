"""Files that a stranger wrote: bounded work, no waiting, one line."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_process import command
from support import CLEAN

from hybridfuzz.harness import cli
from hybridfuzz.harness.campaign.rare_traces import CampaignCorpus
from hybridfuzz.harness.campaign.resume import exclusive
from hybridfuzz.harness.campaign.trace_counts import Progress
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.draw.hypothesis_traces import EXAMPLE_BYTES_MAX, ExampleFiles, HypothesisTraces
from hybridfuzz.harness.draw.trace_files import write_atomically
from hybridfuzz.harness.group.findings.finding_store import check_counted
from hybridfuzz.harness.group.known.known_toml import KNOWN_BYTES_MAX, load_known
from hybridfuzz.targets.base.checkout import _version
from hybridfuzz.targets.base.patches import PatchError, located, parse_patch
from hybridfuzz.targets.base.trace import TraceError


def state(**fields: object) -> Summary:
    values: dict[str, object] = {"traces": 10, "steps": 100, "seconds": 1.0, **fields}
    return Summary("hybrid", "", 1, {}, None, findings=[], exercised={}, reached={}, never_exercised=[],
                   never_reached=[], **values)  # type: ignore[arg-type]  # fmt: skip


@pytest.mark.parametrize("kind", ["FIFO", "link", "large", "folder"])
def test_examples_are_small_regular_files(tmp_path: Path, kind: str) -> None:
    """A FIFO hung the campaign; a link to 3 GB was read whole."""
    database = ExampleFiles(tmp_path / "examples")
    database.save(b"key", b"good")
    bad = database._key_path(b"key") / "0000"
    if kind == "FIFO":
        os.mkfifo(bad)
    elif kind == "link":
        (tmp_path / "secret").write_bytes(b"secret")
        bad.symlink_to(tmp_path / "secret")
    elif kind == "large":
        bad.write_bytes(b"x" * (EXAMPLE_BYTES_MAX + 1))
    else:
        bad.mkdir()
    assert list(database.fetch(b"key")) == [b"good"]


def test_a_campaign_reads_its_examples_so(tmp_path: Path) -> None:
    traces = HypothesisTraces(1, {}, tmp_path)
    traces.capabilities = CLEAN.capabilities
    assert isinstance(traces._database, ExampleFiles)


def test_numbers_of_traces_stay_below_the_limit() -> None:
    """A crafted `beyond` made a campaign of 25 traces run 486."""
    progress = Progress(state(traces=1, beyond=[(486, 487)]))
    given: list[int] = []
    while progress.has_more(25):
        given += progress.allot(8, 25)
    assert given == list(range(25))


@pytest.mark.parametrize(
    "fields",
    [
        {"traces": 3, "beyond": [(5, 9)]},
        {"traces": 3, "done": 4},
        {"traces": -7},
        {"steps": -1},
        {"seconds": -0.5},
        {"refused": -1},
        {"lost_workers": -2},
        {"not_run": {"memory": -1}},
    ],
)
def test_counts_that_no_campaign_writes(fields: dict[str, object]) -> None:
    with pytest.raises(TraceError, match=r"negative|have numbers"):
        check_counted(state(**fields))


def test_traces_that_did_not_run_have_numbers_too() -> None:
    """A campaign whose target refused a trace could not be continued."""
    check_counted(state(traces=3, done=6, refused=1, not_run={"memory": 2}))


def test_a_corpus_file_that_cannot_be_put_aside(tmp_path: Path) -> None:
    """It ended a campaign that had begun."""
    corpus = CampaignCorpus(tmp_path)
    corpus.folder.mkdir()
    bad = corpus.folder / "bad.json"
    bad.write_text("{")
    (corpus.folder / "bad.broken").mkdir()
    text = corpus.load(bad)
    assert isinstance(text, str)
    assert "it cannot be put aside" in text


def dotted(size: int) -> bytes:
    return b"[[known]]\n" + b"a." * (size // 2) + b"a = 1\n"


@pytest.mark.parametrize("size", [40_000, KNOWN_BYTES_MAX - 100])
def test_a_key_of_many_parts(tmp_path: Path, size: int) -> None:
    """40 kB took 1.6 GB and 11 s."""
    (tmp_path / "known.toml").write_bytes(dotted(size))
    began = time.monotonic()
    with pytest.raises(TraceError, match="line 2: a key of more than"):
        load_known(tmp_path / "known.toml")
    assert time.monotonic() - began < 5


def test_dots_in_texts_are_no_keys(tmp_path: Path) -> None:
    text = f"[[known]] # {'a.' * 99}\nreason = \"{'a.' * 99}\"\nsignature = '{'M1-.' * 20}'\n"
    (tmp_path / "known.toml").write_text(text)
    assert len(load_known(tmp_path / "known.toml")) == 1


def patch(hunks: int, lines: int, at: int) -> str:
    head = "--- a/pkg/x.py\n+++ b/pkg/x.py\n"
    return head + "".join(
        f"@@ -{at},{lines} +{at},{lines + 1} @@\n" + " same\n" * lines + "+new\n" for _ in range(hunks)
    )


def test_a_patch_on_equal_lines() -> None:
    """Each place was compared in full: 30 to 50 s."""
    text = "same\n" * 800_000 + "end\n"
    began = time.monotonic()
    with pytest.raises(PatchError, match="several places"):
        list(located(parse_patch(patch(1, 90_000, 900_000), "p"), lambda _: text))
    late = patch(400, 3, 900_000).replace("+new", "-end\n+new").replace(",3 +", ",4 +").replace(",4 @@", ",4 @@")
    with pytest.raises(PatchError, match=r"several places|fits nowhere|too many hunks"):
        list(located(parse_patch(late, "p"), lambda _: text))
    assert time.monotonic() - began < 20


def test_a_hunk_that_moved_is_found() -> None:
    text = "".join(f"{number % 3}\n" for number in range(9)) + "x\ny\n" + "x\nz\n"
    moved = "--- a/pkg/x.py\n+++ b/pkg/x.py\n@@ -1,2 +1,3 @@\n x\n+new\n z\n"
    [(_, [change])] = located(parse_patch(moved, "p"), lambda _: text)
    assert (change.start, change.text) == (12, ("new\n",))


def test_a_version_file_of_any_kind(tmp_path: Path) -> None:
    """A binary one was an internal error, a FIFO hung."""
    file = tmp_path / "_version.py"
    file.write_bytes(b"\xff\xfe\x00" * 9 + b"\n__version__ = '1.2.3'\n")
    assert _version(tmp_path) == "1.2.3"
    file.unlink()
    os.mkfifo(file)
    assert _version(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["fuzz", "--traces", "1", "-o", os.fsdecode(b"out\xff")],
        ["replay", os.fsdecode(b"\xff.json")],
        ["fuzz", "--traces", "1", "-o", "x" * 300],
        ["replay", "x" * 300],
        ["replay", "x" * 5000],
        ["merge", "x" * 300, "-o", "all"],
        ["merge", "a", "-o", "x" * 300],
        ["fuzz", "--traces", "1", "--junit", "x" * 300],
        ["fuzz", "--traces", "1", "--known", "x" * 300],
        ["report", "x" * 300],
    ],
)
def test_names_that_no_file_can_have(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    """Internal errors."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert "internal" not in line


@pytest.mark.parametrize("limit", [6, 8, 10, 12])
def test_few_file_descriptors(environment: dict[str, str], tmp_path: Path, limit: int) -> None:
    """An internal error. With the last of these limits there may be just enough."""
    ours = " ".join(map(str, command("fuzz", "--traces", "1", "--no-canary")))
    ran = subprocess.run(
        ["bash", "-c", f"ulimit -n {limit}; exec {ours}"], env=environment, cwd=tmp_path, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode in ((2, 3) if limit >= 10 else (1, 2)), ran  # 1: the interpreter itself does not start
    assert "internal" not in ran.stderr
    assert ran.stderr.count("\n") == 1 or ran.returncode != 2, ran.stderr


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    """Temporary files stayed for ever."""
    code = (
        "import os, sys, pathlib, hybridfuzz.harness.draw.trace_files as f\n"
        "os.fsync = lambda _: os.kill(os.getpid(), 9)\n"
        "f.write_atomically(pathlib.Path(sys.argv[1]), b'x')\n"
    )
    (tmp_path / "findings").mkdir()
    places = [tmp_path / "campaign.json", tmp_path / "findings" / "M1-x.evidence", tmp_path / "findings" / "M1.2.json"]
    for place in places:
        subprocess.run([sys.executable, "-c", code, place], check=False)
    left = list(tmp_path.rglob("*.tmp"))
    assert len(left) == 3
    for path in left:
        os.utime(path, (1, 1))
    kept = [tmp_path / "mine.tmp", tmp_path / "findings" / "notes.txt"]
    for path in kept:
        write_atomically(path, b"mine")
        os.utime(path, (1, 1))
    with exclusive(tmp_path):
        assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)
