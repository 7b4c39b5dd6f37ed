"""A report, its script and what it needs are of one trace, without what the failure has no use for."""

from pathlib import Path

from cli_process import Cli
from msgspec import structs
from support import arrive, steps

from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.targets.base.trace import Evict, ExternalLoad, ResetPrefixCache

CORPUS = Path(__file__).parents[3] / "corpus"


def test_events_that_do_nothing_are_not_told(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Titles said "after a KV connector's load" where no connector was, and scenarios had its events."""
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    trace = load_trace(file)
    first, *others = trace.events
    idle = structs.replace(trace, events=(first, ExternalLoad("r0", 1), *others[:-1], Evict(1), others[-1]))
    (tmp_path / "t.json").write_bytes(encode_trace(idle))
    ran = hybridfuzz("repro", "t.json", "--target", "hybrid:finished-row-not-cleared", "-o", "out")
    assert ran.status == 0, ran.err
    assert "nor does it need more than 3 events of 5" in ran.out
    text = (tmp_path / "out/REPORT.md").read_text()
    assert "connector" not in text.partition("## Reproduction")[0]
    assert "eviction" not in text and "Memory pressure" not in text
    assert "ExternalLoad" not in (tmp_path / "out/repro.py").read_text()
    assert load_trace(tmp_path / "out/trace.json").events == trace.events


def test_report_and_script_have_only_what_the_reach_names(hybridfuzz: Cli, tmp_path: Path) -> None:
    """The reach was measured on another trace, nearer to the stock server: it named flags that the script had not."""
    [file] = CORPUS.glob("accepted-count-zero--*.json")
    trace = load_trace(file)
    config = structs.replace(trace.config, policy="priority", long_prefill_token_threshold=8)
    (tmp_path / "t.json").write_bytes(encode_trace(structs.replace(trace, config=config)))
    ran = hybridfuzz("repro", "t.json", "--target", "hybrid:accepted-count-zero", "-o", "out")
    assert ran.status == 0, ran.err
    text = (tmp_path / "out/REPORT.md").read_text()
    [reach] = [line for line in text.splitlines() if line.startswith("**When** (found by")]
    assert "priority" not in reach and "speculation" in reach
    assert "priority" not in text and "priority" not in (tmp_path / "out/repro.py").read_text().partition("target =")[0]
    assert load_trace(tmp_path / "out/trace.json").config.policy == "fcfs"


def test_a_clean_trace_leaves_no_folder(hybridfuzz: Cli, tmp_path: Path) -> None:
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    assert hybridfuzz("repro", file, "--target", "hybrid", "-o", "out").status == 2
    assert not (tmp_path / "out").exists()


def test_bytes_that_were_somebodys_stay_so(hybridfuzz: Cli, tmp_path: Path) -> None:
    """A script without the request that had used the memory failed on noise, and passed where memory begins zeroed."""
    [file] = CORPUS.glob("attention-only-hit-reported--*.json")
    trace = load_trace(file)
    earlier = (arrive("w", ("z", 3), new=1), *steps(3), ResetPrefixCache())
    (tmp_path / "t.json").write_bytes(encode_trace(structs.replace(trace, events=(*earlier, *trace.events))))
    ran = hybridfuzz("repro", "t.json", "--target", "hybrid:attention-only-hit-reported", "-o", "out")
    assert ran.status == 0, ran.err
    assert "its bytes are from w" in (tmp_path / "out/REPORT.md").read_text()
