"""A report, its script and what it needs are of one trace, without what the failure has no use for."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cli_process import Cli
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.tell import reproduce
from hybridfuzz.harness.tell.bug_report import OtherRun
from hybridfuzz.harness.tell.reproduce import EARLIER, Judged, behind_another, on_default, without_idle_options
from hybridfuzz.harness.tell.script import ScriptVerdict
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.deployment import Deployment, Implementation
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.trace import Arrive, Evict, ExternalLoad, ResetPrefixCache, Trace

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
    assert text.count("| the same, but without speculation | passes |") == 1
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


def test_a_failure_of_the_default_implementation_too_is_told_of_that() -> None:
    """A report was about the core that no server runs; that the default raises another error stood in half a line."""
    cores = [Implementation(one, {"core": one}, one == "rust") for one in ("rust", "python")]
    trace = make_trace(arrive("r0"), *steps(1), options={"core": "python"})
    here = Violation("CRASH", "KeyError-f", event=1, event_kind="step")

    class Engine:
        def __init__(self, found: Violation | None) -> None:
            self.found = found

        def run(self, one: Trace) -> Outcome:
            assert one.config.options == {"core": "rust"}
            return Outcome(self.found, 1, 1, {}, {}, 0)

    def told(found: Violation | None) -> tuple[str, Violation]:
        chosen, violation = on_default(trace, here, Engine(found).run, cores)
        return chosen.config.options["core"], violation

    other = structs.replace(here, field="TypeError-g")
    assert told(other) == ("rust", other)
    for unlike in (None, structs.replace(other, event=0), structs.replace(other, oracle="S1")):
        assert told(unlike) == ("python", here)


class Scripted:
    """An engine whose failures are those of a function."""

    def __init__(self, found: Callable[[Trace], Violation | None]) -> None:
        self.found = found
        self.observe = self.explain = self.serve = None

    def run(self, trace: Trace) -> Outcome:
        return Outcome(self.found(trace), 1, 1, {}, {}, 0)


def test_what_the_patch_does_not_repair_is_another_failure() -> None:
    """Settings were dropped until the trace met a second defect behind the patch: "The patch does not fix this"."""
    broken = Violation("S1", "temporal")
    engine = Scripted(lambda _: broken)
    fixed = Scripted(lambda trace: broken if trace.config.options else None)
    judged = Judged(cast(WorkerClient, engine), cast(WorkerClient, fixed))
    assert judged.run(make_trace()).violation == broken
    assert judged.run(make_trace(options={"a": "1"})).violation is None
    alone = Judged(cast(WorkerClient, engine), None)
    assert alone.run(make_trace(options={"a": "1"})).violation == broken
    assert judged.has_patch and not alone.has_patch, "without one no other model is known to have the same defect"


def test_bytes_that_were_nobodys_are_read_behind_a_request_that_had_them() -> None:
    """A server that has just started has zeros there, and answered right."""
    trace = make_trace(arrive("r0"), *steps(1))
    nobodys = Violation("S4", "temporal", details={"previous": None})
    somebodys = structs.replace(nobodys, details={"previous": "earlier"})

    def found(one: Trace) -> Violation:
        first = one.events[0]
        small = one.config.num_blocks == one.config.smallest_pool()
        return somebodys if small and isinstance(first, Arrive) and first.name == EARLIER else nobodys

    behind, violation = behind_another(trace, nobodys, Scripted(found).run)
    assert violation == somebodys and behind.events[-2:] == trace.events
    assert behind_another(trace, somebodys, Scripted(found).run) == (trace, somebodys)
    assert behind_another(trace, nobodys, Scripted(lambda _: nobodys).run) == (trace, nobodys)


def test_options_that_change_neither_server_nor_failure_are_left_out() -> None:
    """A script said what to do with a load that fails, and loaded nothing."""
    trace = make_trace(
        arrive("r0"), options={"load_failure": "fail", "retention": "dense", "runner": "v2", "mixer": "x"}
    )

    def described(one: Trace) -> Deployment:
        flags = ("--retention",) if "retention" in one.config.options else ()
        return Deployment("E", ("serve",), flags, implementations=(Implementation("V2", {"runner": "v2"}, True),))

    plain = without_idle_options(trace, described, lambda one: "mixer" in one.config.options)
    assert list(plain.config.options) == ["retention", "runner", "mixer"]


def test_a_second_patch_repairs_the_trace_before_its_script_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest patches were tried on the script, which takes minutes, and the right one was not among them."""
    scripts = list[str]()

    class Worker:
        def __init__(self, launch: object) -> None:
            self.launch = launch

        def __enter__(self) -> "Worker":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def start(self) -> None:
            pass

        def run(self, trace: Trace) -> Outcome:
            fails = self.launch != ["first", "fifth"]
            return Outcome(Violation("S1", "x", "y", event=1) if fails else None, 1, 1, {}, {}, 0)

    def entry(name: str) -> SimpleNamespace:
        return SimpleNamespace(title=name, reason=name, text_path=None, read_patch=lambda: name)

    def run_script(path: Path, script: object, launch: list[str]) -> ScriptVerdict:
        scripts.append(launch[1])
        return ScriptVerdict(False, 0, 0.1, "")

    tried = [entry(name) for name in ("second", "third", "fourth", "x", "y", "fifth")]
    for name, stand_in in {
        "other_fixes": lambda *_: tried,
        "patched": lambda _, patches: patches,
        "run_script": run_script,
        "as_applied": lambda _, patch, __: (patch, []),
    }.items():
        monkeypatch.setattr(reproduce, name, stand_in)
    subject = SimpleNamespace(spec="", launch=Launch("", {}), worker=Worker)
    case = SimpleNamespace(script="a script", related=None, trace=make_trace(), deployment=Deployment(""))
    found = reproduce._second_patch(cast(Any, subject), Path(), cast(Any, case), cast(Any, "first"), "S1-x")
    assert found and (found.title, found.text, scripts) == ("fifth", "fifth", ["fifth"])


def test_an_implementation_that_the_trace_cannot_run_on_is_shown_by_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's default core of the tree was "not run", because its caches cannot be read, which no script does."""
    cannot = OtherRun("other", True, False, "cannot run: it does not show what is on the host")
    here = OtherRun("one", False, True, "fails, too")
    implementations = (Implementation("one", {"core": "one"}), Implementation("other", {"core": "other"}))
    deployment = Deployment("", implementations=implementations)
    case = SimpleNamespace(
        spec="", launch=Launch("", {}), trace=make_trace(options={"core": "one"}), history=None, violation=None,
        runs=[here, cannot], deployment=deployment,
    )  # fmt: skip
    verdicts = [ScriptVerdict(False, 0, 0.1, ""), ScriptVerdict(True, 1, 0.1, "")]

    def write_scripts(spec: str, trace: Trace, failure: object) -> list[SimpleNamespace]:
        return [SimpleNamespace(text=trace.config.options["core"])] * 2

    def run_script(path: Path, script: SimpleNamespace, launch: Launch) -> ScriptVerdict:
        assert path.read_text() == script.text == "other"
        return verdicts.pop(0)

    monkeypatch.setattr(reproduce, "failure_of", lambda *_: None)
    monkeypatch.setattr(reproduce, "write_attempts", write_scripts)
    monkeypatch.setattr(reproduce, "run_script", run_script)
    [first, second] = reproduce._by_script(cast(Any, case))
    assert first == here and second == OtherRun("other", True, False, "fails, too", by_script=True)
    verdicts += [ScriptVerdict(False, 0, 0.1, "")] * 2
    assert [*reproduce._by_script(cast(Any, case))][1].result == "passes"
