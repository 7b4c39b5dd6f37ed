"""Failures that known bugs explain are named, and not reduced; a failure that they do not explain is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.campaign.campaign import Campaign
from hybridfuzz.harness.campaign.shared_state import Settings
from hybridfuzz.harness.campaign_events import CampaignEnded, Recognized
from hybridfuzz.harness.campaign_summary import Cause, Finding
from hybridfuzz.harness.group.causes.evidence import Condition
from hybridfuzz.harness.group.findings.finding_store import cause_words
from hybridfuzz.harness.group.known import recognition
from hybridfuzz.harness.group.known.fixes import Fixes, apply_fixes
from hybridfuzz.harness.group.known.known_toml import Known, load_known
from hybridfuzz.harness.group.known.recognition import Recognizer, cause_of
from hybridfuzz.harness.group.known.recognize_many import Naming
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patches import Patch
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace

CORPUS = Path(__file__).parents[4] / "corpus"


def violation(event: int) -> Violation:
    return Violation(oracle="S3", event_kind="step", group_kind="mamba", field="conv", event=event)


SYMPTOM, EARLIER, LATER = violation(4), violation(2), violation(9)
NAMES = ("one", "two", "three")


class Engines:
    """Fake workers. A trace shows each of its bugs: "one+two" only where both are there, "early one" earlier,
    "one/two/three" only where not both two and three are patched."""

    def __init__(
        self, bugs: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch, names: Sequence[str] = NAMES
    ) -> None:
        self.bugs = bugs
        self.names = names
        self.started: list[str] = []
        self.ended: list[str] = []
        self.runs = 0
        monkeypatch.setattr(
            recognition, "patched", lambda launch, patches: Launch(",".join(p.name for p in patches), {})
        )

    def open(self, launch: Launch) -> Any:
        return FakeWorker(self, set(launch.python.split(",")))

    def recognizer(self, most: int = 1, *, keeps: bool = False) -> Recognizer:
        entries = tuple(Known(name=name, reason="r", signature="S3-*", patch=f"{name}.patch") for name in self.names)
        patches = tuple(Patch(name, ()) for name in self.names)
        fixes = Fixes(Launch(",".join(self.names), {}), Launch("", {}), entries, patches=patches)
        return Recognizer(fixes, entries, "hybrid", self.open, most, lambda: keeps)


def name_of(one: Trace) -> str:
    return str(getattr(one.events[0], "name", ""))


class FakeWorker:
    def __init__(self, engines: Engines, fixed: set[str]) -> None:
        self._engines, self._fixed = engines, fixed

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self._engines.ended.append(self._lacks)

    @property
    def _lacks(self) -> str:
        return ",".join(sorted(set(self._engines.names) - self._fixed))

    def start(self) -> None:
        self._engines.started.append(self._lacks)

    def stop(self) -> None: ...

    def _hides(self, bug: str) -> bool:
        bug, *others = bug.split("/")
        return bool(self._fixed & set(bug.split("+"))) or (bool(others) and self._fixed >= set(others))

    def run(self, one: Trace) -> Outcome:
        self._engines.runs += 1
        bugs = self._engines.bugs[name_of(one)]
        left = {bug for bug in bugs if not self._hides(bug.removeprefix("early "))}
        early = any(bug.startswith("early") for bug in left)
        found = EARLIER if early else LATER if "later" in left else SYMPTOM if left else None
        return Outcome(found, 1, 1, {}, {}, 0)


def explained(recognizer: Recognizer, names: Sequence[str]) -> list[recognition.Explained]:
    found = [recognizer.explains(make_trace(arrive(name, 3), *steps(6)), SYMPTOM) for name in names]
    return [one for one in found if one]


def prove(recognizer: Recognizer, failures: Sequence[recognition.Explained]) -> dict[str, str]:
    return {name_of(one.trace): cause.name for one, cause in recognizer.prove(failures)}


def names(bugs: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return how failures are settled."""
    recognizer = Engines(bugs, monkeypatch).recognizer()
    left, settled = explained(recognizer, list(bugs)), dict[str, str]()
    for _ in NAMES:
        settled |= prove(recognizer, left)
        left = [one for one in left if name_of(one.trace) not in settled]
    assert not left
    return settled


def test_many_failing_traces_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = {"a": {"two"}, "new": {"unknown"}, "b": {"one"}, "both": {"one+two"}, "c": {"two"}}
    engines = Engines(bugs, monkeypatch)
    failing = [(make_trace(arrive(name, 3), *steps(6)), SYMPTOM) for name in bugs]
    causes = Naming(engines.recognizer).names(failing)
    assert [cause and cause.name for cause in causes] == ["two", None, "one", "", "two"]
    assert len(engines.started) == 1 + 3 + 3, (
        "the engine with all fixes, tests that tell bugs apart, and one for each alone"
    )
    assert Naming(lambda: None).names(failing) == []


