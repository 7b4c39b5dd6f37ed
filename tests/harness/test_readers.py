"""Readers of files that strangers can write: whatever a file holds, there is one line and no harm.

`benchmarks/fuzz_readers.py` has the mutations, the readers and the checks, and runs a million cases.
"""

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz_readers.py"
FORMATS = [
    "trace", "corpus", "known", "state", "triage", "history", "evidence", "species", "rates", "lines", "options",
    "scope", "certificate",
]  # fmt: skip


@pytest.fixture(scope="module")
def fuzzing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_readers", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_format_is_listed(fuzzing: ModuleType) -> None:
    assert list(fuzzing.FORMATS) == FORMATS


@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files(fuzzing: ModuleType, tmp_path: Path, name: str) -> None:
    """Structure-aware mutations of real files, chosen and shrunk by Hypothesis."""
    form, watch = fuzzing.prepared(name, tmp_path), fuzzing.Watch()
    seeds = form.seeds()

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.randoms(use_true_random=False), st.sampled_from(range(len(seeds))), st.integers(1, 4))
    def run(rng: random.Random, index: int, times: int) -> None:
        data = seeds[index]
        for _ in range(times):
            data = fuzzing.mutate(data, rng)
        fuzzing.check(form, tmp_path, data, watch)

    run()


@pytest.mark.parametrize("name", FORMATS)
def test_real_files_are_accepted(fuzzing: ModuleType, tmp_path: Path, name: str) -> None:
    """Else the mutations would start from nothing."""
    form, watch = fuzzing.prepared(name, tmp_path), fuzzing.Watch()
    assert all(fuzzing.check(form, tmp_path, data, watch) for data in form.seeds())


def test_a_write_elsewhere_is_seen(fuzzing: ModuleType, tmp_path: Path) -> None:
    """The checks can fail."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def careless(path: Path) -> None:
        (tmp_path / "elsewhere").write_text("x")

    def loud(path: Path) -> None:
        raise ZeroDivisionError

    def greedy(path: Path) -> None:
        b"x" * (fuzzing.MEMORY_MAX + (64 << 20))

    watch = fuzzing.Watch()
    for reader, words in ((careless, "outside of its folder"), (loud, "ZeroDivisionError"), (greedy, "MiB")):
        with pytest.raises(fuzzing.Failure, match=words):
            fuzzing.check(fuzzing.Format("x", list, reader), folder, b"", watch)


WORST = {
    "prompts": b'{"config":{"num_blocks":2,"groups":[{"kind":"mamba","block_size":8}]},"events":[{"event":"arrive",'
    b'"name":"r","max_new_tokens":1,"prompt":[' + b'["a",1],' * 1_000_000 + b'["a",1]]}]}',
    "events": b'{"config":{"num_blocks":2,"groups":[{"kind":"mamba","block_size":8}]},"events":['
    + b'{"event":"step"},' * 480_000
    + b'{"event":"step"}]}',
    "nested": b"[" * (8 << 20),
    "lists": b'{"schema":[' + b"[]," * 2_700_000 + b"1]}",
    "numbers": b'{"schema":1' + b"0" * (8 << 20 >> 1) + b"}",
}
STATE = b'{"target":"t","version":"","seed":1,"overrides":{"a":[%s0]},"exit_reason":null,"traces":1,"steps":1,'
STATE += b'"seconds":1,"findings":[],"exercised":{},"reached":{},"never_exercised":[],"never_reached":[]}'


@pytest.mark.parametrize("case", [*WORST, "state"])
def test_reading_takes_less_than_512_mb(tmp_path: Path, case: str) -> None:
    """The file that takes the most memory for its size, in a process of its own."""
    data = WORST[case] if case in WORST else STATE % (b"{}," * 5_000_000)
    path = tmp_path / ("campaign.json" if case == "state" else "trace.json")
    path.write_bytes(data)
    name = "state" if case == "state" else "trace"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import fuzz_readers as f; from pathlib import Path\n"
        "path = Path(sys.argv[3])\n"
        "read = f.FORMATS[sys.argv[2]].read if sys.argv[2] == 'trace' else __import__("
        "'hybridfuzz.harness.group.findings.finding_store', fromlist=['x']).read_state\n"
        "try: read(path if sys.argv[2] == 'trace' else path.parent)\n"
        "except Exception as error: print(type(error).__name__, str(error)[:80])\n"
        "print(f.memory('VmHWM') >> 20)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT.parent), name, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *verdict, used = ran.stdout.split()
    assert case == "state" or verdict[0] == "TraceError", ran.stdout
    assert int(used) < 512, f"{used} MiB"


@pytest.mark.parametrize("name", ["trace", "known", "triage"])
def test_coverage_guided(name: str) -> None:
    """A bounded number of cases with atheris, where it is installed."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed (an optional development tool: pip install atheris)")
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "--format", name, "--atheris", "--cases", "3000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=dict(os.environ),
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "Done 3000 runs" in ran.stderr
