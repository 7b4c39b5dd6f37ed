"""Bad input and bad luck: one clear line, the right exit status, and nothing found is lost."""

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_process import Cli, command

from hybridfuzz.harness import cli
from hybridfuzz.harness.cli import COMMANDS
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import encode_trace
from hybridfuzz.harness.face.commands.targets import listing, variants_of
from hybridfuzz.targets.base.registry import load_factory

MUTANT = "hybrid:null-as-state-slot"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "hybird"], ["unknown target 'hybird'", "did you mean hybrid?"]),
        (["--target", "vlm@0.33.0"], ["unknown target 'vlm@0.33.0'", "did you mean vllm@0.33.0?"]),
        (["--target", "hybrid:null-as-state"], ["did you mean hybrid:null-as-state-slot?"]),
        (["--target", "hybrid@1.0"], ["no such device", "known: symbolic"]),
        (
            ["--target", "python:no_such_module:X"],
            ["No module named 'no_such_module'", "PYTHONPATH"],
        ),
        (["--target", "python:fake_targets:NO"], ["has no attribute 'NO'"]),
        (["--target", "python:fake_targets"], ["python:MODULE:NAME"]),
        (["--target", "hybrid@0.1"], ["'hybrid@0.1'", "no such device", "known: symbolic"]),
        (["--target", "python:os:getcwd"], ["'python:os:getcwd'", "'str' is no TargetFactory"]),
        (["--target", "python:os:abort_"], ["has no attribute 'abort_'"]),
        (["--target", "python:fake_targets:NO_FACTORY"], ["python:fake_targets:NO_FACTORY", "TypeError"]),
        (["--target", "python:fake_targets:REFUSING"], ["this engine needs a licence"]),
        (["--target", "vllm@no/such/folder"], ["neither a release number nor a folder"]),
        (["--config", "num_speculative_tokens=3,max_num_batched_tokens=2"], ["less than one"]),
        (["--config", "num_blocks=2"], ["num_blocks=2 cannot hold"]),
        (["--config", "num_bloks=20"], ["no 'num_bloks'", "did you mean num_blocks?"]),
        (["--config", "num_blocks=many"], ["num_blocks=many"]),
        (["--config", "mamba_cache_mode=alignn"], ["mamba_cache_mode=alignn", "known: none, align, all, slots"]),
        (["--workload", "preemt=3"], ["workload: there is no 'preemt'; did you mean preempt?"]),
        (["--workload", "preempt=300"], ["workload: Expected `int` <= 100"]),
        (["--config", "num_speculative_tokens=many"], ["num_speculative_tokens=many"]),
        (["--config", "async_depth=1.5"], ["async_depth=1.5"]),
        (["--config", "dp=many"], ["between 1 and 8 ranks"]),
        (["--dp", "9"], ["between 1 and 8 ranks"]),
        (["-o", "/proc/nowhere"], ["cannot write to the output folder /proc/nowhere"]),
        (["-o", "/dev/null/out"], ["cannot write to the output folder"]),
        (["--against", "hybrid", "-o", "/dev/null/out"], ["cannot write to the output folder"]),
        (["--against", "hybrid", "--junit", "x.xml", "--jobs", "2"], ["it has no --jobs, --junit"]),
        (["--against", "hybrid", "--seed", "1", "--shard", "1/2"], ["it has no --shard"]),
        (["--against", "hybrid", "--cluster", "local:2", "--fixes", "builtin"], ["it has no --fixes, --cluster"]),
        (["--against", "python:fake_targets:REFUSING"], ["needs a licence", "refused 1 trace, all that were drawn"]),
        (["--against", "hybrid", "--config", "num_bloks=20"], ["did you mean num_blocks?"]),
        (["--source", "hypothesis", "--config", "num_blocks=2"], ["num_blocks=2 cannot hold"]),
        (["--source", "hypothesis", "--against", "hybrid"], ["--source hypothesis", "it has no --against"]),
        (["--source", "hypothesis", "--shard", "1/2", "--seed", "1"], ["--source hypothesis", "it has no --shard"]),
        (["--source", "hypothesis", "--cluster", "local:2"], ["--source hypothesis", "it has no --cluster"]),
    ],
)
def test_fuzz_refuses(hybridfuzz: Cli, arguments: list[str], words: list[str]) -> None:
    ran = hybridfuzz("fuzz", "--no-canary", "--traces", "1", *arguments)
    assert ran.status == 2, ran
    assert all(word in ran.error for word in words), ran.error


