"""The gate in pytest: which items there are, what they say, and that two runs say the same."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from threading import current_thread, main_thread

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.harness.gate.packaged_bugs import packaged_fixes, shipped
from hybridfuzz.harness.gate.settings import combine
from hybridfuzz.harness.gate.verdicts import PACKAGED_CORPUS, Verdicts
from hybridfuzz.harness.group.causes.investigate import Investigation
from hybridfuzz.harness.group.causes.same_cause import learned
from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.group.known.known_toml import Known
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.machine import memory_share
from hybridfuzz.harness.workers.messages import Ready
from hybridfuzz.harness.workers.results import Ran
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.protocol import MisfitError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Sleep, Step, Trace

pytest_plugins = ["pytester"]

MUTANT = "hybrid:null-as-state-slot"
SHOWS = "null-as-state-slot--M4-step-mamba-dead-write"
FIVE = "--hybridfuzz-budget=0.2s"
"""Five traces on the embedded target."""
CONFIG = Config(num_blocks=20, groups=(Group("mamba", 8), Group("attention", 8)))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's cache, which holds what gates write."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(folder))
    return folder


def shortest(folder: Path) -> list[str]:
    """The names of the traces that gates have saved."""
    return sorted(path.name for path in folder.rglob("*.json"))


def states(result: pytest.RunResult) -> dict[str, str]:
    """Item -> outcome, from a verbose report."""
    found = {}
    for line in result.outlines:
        words = line.split()
        ours = [word for word in words if word.startswith("hybridfuzz::")]
        marks = [word for word in words if word in ("PASSED", "FAILED", "SKIPPED", "XFAIL", "XPASS", "ERROR")]
        if ours and marks and not line.startswith(("FAILED", "ERROR")):
            found[ours[0]] = marks[0]
    return found


def test_corpus_and_search_on_the_correct_target(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--hybridfuzz-target=hybrid", FIVE, "-v")
    assert result.ret == 0
    said = states(result)
    result.stdout.fnmatch_lines([f"*collected {len(said)} items"])
    packaged = {f"hybridfuzz::corpus/{path.stem}" for path in PACKAGED_CORPUS.glob("*.json")}
    searched = {f"hybridfuzz::search/{index:04}" for index in range(5)}
    assert packaged | searched <= said.keys()
    assert {said[name] for name in packaged | searched} == {"PASSED"}
    assert said.keys() == packaged | searched, "traces for other engines are no items"


def test_without_a_cache_of_pytest(pytester: pytest.Pytester) -> None:
    """It was an internal error of pytest."""
    result = pytester.runpytest("--hybridfuzz-target=hybrid", FIVE, "-k", "search/0000", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


@pytest.mark.exhaustive
def test_two_runs_and_any_number_of_processes_say_the_same(pytester: pytest.Pytester) -> None:
    runs = [
        states(pytester.runpytest_subprocess(f"--hybridfuzz-target={MUTANT}", FIVE, "-v", *more))
        for more in ([], [], ["-n2"])
    ]
    assert runs[0]
    assert "FAILED" in runs[0].values()
    assert runs[0] == runs[1] == runs[2]


def test_a_failure_says_what_and_how_to_see_it_again(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "-k", "search")
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "M4: padding row*",
            "signature  M4-step-mamba-dead-write",
            "trace *reduced to*",
            "report *repro *",
            "",
            "What must hold: M4*",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    [replay, *_] = [line for line in result.outlines if line.startswith("replay ")]
    command = shlex.split(replay.removeprefix("replay "))
    again = subprocess.run(
        [sys.executable, "-m", "hybridfuzz.harness.cli", *command[1:]], capture_output=True, text=True, check=False
    )
    assert again.returncode == 1
    assert "M4-" in again.stdout
    assert len(load_trace(command[2]).events) <= 6


@pytest.mark.parametrize("more", [[], ["-n2"]])
def test_a_failure_is_printed_once_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """pytest does not cut its summary where CI is set."""
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "-k", "search", *more)
    assert result.ret == 1
    [_] = [line for line in result.outlines if line.startswith("signature ")]
    result.stdout.fnmatch_lines(["FAILED hybridfuzz::search/* - M4: *"])


def test_a_failure_that_cannot_be_saved_is_still_reported(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "--hybridfuzz-out=/dev/null/x", "-k", "search")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["M*: *", "signature  M*", "trace *seed 0, trace *cannot write *"])


@pytest.fixture
def fakes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets of tests/ for the workers."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setenv("HYBRIDFUZZ_TEST_FLAG", str(pytester.path / "flag"))
    monkeypatch.setattr("hybridfuzz.harness.workers.worker_client.RESTART_WAITS", ())


def search(pytester: pytest.Pytester, name: str, *more: str) -> pytest.RunResult:
    return pytester.runpytest(f"--hybridfuzz-target=python:{name}", "--hybridfuzz-budget=0.08s", "-k", "search", *more)


@pytest.mark.usefixtures("fakes")
def test_a_worker_that_is_lost_once_fails(pytester: pytest.Pytester, own_cache: Path) -> None:
    """As in a campaign: it passed without a word."""
    result = search(pytester, "fake_targets:KILLED")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "CRASH: the target died of SIGKILL and did not when *",
            "signature  CRASH-SIGKILL",
            "*did not fail again when*",
        ]
    )
    assert shortest(own_cache) == ["CRASH-SIGKILL.json"]


@pytest.mark.usefixtures("fakes")
def test_a_loss_that_is_known_does_not_fail(pytester: pytest.Pytester) -> None:
    pytester.makefile(".toml", known='[[known]]\nsignature = "CRASH-SIGKILL"\nreason = "small machine"\n')
    search(pytester, "fake_targets:KILLED", "--hybridfuzz-known=known.toml").assert_outcomes(xfailed=1, passed=1)


def test_a_memory_limit_that_is_reached_once_is_a_warning(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Ran(0, Outcome(None, 1, 1, {}, {}, 0), lost="CRASH: the target took 9 GiB")
    monkeypatch.setattr(WorkerClient, "fuzz", lambda worker, request: [ran])
    result = pytester.runpytest("--hybridfuzz-target=hybrid", FIVE, "hybridfuzz::search/0003")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["warning: hybridfuzz::search/0003: CRASH: the target took 9 GiB"])


@pytest.mark.usefixtures("fakes")
def test_a_failure_in_a_generator_expression_is_saved(pytester: pytest.Pytester) -> None:
    """The failure became a KeyError of hybridfuzz."""
    result = search(pytester, "fake_targets:GENEXPR")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["signature  CRASH-step-KeyError-genexpr", "trace *reduced to *"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.usefixtures("fakes")
def test_a_crash_after_which_nothing_starts_is_told(pytester: pytest.Pytester, own_cache: Path) -> None:
    result = search(pytester, "wedged:FACTORY", "-x")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["CRASH: the target ended its process*", "signature  CRASH-exit-3", "trace *not run again*"]
    )
    assert shortest(own_cache) == ["CRASH-exit-3.json"]


def test_processes_share_the_memory_of_the_machine() -> None:
    settings = combine({"target": "hybrid"}, Path())
    launch = prepare("hybrid", print)
    gates = [Verdicts(settings, 0, Fixes(launch, launch), (), processes) for processes in (1, 4)]
    limits = [one._worker.memory_limit for one in gates]
    assert limits == [memory_share(2), memory_share(8)]


def test_choosing_items(pytester: pytest.Pytester) -> None:
    gate = ["--hybridfuzz-target=hybrid", FIVE, "-v"]
    assert states(pytester.runpytest(*gate, "-k", "search and not 0001")).keys() == {
        f"hybridfuzz::search/{index:04}" for index in (0, 2, 3, 4)
    }
    one = "hybridfuzz::search/0003"
    assert states(pytester.runpytest(*gate, one)) == {one: "PASSED"}
    assert set(states(pytester.runpytest(*gate, f"hybridfuzz::corpus/{SHOWS}", one))) == {
        f"hybridfuzz::corpus/{SHOWS}",
        one,
    }
    assert pytester.runpytest(*gate, "hybridfuzz::corpus/no-such").ret == pytest.ExitCode.USAGE_ERROR


def test_last_failed(pytester: pytest.Pytester) -> None:
    gate = [f"--hybridfuzz-target={MUTANT}", FIVE, "-v", "-k", "corpus"]
    first, second = states(pytester.runpytest(*gate)), states(pytester.runpytest(*gate, "--lf"))
    failed = {name: state for name, state in first.items() if state == "FAILED"}
    assert failed
    assert second == failed


def test_junit(pytester: pytest.Pytester) -> None:
    pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "--junitxml=out.xml", "-k", SHOWS)
    [case] = ET.parse(pytester.path / "out.xml").iter("testcase")
    assert case.get("name") == f"corpus/{SHOWS}"
    [failure] = case.iter("failure")
    assert "signature  M4-step-mamba-dead-write" in str(failure.text)


def test_one_bug_is_one_failure_and_every_item_stays_in_junit(pytester: pytest.Pytester) -> None:
    before = {path.name for path in pytester.path.iterdir()}
    result = pytester.runpytest(f"--hybridfuzz-target={MUTANT}", "--hybridfuzz-budget=1s", "--junitxml=../out.xml")
    result.assert_outcomes(failed=1, passed=result.parseoutcomes()["passed"])
    assert len(result.outlines) <= 60
    failed = [
        case for case in ET.parse(pytester.path / "../out.xml").iter("testcase") if case.find("failure") is not None
    ]
    result.stdout.fnmatch_lines([f"and {len(failed) - 1} more items; in all *M4-step-mamba-dead-write*"])
    assert len(failed) == result.parseoutcomes()["of"] + 1  # "1 failed, N of the same cause"
    assert {path.name for path in pytester.path.iterdir()} == before, "nothing is written to the checkout"


def test_headline_and_explanation_are_of_the_trace_that_replay_shows(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "-k", "search")
    lines = result.outlines
    [headline] = [line for line in lines if line.startswith("M4: ")]
    [apart] = [line for line in lines if line.startswith("Expected and observed diverge here: ")]
    assert headline.removeprefix("M4: ") in apart
    [replay] = [line for line in lines if line.startswith("replay ")]
    command = shlex.split(replay.removeprefix("replay "))[1:]
    again = subprocess.run(
        [sys.executable, "-m", "hybridfuzz.harness.cli", *command], capture_output=True, text=True, check=False
    )
    assert headline.removeprefix("M4: ") in again.stdout.replace("\n", " ")


def test_failures_stand_on_the_page_of_a_workflow(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    page = pytester.path.parent / "summary.md"
    page.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "-k", "search")
    text = page.read_text()
    assert text.startswith("before\n## hybridfuzz\n\n5 traces: ")
    assert re.search(r"\nat most \d+ % of this generator.*s traces fail, at 95 % \(\d of 5 did\)\n", text)
    assert text.count("### M4: ") == 1 and "\nsignature  M4-step-mamba-dead-write\n" in text


def test_a_page_that_cannot_be_written_is_a_warning(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "none" / "page.md"))
    result = pytester.runpytest("--hybridfuzz-target=hybrid", FIVE, "-k", "search/0000")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["warning: cannot write to */none/page.md: No such file or directory"])


def test_two_bugs_are_two_failures(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
    one, other = "null-as-state-slot", "required-below-allocated"
    pytester.makepyfile(
        both="from hybridfuzz.targets.hybrid.factory import HybridFactory\n"
        "from hybridfuzz.targets.hybrid.mutants import MUTANTS\n"
        f"FACTORY = HybridFactory('both', type('Both', (MUTANTS['{one}'], MUTANTS['{other}']), {{}}))\n"
    )
    result = pytester.runpytest("--hybridfuzz-target=python:both:FACTORY", "--hybridfuzz-budget=2s")
    assert result.parseoutcomes()["failed"] == 2
    signatures = {line.split()[1].partition("-")[0] for line in result.outlines if line.startswith("signature ")}
    assert signatures == {"M4", "M7"}


class TestAnEngineThatTheAdapterDoesNotFit:
    """A name of the engine has moved: nobody who changes the engine can change the adapter."""

    @pytest.fixture(autouse=True)
    def engine(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(pytester.path), prepend=os.pathsep)
        pytester.makepyfile(
            my_engine="class Pool:\n    def __init__(self, size): self.unused = size\n",
            my_adapter="""
            import my_engine
            from msgspec import structs
            from hybridfuzz.targets.base.registry import load_factory

            GOOD = load_factory("hybrid")

            class Factory:
                name, capabilities = "mine", structs.replace(GOOD.capabilities, engine=("my_engine",))
                supports = staticmethod(GOOD.supports)

                def open(self, config):
                    if config.num_speculative_tokens:
                        my_engine.Pool(3).free
                    return GOOD.open(config)

            FACTORY = Factory()
            """,
        )

    gate = ("--hybridfuzz-target=python:my_adapter:FACTORY", "--hybridfuzz-budget=0.4s", "-k", "search")

    def test_what_it_cannot_run_is_skipped_and_said_once(self, pytester: pytest.Pytester) -> None:
        result = pytester.runpytest(*self.gate, "--junitxml=../out.xml")
        assert result.ret == 0
        counts = result.parseoutcomes()
        assert counts["passed"] and counts["skipped"] and "failed" not in counts
        [said] = [line for line in result.outlines if "does not fit" in line]
        assert "'Pool' object has no attribute 'free'" in said and "my_adapter.py:13" in said
        assert f"nothing is known about {counts['skipped']} traces" in said
        reasons = [str(case.get("message")) for case in ET.parse(pytester.path / "../out.xml").iter("skipped")]
        assert len(reasons) == counts["skipped"] and all("no attribute 'free'" in reason for reason in reasons)

    def test_it_is_said_once_whatever_the_event(self, pytester: pytest.Pytester) -> None:
        """It was said for each number of the first event that met it."""
        path = pytester.path / "my_adapter.py"
        path.write_text(path.read_text().replace("my_engine.Pool(3).free", "return Late(GOOD.open(config))"))
        with path.open("a") as file:
            file.write(
                "\nclass Late:\n"
                "    def __init__(self, target): self._target = target\n"
                "    def __getattr__(self, name): return getattr(self._target, name)\n"
                "    def apply(self, event):\n"
                "        if type(event).__name__ == 'Step': my_engine.Pool(3).free\n"
                "        return self._target.apply(event)\n"
            )
        result = pytester.runpytest(*self.gate)
        assert result.ret == 0
        [said] = [line for line in result.outlines if "does not fit" in line]
        assert f"nothing is known about {result.parseoutcomes()['skipped']} traces" in said

    def test_strictly_it_is_one_failure(self, pytester: pytest.Pytester) -> None:
        result = pytester.runpytest(*self.gate, "--hybridfuzz-strict")
        assert result.ret == 1
        assert result.parseoutcomes()["failed"] == 1

    @pytest.mark.parametrize("strict", [False, True])
    def test_one_that_cannot_even_be_loaded_is_one_item(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, strict: bool
    ) -> None:
        def start(worker: WorkerClient) -> None:
            raise MisfitError("ImportError: cannot import name 'Pool' (pool.py:3)")

        monkeypatch.setattr(WorkerClient, "start", start)
        result = pytester.runpytest(*self.gate[:2], *(["--hybridfuzz-strict"] if strict else []))
        result.assert_outcomes(**{"failed" if strict else "skipped": 1})
        assert result.ret == int(strict)
        result.stdout.fnmatch_lines(["*does not fit this version of the engine: ImportError: *(pool.py:3); nothing*"])

    def test_a_value_that_the_engine_lost_is_the_bug_of_the_engine(self, pytester: pytest.Pytester) -> None:
        text = (pytester.path / "my_adapter.py").read_text()
        (pytester.path / "my_adapter.py").write_text(text.replace("my_engine.Pool(3).free", "None.free"))
        result = pytester.runpytest(*self.gate)
        assert result.parseoutcomes()["failed"] == 1


def test_inert_without_a_target(pytester: pytest.Pytester) -> None:
    """No configuration is read, nothing is imported beyond the options."""
    pytester.makefile(".toml", hybridfuzz="broken [")
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            ours = {name for name in sys.modules if name.startswith("hybridfuzz.")}
            assert ours == {"hybridfuzz.harness", "hybridfuzz.harness.gate", "hybridfuzz.harness.gate.plugin"}
            assert not {"msgspec", "numpy"} & sys.modules.keys()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_only_the_gate_unless_paths_are_given(pytester: pytest.Pytester) -> None:
    """An engine's own tests take hours."""
    file = pytester.makepyfile("def test_of_the_engine(): pass")
    gate = ["--hybridfuzz-target=hybrid", "--hybridfuzz-budget=0.04s", "-k", "of_the_engine or search"]
    pytester.runpytest(*gate).assert_outcomes(passed=1)
    pytester.runpytest(*gate, file).assert_outcomes(passed=2)