def test_a_failure_that_the_fixes_do_not_silence_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({"r0": {"one"}, "r1": {"unknown"}, "r2": {"later"}}, monkeypatch)
    known, further = explained(engines.recognizer(), ["r0", "r1", "r2"])
    assert (name_of(known.trace), name_of(further.trace)) == ("r0", "r2"), "what fails behind it is another failure"
    assert engines.started == [""], "one process for all of them"


@pytest.mark.parametrize(("bugs", "tests"), [(1, 1), (2, 2), (3, 3), (6, 4), (20, 6), (32, 7), (35, 7), (36, 8)])
def test_each_bug_has_its_own_combination_of_few_tests(bugs: int, tests: int) -> None:
    found = recognition.combinations_for(bugs)
    assert len(set(found)) == bugs and len({len(one) for one in found}) == 1
    assert frozenset().union(*found) == frozenset(range(tests))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_test_runs_once_for_all_failures(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({"a": {"two"}, "b": {"two"}, "c": {"one"}, "late": {"three"}}, monkeypatch)
    recognizer = engines.recognizer(keeps=keeps)
    failures = explained(recognizer, ["a", "b", "c"])
    assert prove(recognizer, failures) == {}
    failures += explained(recognizer, ["late"])
    assert prove(recognizer, failures) == {}
    assert prove(recognizer, failures) == {"a": "two", "b": "two", "c": "one"}
    assert prove(recognizer, failures[3:]) == {"late": "three"}, "it lacked the first one"
    assert engines.started == ["", "one", "two", "three", *([] if keeps else ["one"])]
    assert engines.ended == ([] if keeps else ["one", "two", "three", "one"])
    assert engines.runs == 4 + 3 + 4 + 4 + 1
    recognizer.close()
    assert sorted(set(engines.ended)) == ["", "one", "three", "two"], "none is left"


@pytest.mark.parametrize(("most", "started"), [(1, ["one", "two", "three"]), (2, ["two", "one", "three"])])
def test_other_tests_run_meanwhile_as_far_as_they_may(
    most: int, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test runs once, whichever begins beside it."""
    engines = Engines({"a": {"two"}, "b": {"one"}}, monkeypatch)
    recognizer = engines.recognizer(most)
    failures, settled = explained(recognizer, ["a", "b"]), dict[str, str]()
    assert recognizer.prove(failures, begun=lambda: settled.update(prove(recognizer, failures))) == []
    while recognizer.can_prove(failures):
        settled |= prove(recognizer, failures)
    assert settled == {"a": "two", "b": "one"}
    assert engines.started == ["", *started]
    assert recognizer.prove(failures) == [], "nothing waits any more"


def test_an_engine_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({"a": {"two"}}, monkeypatch)
    recognizer = engines.recognizer(keeps=True)
    failures = explained(recognizer, ["a"])

    def fails(*_: object) -> None:
        raise TargetError("no")

    with monkeypatch.context() as patched:
        patched.setattr(FakeWorker, "run", fails)
        with pytest.raises(TargetError):
            recognizer.prove(failures)
    assert engines.ended == ["one"]
    recognizer.prove(failures)
    assert engines.started == ["", "one", "one"]


def test_the_test_that_findings_wait_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({"a": {"two"}, "b": {"two"}}, monkeypatch)
    recognizer = engines.recognizer()
    further, finding = explained(recognizer, ["a", "b"])
    finding.is_finding = True
    finding.results = {frozenset({"one"}): "silent", frozenset({"three"}): "silent"}
    further.results = {frozenset({"two"}): "back"}
    prove(recognizer, [further, finding])
    assert engines.started == ["", "two"]


def test_further_failures_do_not_make_findings_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes ten seconds and a run five, as where each trace needs an engine of its own."""
    engines = Engines({name: {"one"} for name in ("finding", "a", "b", "c", "d", "e")}, monkeypatch)
    recognizer = engines.recognizer()
    failures = explained(recognizer, list(engines.bugs))
    failures[0].is_finding = True
    monkeypatch.setattr(recognition.time, "monotonic", lambda: 10.0 * len(engines.started) + 5.0 * engines.runs)
    recognizer.prove(failures[::-1])
    assert [len(one.results) for one in failures] == [1, 0, 1, 1, 1, 1], "15 seconds, 15 more, and what has begun"


def test_an_engine_that_is_kept_starts_for_findings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({name: {"two"} for name in ("finding", "a", "b")}, monkeypatch)
    recognizer = engines.recognizer(keeps=True)
    failures = explained(recognizer, list(engines.bugs))
    failures[0].is_finding = True
    for tests in ([1, 0, 0], [2, 0, 0], [3, 0, 0], [3, 1, 1]):
        recognizer.prove(failures)
        assert [len(one.results) for one in failures] == tests
    assert engines.started == ["", "one", "two", "three"]
    recognizer.give_up()
    assert sorted(engines.ended) == ["one", "three", "two"]


def test_further_failures_alone_start_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({"a": {"two"}}, monkeypatch)
    recognizer = engines.recognizer(keeps=True)
    further = explained(recognizer, ["a"])
    recognizer.prove(further)
    assert len(further[0].results) == 1 and engines.started == ["", "one"]


def test_engines_end_once_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not another test runs: the workers that fuzz need it."""
    engines, room = Engines({"a": {"two"}, "b": {"one"}}, monkeypatch), [True]
    recognizer = engines.recognizer(keeps=True)
    monkeypatch.setattr(recognizer, "_has_room", lambda: room[0])
    recognizer.prove(explained(recognizer, ["a"]))
    assert engines.ended == []
    room[0] = False
    explained(recognizer, ["b"])
    assert engines.ended == ["one"]


def test_no_bug_is_named_where_none_alone_shows_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = {"both are needed": {"one+two"}, "each shows it": {"one", "two"}, "one of them": {"one"}}
    assert names(bugs, monkeypatch) == {"both are needed": "", "each shows it": "", "one of them": "one"}


MANY = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l")


@pytest.mark.parametrize(
    ("bug", "named"),
    [("a", "a"), ("f/a/b", "f"), ("f/b/g", "f"), ("l/a/h/k", "l"), ("a+f", ""), ("f/e", "")],
    ids=["shown", "kept away by two others", "by two more", "by three others", "two are needed", "by one other"],
)
def test_a_reduced_failure_is_the_bug_whose_patch_alone_silences_it(
    bug: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other patches together may keep it away, too, so that it does not come back where that bug is not patched."""
    engines = Engines({"r0": {bug}}, monkeypatch, MANY)
    recognizer = engines.recognizer()
    [failure] = explained(recognizer, ["r0"])
    failure.tries_few = True
    causes: list[str] = []
    while recognizer.can_prove([failure]):
        causes += prove(recognizer, [failure]).values()
    assert causes == [named]
    assert len(engines.started) <= 1 + 6 + 6 + recognition.ALONE_MAX


def test_tests_with_few_patches_wait_for_those_that_tell_findings_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines({"kept away": {"f/a/b"}, "later": {"a"}}, monkeypatch, MANY)
    recognizer = engines.recognizer()
    first, second = explained(recognizer, ["kept away", "later"])
    first.tries_few = first.is_finding = second.is_finding = True
    many = len(recognition.groups_of(MANY))
    for _ in range(many):
        recognizer.prove([first])
    recognizer.prove([first, second])
    assert (len(first.results), len(second.results)) == (many, 1)
    recognizer.prove([first])
    assert len(first.results) == many + 1


def test_an_earlier_failure_leaves_it_to_the_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs = {"a": {"two", "early three"}, "b": {"two", "early two"}}
    assert names(bugs, monkeypatch) == {"a": "two", "b": ""}, "in no test did b come back"


def test_what_comes_after_the_failure_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = explained(Engines({"a": {"two"}}, monkeypatch).recognizer(), ["a"])
    assert len(one.trace.events) == SYMPTOM.event + 1


def test_number_and_phrase_come_from_the_text_beside_the_patch() -> None:
    known = load_known(CORPUS / "vllm" / "known.toml")
    entry = next(one for one in known if one.title == "inner-state-without-block" and one.releases == ("0.33.0",))
    cause = cause_of(entry)
    assert (cause.name, cause.number) == ("inner-state-without-block", 7)
    assert cause_words(cause).startswith("cause 7, inner-state-without-block (The worker stores a prefill checkpoint")
    assert cause_words(Cause("mine")) == "mine; fix packaged"


def test_an_entry_without_a_patch_names_its_text() -> None:
    known = {entry.title: entry for entry in load_known(CORPUS / "llamacpp" / "known.toml")}
    shared = {cause_of(known[name]).phrase for name in ("save-of-a-new-copy", "checkpoint-of-a-new-copy")}
    assert shared == {"A state that is saved right after a copy is not the copy's"}
    assert cause_of(known["named-slot-that-is-busy"]).number == 12
    assert cause_of(Known(reason="r", name="mine", signature="M2-*")) == Cause("mine")


ENGINE_SOURCE = """\
from hybridfuzz.targets.base.registry import load_factory

SLUG = ":null-as-state-slot"
# between
FACTORY = load_factory(f"hybrid{SLUG}")
"""
PATCH = """\
--- a/mine.py
+++ b/mine.py
@@ -3,2 +3,2 @@
-SLUG = ":null-as-state-slot"
+SLUG = "NEXT"
 # between
"""
KNOWN = """\
[[known]]
name = "first"
reason = "issue 1"
patch = "first.patch"
traces = ["first.json"]
signature = "M4-*-mamba-dead-write"
"""
TARGET = "python:mine:FACTORY"


def test_a_finding_is_like_a_known_bug_that_no_patch_mends(folder: Path) -> None:
    """Nothing proves it, so it is reduced, counts as new, and says that it is like that bug: by the signature of one
    entry, by condition and evidence of another one."""
    [first] = CORPUS.glob("null-as-state-slot--*.json")
    condition = Condition({}, ("now padding rows",))
    alike = Known(name="alike", reason="issue 2", traces=(first.name,), condition=condition, folder=str(CORPUS))
    bare = Known(name="bare", reason="issue 3", signature="M4-*-mamba-dead-write")
    taken = Known(name="taken", reason="issue 4", signature="M4-*-mamba-dead-write", target="vllm*")
    target, said = "hybrid:null-as-state-slot", dict[str, list[str]]()
    launch = prepare(target, print)
    for name, entries in {"alike": (alike, bare), "bare": (bare,), "none": (taken,)}.items():
        settings = Settings(
            target=target,
            launch=launch,
            seed=1,
            out=folder / name,
            packaged=Fixes(launch, launch, entries),
            traces=30,
            canaries=(),
        )
        [ended] = [event for event in Campaign(settings).run() if isinstance(event, CampaignEnded)]
        assert all(one.reduced and not one.known for one in ended.summary.findings)
        said[name] = sorted({one.like for one in ended.summary.findings})
    assert said == {"alike": ["alike (issue 2)", "bare (issue 3)"], "bare": ["bare (issue 3)"], "none": [""]}


def campaign(folder: Path, behind: str, **limit: int) -> tuple[list[Finding], list[str]]:
    """Fuzz an engine with one bug, which the patch of the known bug replaces by another one or by none."""
    import datetime

    (folder / "mine.py").write_text(ENGINE_SOURCE)
    (folder / "known.toml").write_text(KNOWN)
    (folder / "first.patch").write_text(PATCH.replace("NEXT", behind))
    [first] = CORPUS.glob("null-as-state-slot--*.json")
    (folder / "first.json").write_bytes(first.read_bytes())
    launch = prepare(TARGET, print)
    fixes = apply_fixes(launch, load_known(folder / "known.toml"), TARGET, datetime.date.today())
    settings = Settings(
        target=TARGET, launch=launch, seed=1, out=folder / "out", packaged=fixes, **(limit or {"traces": 12})
    )
    events = list(Campaign(settings).run())
    [ended] = [event for event in events if isinstance(event, CampaignEnded)]
    assert all(one.count == sum(one.symptoms.values()) > one.unsorted for one in ended.summary.findings)
    return list(ended.summary.findings), [one.finding.id for one in events if isinstance(one, Recognized)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("limit", [{"traces": 12}, {"steps": 500}])
def test_a_campaign_names_a_known_bug_and_does_not_reduce_it(folder: Path, limit: dict[str, int]) -> None:
    """At a number of steps the test was ended that was about to name it."""
    findings, announced = campaign(folder, "", **limit)
    [known] = [one for one in findings if one.cause and one.cause.name == "first"]
    assert announced == [known.id], "once"
    assert (known.reduced, known.reproduced, known.known) == (False, True, ""), "it is in nobody's list"
    assert known.count > 1 and len(findings) == 1, "whatever its symptoms, it is one finding"
    assert "Known: first; fix packaged" in Path(known.trace).with_suffix(".txt").read_text()


def test_a_new_bug_with_the_symptom_of_a_known_one_is_reduced(folder: Path) -> None:
    """With the patch the trace fails all the same."""
    findings, announced = campaign(folder, ":null-as-state-slot")
    assert not announced and all(one.reduced and one.cause is None for one in findings)