@pytest.mark.parametrize(
    ("option", "value", "cure"),
    [
        ("--time", "5x", "write 90s"),
        ("--traces", "0", "write a whole number of at least 1"),
        ("--memory", "much", "write 500MB"),
        ("--shard", "9/8", "write I/N"),
        ("--seed", "1e3", "write a whole number"),
        ("--config", "num_blocks", "write KEY=VALUE"),
        ("--cluster", "local:0", "write auto"),
    ],
)
def test_a_value_that_cannot_be_read_says_how_to_write_it(hybridfuzz: Cli, option: str, value: str, cure: str) -> None:
    ran = hybridfuzz("fuzz", option, value)
    assert ran.status == 2
    assert f"argument {option}: {value!r}: {cure}" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    "bad",
    [
        "--time=fast",
        "--steps=0",
        f"--steps={'9' * 400}",
        "--traces=-1",
        "--config=x",
        "--memory=x",
        f"--memory={'9' * 400}",
        "--jobs=many",
        "--jobs=100000",
        "--jobs=1.5",
        "--traces=2.5",
        "--steps=1.2345k",
        f"--seed={1 << 64}",  # the state would have a number that no reader takes
        f"--seed={-(1 << 63) - 1}",
        f"--seed={'9' * 5_000}",
    ],
)
def test_usage(hybridfuzz: Cli, bad: str) -> None:
    ran = hybridfuzz("fuzz", bad)
    assert ran.status == 2
    assert "error: argument" in ran.err.splitlines()[-1]