class TestConfiguration:
    """hybridfuzz.toml and [tool.hybridfuzz]."""

    @pytest.mark.parametrize(("name", "table"), [("hybridfuzz.toml", ""), ("pyproject.toml", "[tool.hybridfuzz]\n")])
    def test_file(self, pytester: pytest.Pytester, name: str, table: str) -> None:
        text = (
            'target = "hybrid"\nbudget = "80ms"\ncorpus = ["traces"]\nseed = 3\nconfig = {num_speculative_tokens=0}\n'
        )
        (pytester.path / name).write_text(table + text.replace("80ms", "0.08s"))
        folder = pytester.mkdir("traces")
        save_trace(Trace(CONFIG, (Arrive("x", (("a", 9),), 2), Step())), folder / "mine.json")
        result = pytester.runpytest("--hybridfuzz", "-v", "-k", "traces or search")
        assert states(result) == dict.fromkeys(
            ["hybridfuzz::traces/mine", "hybridfuzz::search/0000", "hybridfuzz::search/0001"], "PASSED"
        )
        result.stdout.fnmatch_lines(["hybridfuzz: hybrid, profile gate, seed 3, budget 0.08 s"])

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('target = "hybird"', "did you mean hybrid"),
            ('taget = "hybrid"', "taget: there is no such option; did you mean target?"),
            ("target = ", "hybridfuzz.toml: "),
            ('target = "hybrid"\nbudget = "soon"', "budget 'soon'"),
            ('target = "hybrid"\ncorpus = ["none"]', "no such file or folder"),
            (f'target = "hybrid"\ncorpus = ["{"x" * 5000}"]', "xxx ..."),
            (f'target = "hybrid"\nbudget = "{"x" * 5000}"', "xxx ..."),
            ('target = "hybrid"\nknown = "none.toml"', "no such file or folder"),
            ('target = "hybrid"\nprofile = "weekly"', "profile = 'weekly': no such profile (there are gate, nightly)"),
            (
                'target = "hybrid"\n[gate]\nprofile = "nightli"',
                "[gate] profile = 'nightli': no such profile; did you mean",
            ),
            ('target = "hybrid"\nconfig = {num_bloks = 3}', "did you mean num_blocks"),
            ("", "no target"),
        ],
    )
    def test_mistakes(self, pytester: pytest.Pytester, text: str, words: str) -> None:
        """One line and the status for usage errors."""
        (pytester.path / "hybridfuzz.toml").write_text(text)
        result = pytester.runpytest("--hybridfuzz")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        [line] = [line for line in [*result.errlines, *result.outlines] if "hybridfuzz: " in line and "ERROR" in line]
        assert words in line