@pytest.mark.parametrize("seed", [(1 << 64) - 1, -(1 << 63)])
def test_the_largest_and_the_smallest_seed(hybridfuzz: Cli, seed: int) -> None:
    ran = hybridfuzz("fuzz", "--traces", "1", "--jobs", "1", "--no-canary", f"--seed={seed}", "-o", "out")
    assert ran.status in (0, 3), ran.err
    assert hybridfuzz("report", "out").status == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "not a trace"),
        ("truncated", "truncated"),
        (b'{"schema": 99}', "schema 99 is not supported"),
        (b'{"schema": 1, "events": 7}', "trace.json"),
        (b"\xff\xfe\x00", "not a trace"),
    ],
)
def test_broken_trace(hybridfuzz: Cli, tmp_path: Path, content: bytes | str | None, words: str) -> None:
    file = tmp_path / "trace.json"
    if content == "truncated":
        whole = encode_trace(draw_trace(load_factory("hybrid").capabilities, 1, 0))
        file.write_bytes(whole[: len(whole) // 2])
    elif isinstance(content, bytes):
        file.write_bytes(content)
    ran = hybridfuzz("replay", file)
    assert ran.status == 2
    assert words in ran.error
    assert "trace.json" in ran.error


def test_replay_of_an_empty_folder(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = hybridfuzz("replay", tmp_path)
    assert ran.status == 2
    assert "no trace" in ran.error


def test_contradictory_trace(hybridfuzz: Cli, tmp_path: Path) -> None:
    trace = json.loads(encode_trace(draw_trace(load_factory("hybrid").capabilities, 1, 0)))
    trace["config"] |= {"num_blocks": 2}
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    ran = hybridfuzz("replay", "trace.json")
    assert ran.status == 2
    assert "num_blocks=2" in ran.error


def test_a_broken_file_does_not_stop_the_others(hybridfuzz: Cli, tmp_path: Path) -> None:
    """One line for each broken file, the rest is replayed, exit status 2 at the end."""
    folder = tmp_path / "many"
    folder.mkdir()
    good = encode_trace(draw_trace(load_factory("hybrid").capabilities, 1, 0))
    (folder / "a.json").write_bytes(good)
    (folder / "b.json").write_bytes(good.replace(b"origin", b"\xe9rigin"))
    (folder / "c.json").write_bytes(good[:100])
    (folder / "z.json").write_bytes(good)
    os.mkfifo(folder / "x.json")
    (folder / "y.json").symlink_to("nowhere")
    ran = hybridfuzz("replay", folder, "--json")
    assert ran.status == 2, ran
    assert ran.err.count("clean   ") == 2
    refused = [line for line in ran.err.splitlines() if line.startswith("refused ")]
    assert [line.split(": ")[0].rpartition("/")[2] for line in refused] == ["b.json", "c.json", "x.json", "y.json"]
    assert ran.json["exit_reason"] == "refused"
    assert [result["trace"].rpartition("/")[2] for result in ran.json["results"]] == [f"{one}.json" for one in "abcxyz"]


def test_a_latin_1_file_is_one_line(hybridfuzz: Cli, tmp_path: Path) -> None:
    good = encode_trace(draw_trace(load_factory("hybrid").capabilities, 1, 0))
    (tmp_path / "latin.json").write_bytes(good.replace(b'"origin": "', b'"origin": "caf\xe9 '))
    ran = hybridfuzz("replay", "latin.json")
    assert ran.status == 2
    assert "latin.json: " in ran.error
    assert hybridfuzz("replay", "latin.json", "--against", "hybrid").status == 2


@pytest.mark.parametrize(
    "words",
    [
        ["replay", sorted((Path(__file__).parents[4] / "corpus").glob("*.json"))[0]],
        ["targets"],
        ["--help"],
    ],
)
def test_a_closed_output(environment: dict[str, str], tmp_path: Path, words: list[object]) -> None:
    """`>&-` and `<&-`: what cannot be printed is dropped, the status stays what it is."""
    for closing in (">&-", "2>&-", "<&- >&- 2>&-"):
        line = f"{' '.join(shlex.quote(word) for word in command(*words))} {closing}"
        ran = subprocess.run(
            ["bash", "-c", line], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, (closing, ran)
        assert "error: " not in ran.stderr


def test_nothing_to_reduce(hybridfuzz: Cli, tmp_path: Path) -> None:
    trace = draw_trace(load_factory("hybrid").capabilities, 1, 0)
    (tmp_path / "trace.json").write_bytes(encode_trace(trace))
    ran = hybridfuzz("reduce", "trace.json", "-o", "small.json")
    assert ran.status == 2
    assert "runs clean on hybrid" in ran.error


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "fix.patch: cannot be read: No such file"), (b"\xff\xfe--- a/x.py\n", "patch fix.patch: ")],
)
def test_a_patch_that_cannot_be_used_is_named_before_an_environment_is_made(
    hybridfuzz: Cli, tmp_path: Path, content: bytes | None, words: str
) -> None:
    trace = min((Path(__file__).parents[4] / "corpus" / "vllm").glob("*.json"))
    if content:
        (tmp_path / "fix.patch").write_bytes(content)
    ran = hybridfuzz("confirm", trace, "--target", "vllm@0.33.0", "--device", "cuda", "--patch", "fix.patch")
    assert ran.status == 2, ran
    assert words in ran.error
    assert not (tmp_path / "cache").exists()


def test_full_disk(hybridfuzz: Cli) -> None:
    """Files may only grow to a few bytes: the finding cannot be saved, so the line says how to get
    it back.
    """

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    ran = hybridfuzz("fuzz", "--target", MUTANT, "--seed", "1", "--traces", "5", "--no-canary", preexec_fn=no_room)
    assert ran.status == 2
    assert "cannot write" in ran.error
    assert "seed 1, trace" in ran.error


def test_a_time_limit_that_no_trace_can_keep(hybridfuzz: Cli) -> None:
    """A hang. Drawing is no engine's work, and has all the time that it needs."""
    limits = ("--timeout", "0.001s", "--traces", "1", "--reduce", "1s")
    ran = hybridfuzz("fuzz", "--target", "python:fake_targets:SLOW_TO_OPEN", "--seed", "1", "--no-canary", *limits)
    assert ran.status == 1, ran
    assert "HANG" in ran.out


def test_internal_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from hybridfuzz.harness.face.commands import doctor

    def fail(options: object) -> int:
        raise ZeroDivisionError("our fault")

    monkeypatch.setattr(doctor, "run", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["doctor"]) == 4
    [line] = capsys.readouterr().err.splitlines()
    assert "internal error: ZeroDivisionError: our fault" in line
    [log] = tmp_path.glob("hybridfuzz-*.log")
    assert str(log) in line
    assert "ZeroDivisionError" in log.read_text()


@pytest.mark.parametrize(
    "arguments",
    [["targets"], ["replay", Path(__file__).parents[4] / "corpus"], ["fuzz", "--traces", "2", "--no-canary"]],
)
@pytest.mark.parametrize("full", [False, True], ids=["closed", "full"])
def test_nobody_takes_the_output(
    environment: dict[str, str], tmp_path: Path, arguments: list[object], full: bool
) -> None:
    """No traceback, and never the status that stands for a violation."""
    ours = " ".join(shlex.quote(word) for word in command(*arguments))
    shell = f"{ours} >/dev/full" if full else f"{ours} | head -c1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", shell], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode in ((2, 3) if full else (0, 2, 3)), ran  # two traces may be vacuous
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    if full:
        assert ran.stderr.endswith("No space left on device\n")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_for_the_output_does_not_change_the_result(
    environment: dict[str, str], tmp_path: Path, more: list[str]
) -> None:
    """Everything was written and the findings saved, but the status was 2 instead of 1."""
    ours = command("fuzz", "--target", MUTANT, "--seed", "1", "--traces", "4", "--no-canary", "--reduce", "1s", *more)
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*ours, "-o", "out", "--junit", "j.xml"],
            env=environment, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ran.returncode == 1, ran
    assert ran.stderr.endswith("hybridfuzz: error: standard output: No space left on device\n")
    assert list((tmp_path / "out" / "findings").glob("M*.json"))
    assert (tmp_path / "j.xml").exists() and (tmp_path / "out" / "report.html").exists()


def test_a_terminal_that_knows_ascii_alone(hybridfuzz: Cli) -> None:
    [file] = (Path(__file__).parents[4] / "corpus").glob("null-as-state-slot--*.json")
    ran = hybridfuzz("replay", file, "--target", MUTANT, env={"PYTHONIOENCODING": "ascii"})
    assert ran.status == 1, ran
    assert "Expected and observed diverge here" in ran.out


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_interrupted_while_importing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("importlib.import_module", interrupt)
    assert cli.main(["doctor"]) == 5
    assert capsys.readouterr().err == "hybridfuzz: error: interrupted\n"


def test_an_interrupted_reduction_names_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("hybridfuzz.harness.group.reduction.reduce.reduce_trace", interrupt)
    [file] = (Path(__file__).parents[4] / "corpus").glob("null-as-state-slot--*.json")
    small = str(tmp_path / "small.json")
    assert cli.main(["reduce", str(file), "--target", MUTANT, "-o", small]) == 0
    assert f"interrupted: {small}\nhybridfuzz replay {small}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_fits_a_screen(hybridfuzz: Cli, words: list[str]) -> None:
    ran = hybridfuzz(*words, "--help", env={"COLUMNS": "100"})
    lines = ran.out.splitlines()
    assert ran.status == 0
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert lines[-1].startswith("example: hybridfuzz")


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_comes_at_once(hybridfuzz: Cli, words: list[str]) -> None:
    """Nothing heavy is imported for it: a time would measure the machine."""
    script = "import sys; from hybridfuzz.harness import cli; {}".format(
        "\ntry: cli.main(sys.argv[1:])\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", script, *words, "-h"], capture_output=True, text=True, check=True)
    modules = ran.stderr.split()
    assert len(modules) < 170
    assert not {"msgspec", "numpy", "rich", "hypothesis", "torch"} & set(modules)
    assert not [name for name in modules if name.startswith("hybridfuzz.targets")]


def test_replay_commands_survive_a_shell(hybridfuzz: Cli, tmp_path: Path) -> None:
    """A folder's name may be anything."""
    folder = "my run; $HOME 'x'"
    ran = hybridfuzz("fuzz", "--target", MUTANT, "--seed", "1", "--traces", "2", "--no-canary", "-o", folder)
    [line, *_] = [line.strip() for line in ran.out.splitlines() if line.startswith("  hybridfuzz replay")]
    command = line.replace("hybridfuzz", f"{sys.executable} -m hybridfuzz.harness.cli", 1)
    again = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr


def test_targets_of_a_long_list() -> None:
    """Engines first, one line each, cut only where somebody reads. The mutants of one with many are listed with it."""
    known = {"hybrid": "embedded", "vllm@1.0": "ready", "python:MODULE:NAME": "yours"}
    known |= {f"hybrid:mutant-{number}": "a long title " * 12 for number in range(50)}
    wide, narrow = list(listing(known, 0)), list(listing(known, 80))
    assert len(wide) == len(narrow) == 3 + 2
    assert wide[-1] == "hybrid has 50 variants: hybridfuzz targets hybrid"
    wide, narrow = list(variants_of(known, "hybrid", 0)), list(variants_of(known, "hybrid", 80))
    assert len(wide) == len(narrow) == 1 + 50
    assert wide[0] == "variants of hybrid (50):"
    assert max(map(len, narrow)) <= 80
    assert wide[-1].endswith("a long title")
    assert list(listing({**known, "vllm:stock": "as it comes"}, 0))[-1].split() == ["vllm:stock", "as", "it", "comes"]