class TestCorpus:
    """Verdicts on traces that are not clean."""

    @pytest.fixture
    def run(self, pytester: pytest.Pytester) -> object:
        folder = pytester.mkdir("mine")

        def run(trace: Trace | str, target: str = "hybrid", *more: str) -> pytest.RunResult:
            (pytester.path / "hybridfuzz.toml").write_text('corpus = ["mine"]')
            if isinstance(trace, str):
                (folder / "t.json").write_text(trace)
            else:
                save_trace(trace, folder / "t.json")
            return pytester.runpytest(f"--hybridfuzz-target={target}", FIVE, "-rsx", "-k", "mine", *more)

        return run

    def test_broken_file(self, run) -> None:  # type: ignore[no-untyped-def]
        result = run('{"schema": 1')
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*t.json: not a trace*truncated?", "The file is broken*"])

    def test_contradictory_configuration(self, run) -> None:  # type: ignore[no-untyped-def]
        result = run(Trace(Config(2, CONFIG.groups), (Step(),)))
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*num_blocks=2 cannot hold*"])

    def test_configuration_that_the_target_does_not_take(self, run) -> None:  # type: ignore[no-untyped-def]
        config = Config(60, (Group("mamba", 4), Group("attention", 8)), num_speculative_tokens=4)
        result = run(Trace(config, (Step(),)))
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED*must be less than the mamba block size 4"])

    def test_event_that_the_target_does_not_have(self, run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
        pytester.makepyfile(
            wakeful="""
            import msgspec
            from hybridfuzz.targets.base.registry import load_factory

            FACTORY = load_factory("hybrid")
            events = FACTORY.capabilities.events - {"sleep"}
            FACTORY.capabilities = msgspec.structs.replace(FACTORY.capabilities, events=events)
            """
        )
        result = run(Trace(CONFIG, (Sleep(),)), "python:wakeful:FACTORY")
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED*hybrid has no sleep"])

    def test_known(self, run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
        """An acknowledged bug is an expected failure; another target's is not."""
        trace = load_trace(PACKAGED_CORPUS / f"{SHOWS}.json")
        for target, outcome in (("hybrid:*", "xfailed"), ("vllm*", "failed")):
            (pytester.path / "known.toml").write_text(
                f'[[known]]\nsignature = "M4-step-*"\ntarget = "{target}"\nreason = "ticket 7"\n'
            )
            result = run(trace, MUTANT, "--hybridfuzz-known=known.toml")
            result.assert_outcomes(**{outcome: 1})
        run(trace, MUTANT, "--hybridfuzz-known=known.toml", "--runxfail").assert_outcomes(failed=1)


def test_the_packaged_corpus_knows_its_own_release() -> None:
    """There its bugs are no news; on any other version they are regressions."""
    here = {known.signature for known in shipped("vllm@0.33.0", "0.33.0")}
    assert "M2-step-mamba-key" in here
    # One cause, prompt-as-decode, and signatures that a search of 60 s meets; the gate failed for want of them.
    assert {"S2-step-mamba-phantom-state", "S3-step-mamba-state-ignored", "S5-step-mamba-never-written"} <= here
    assert not shipped("vllm@.", "/somewhere/vllm")
    assert not shipped("hybrid", "")


def test_a_release_runs_behind_its_packaged_patches_and_a_checkout_does_not() -> None:
    """By signature alone, the known bugs of a release would hide every other bug with the same symptom."""
    entries = packaged_fixes("vllm@0.33.0", "0.33.0")
    assert "published-then-preempted" in {entry.title for entry in entries}
    assert all(entry.patch and "0.33.0" in entry.releases for entry in entries)
    fixed = {trace for entry in entries for trace in entry.traces}
    assert not shipped("vllm@0.33.0", "0.33.0", fixed), "no packaged cause of the newest release is without a patch"
    assert packaged_fixes("vllm@.", "/somewhere/vllm") == packaged_fixes("hybrid", "") == []


def test_a_condition_knows_one_bug_and_not_another_with_the_same_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two mutants at once, one of them acknowledged by a condition learned from its trace."""
    known, other = "accepted-count-zero", "unscheduled-row"
    (tmp_path / "both.py").write_text(
        "from hybridfuzz.targets.hybrid.factory import HybridFactory\n"
        "from hybridfuzz.targets.hybrid.mutants import MUTANTS\n"
        f"FACTORY = HybridFactory('both', type('Both', (MUTANTS['{known}'], MUTANTS['{other}']), {{}}))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    target = "python:both:FACTORY"
    launch = prepare(target, print)
    traces = {slug: next(PACKAGED_CORPUS.glob(f"{slug}--*.json")) for slug in (known, other)}
    with WorkerClient(target, launch, 60.0) as worker:
        seen = Investigation(worker, worker.start().capabilities, 60.0).evidence(load_trace(traces[known]))
    assert seen
    entry = Known(
        reason="ticket 7",
        signature=seen.signature,
        condition=learned([seen]),
        traces=(traces[known].name,),
        folder=str(PACKAGED_CORPUS),
    )
    settings = combine({"target": target, "out": tmp_path / "out"}, tmp_path)
    gate = Verdicts(settings, 0, Fixes(launch, launch, (entry,)), [entry])
    try:
        said = {slug: gate.replay(slug, trace) for slug, trace in traces.items()}
    finally:
        gate.close()
    assert said[known].state == "known" and said[known].text == f"{seen.signature}: ticket 7"
    assert said[other].state == "failed" and f"signature  {seen.signature}" in said[other].text


def test_the_night_searches_anew_and_all_processes_alike(pytester: pytest.Pytester) -> None:
    """Processes of xdist have to collect the same traces; two nights should not."""
    pytester.makeconftest(
        """
        import os
        from pathlib import Path

        def pytest_collection_finish(session):
            seed = session.config.pluginmanager.get_plugin("hybridfuzz-gate").seed
            Path("seed-" + os.environ["PYTEST_XDIST_WORKER"]).write_text(str(seed))
        """
    )
    seeds = []
    for _ in range(2):
        pytester.runpytest_subprocess(
            "--hybridfuzz-target=hybrid", FIVE, "--hybridfuzz-profile=nightly", "-n2", "-k", "search"
        ).assert_outcomes(passed=5)
        [seed] = {path.read_text() for path in pytester.path.glob("seed-gw?")}
        seeds.append(seed)
    assert seeds[0] != seeds[1]


def test_behind_known_bugs_with_a_patch(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate runs with the patch; whether the bug is still there is an item of its own, which fails if it is not."""
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(pytester.path / "cache"))
    engine = (
        "from hybridfuzz.targets.base.registry import load_factory\nBUG = True\nNAME = 'hybrid:null-as-state-slot'\n"
    )
    pytester.makepyfile(mine=f"{engine}FACTORY = load_factory(NAME if BUG else 'hybrid')\n")
    folder = pytester.mkdir("fixes")
    (folder / "one.patch").write_text("--- a/mine.py\n+++ b/mine.py\n@@ -2 +2 @@\n-BUG = True\n+BUG = False\n")
    (folder / "one.json").write_bytes((PACKAGED_CORPUS / f"{SHOWS}.json").read_bytes())
    entry = 'name = "one"\nreason = "issue 1"\npatch = "one.patch"\ntraces = ["one.json"]\nsignature = "M4-*"\n'
    (folder / "known.toml").write_text(f"[[known]]\n{entry}")
    line = ("--hybridfuzz-target=python:mine:FACTORY", FIVE, "-v", "-k", "known or search")
    assert "FAILED" in states(pytester.runpytest_subprocess(*line)).values()
    fixed = states(pytester.runpytest_subprocess(*line, "--hybridfuzz-fixes=fixes"))
    assert fixed["hybridfuzz::known/one"] == "PASSED" and "FAILED" not in fixed.values()
    (pytester.path / "mine.py").write_text(f"{engine.replace('True', 'False')}FACTORY = load_factory('hybrid')\n")
    late = pytester.runpytest_subprocess(*line, "--hybridfuzz-fixes=fixes")
    assert states(late)["hybridfuzz::known/one"] == "FAILED"
    late.stdout.fnmatch_lines(["known bug one (issue 1): fixed upstream: none of its traces fails; remove the entry*"])
    (pytester.path / "mine.py").write_text(f"{engine.replace('True', '1')}FACTORY = load_factory(NAME)\n")
    changed = pytester.runpytest(*line[:2], "-k", "search", "--hybridfuzz-fixes=fixes")
    changed.assert_outcomes(passed=3, xfailed=2)
    changed.stdout.fnmatch_lines(
        ["warning: patch one does not apply: *; 2 failures with M4-[*] counted as the known bug one, also if *"]
    )


@pytest.mark.parametrize(("more", "beside"), [((), 1), (("--collect-only",), 0), (("-k", "search"), 0)])
def test_the_engine_without_patches_is_imported_beside_other_items(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], beside: int
) -> None:
    started, start = [], WorkerClient.start

    def noting(worker: WorkerClient) -> Ready:
        started.append(current_thread() is main_thread())
        return start(worker)

    monkeypatch.setattr(WorkerClient, "start", noting)
    shutil.copy(PACKAGED_CORPUS / f"{SHOWS}.json", pytester.path / "one.json")
    entry = 'name = "one"\nreason = "issue 1"\nsignature = "M4-*"\ntraces = ["one.json"]\n'
    (pytester.path / "known.toml").write_text(f"[[known]]\n{entry}")
    result = pytester.runpytest(f"--hybridfuzz-target={MUTANT}", FIVE, "--hybridfuzz-known=known.toml", *more)
    assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    assert started.count(True) == 1 and started.count(False) == beside
