"""Bisection: a release known to fail, the ends, then the middle; nothing is concluded about what was not tried."""

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from cli_process import Cli
from msgspec import structs
from support import arrive, make_trace

from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.face.commands.bisect import conclusions, named_by, signature_of_finding
from hybridfuzz.harness.group.findings.finding_store import FindingStore
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.verdict import Quoted
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.tell.bisect import Nearest, Tried, bisect, changes
from hybridfuzz.harness.tell.commits import commits_between, subject, worktree
from hybridfuzz.harness.workers.messages import Ported
from hybridfuzz.targets.base.pip import versions_between
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import Trace, TraceError

RELEASES = [f"0.{number}" for number in range(9)]


def releases(states: str) -> Callable[[str], Outcome]:
    """b bad, g good, o another failure first, n cannot be had, m does not fit the adapter."""

    def attempt(release: str) -> Outcome:
        state = states[RELEASES.index(release)]
        if state == "n":
            raise TargetError("no such thing")
        violation = {
            "b": Violation("S3", "x", "S3: x"),
            "o": Violation("CRASH", "y", "CRASH: y"),
            "m": Violation(
                "ADAPTER", "AttributeError-view", details={"error": Quoted("x"), "where": Quoted("y"), "moved": "yes"}
            ),
        }.get(state)
        return Outcome(violation, 1, 1, {}, {}, 0)

    return attempt


def results(states: str, *, first: str = "", everything: bool = False) -> dict[str, Tried]:
    found = bisect(RELEASES[: len(states)], "S3-x", releases(states), first=first, everything=everything)
    return {one.release: one for one in found}


@pytest.mark.parametrize("first_good", range(1, 9))
def test_finds_the_first_good_release_in_few_steps(first_good: int) -> None:
    tried = results("b" * first_good + "g" * (9 - first_good))
    [change] = changes(RELEASES, tried)
    assert (change.before, change.after, change.kind) == (f"0.{first_good - 1}", f"0.{first_good}", "fixed")
    assert change.open == []
    assert len(tried) <= 5


def test_finds_where_it_was_introduced() -> None:
    [change] = changes(RELEASES, results("gggggbbbb"))
    assert (change.before, change.after, change.kind) == ("0.4", "0.5", "introduced")


def test_equal_ends_say_nothing_about_the_middle() -> None:
    tried = results("bbbbggbbb")
    assert tried.keys() == {"0.0", "0.8"}
    assert changes(RELEASES, tried) == []
    everything = changes(RELEASES, results("bbbbggbbb", everything=True))
    assert [(one.after, one.kind) for one in everything] == [("0.4", "fixed"), ("0.6", "introduced")]


@pytest.mark.parametrize("states", ["nbbbnnggo", "obbnoongn", "bnnnnnnng"])
def test_what_cannot_be_asked_is_stepped_over(states: str) -> None:
    tried = results(states)
    [change] = [one for one in changes(RELEASES, tried) if one.kind != "other"]
    assert tried[change.before].state == "bad"
    assert tried[change.after].state == "good"
    between = states[RELEASES.index(change.before) + 1 : RELEASES.index(change.after)]
    assert set(between) <= {"n", "o"}
    assert change.open == []


@pytest.mark.parametrize(
    ("states", "first"),
    [("nnnbbgggg", "0.4"), ("nnnbbgggg", ""), ("ggggbgggg", ""), ("nnnnnbnnn", "0.5"), ("nnnnnbnnn", "")],
)
def test_a_failure_in_the_middle_is_found(states: str, first: str) -> None:
    tried = results(states, first=first)
    bad = [release for release, state in zip(RELEASES, states, strict=True) if state == "b"]
    assert {tried[release].state for release in bad} == {"bad"}
    assert not first or (next(iter(tried)) == first)
    for change in changes(RELEASES, tried):
        assert change.open == []


def test_releases_that_refuse_the_configuration_are_halved() -> None:
    assert len(results("nnnnnbbgg", first="0.6")) <= 7


def test_where_one_failure_gives_way_to_another_is_found() -> None:
    tried = results("nnbbboooo", first="0.3")
    [change] = changes(RELEASES, tried)
    assert (change.before, change.after, change.kind, change.open) == ("0.4", "0.5", "other", [])
    tried = results("bbbbogggg")
    found = {(one.before, one.after, one.kind) for one in changes(RELEASES, tried)}
    assert ("0.3", "0.4", "other") in found
    assert ("0.3", "0.5", "fixed") in found
    [other] = [line for line in conclusions(RELEASES, tried, changes(RELEASES, tried)) if line.startswith("last bad")]
    assert other == "last bad: 0.3 (0.4 fails differently: CRASH-y)"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("0.18.1--null-as-state-slot--S2-step-mamba-temporal", ("0.18.1", "S2-step-mamba-temporal")),
        ("null-as-state-slot--M4-step-mamba", ("", "M4-step-mamba")),
        ("0.18.1--cause--CRASH-step-AssertionError-build", ("0.18.1", "CRASH-step-AssertionError-build")),
        ("small", ("", "")),
        ("S3-step-mamba-temporal.2", ("", "")),
    ],
)
def test_a_corpus_names_the_release_and_the_signature(name: str, known: tuple[str, str]) -> None:
    assert named_by(Path(f"{name}.json")) == known


def test_the_signature_is_that_of_the_finding_and_not_its_name(tmp_path: Path) -> None:
    """A further cause has ".2" in its name, an exception in a generator has its brackets replaced, a long name is cut:
    no release fails like that."""
    store, signatures = FindingStore(tmp_path, "hybrid"), ("S3-step-x", "S3-step-x", "CRASH-step-E-<genexpr", "S" * 200)
    paths = []
    for field in signatures:
        finding, _ = store.claim(Violation(field, "", told="It fails."), 0, make_trace(arrive("r0", 3)))
        paths.append(Path(finding.trace))
    assert [path.stem for path in paths] != list(signatures)
    assert signature_of_finding(paths[0]) == "", "there is no state yet"
    store.save_state(Summary("hybrid", "", 1, {}, None, 1, 1, 1.0, [*store.findings.values()], {}, {}, [], []))
    assert [signature_of_finding(path) for path in paths] == list(signatures)
    store.add_trace("S3-step-x", make_trace(arrive("r0", 3)))
    assert signature_of_finding(tmp_path / "findings/S3-step-x.also-1.json") == "", "it may fail in another way"


def test_without_a_signature_the_first_failure_is_looked_for() -> None:
    tried = {one.release: one for one in bisect(RELEASES, "", releases("nggggobbb"))}
    assert [change.after for change in changes(RELEASES, tried)] == ["0.6", "0.6"]
    assert tried["0.8"].state == "bad" and tried["0.5"].state == "other"


def test_a_signature_in_a_file_name_has_its_brackets_replaced() -> None:
    violation = Violation("CRASH", "E-<genexpr", "CRASH: no")
    [tried] = bisect(["1"], "CRASH-E-_genexpr", lambda release: Outcome(violation, 1, 1, {}, {}, 0))
    assert tried.state == "bad"


def test_nothing_can_be_asked() -> None:
    tried = results("nnnon")
    assert len(tried) == 5
    assert changes(RELEASES[:5], tried) == []
    assert tried["0.0"].detail == "no such thing"


def test_what_does_not_fit_the_adapter_is_stepped_over() -> None:
    """It counted as another failure, beside which nothing can be concluded."""
    tried = results("ggmmmbb")
    assert {one.release: one.state for one in tried.values() if one.state == "not applicable"}
    assert "other" not in {one.state for one in tried.values()}
    assert tried["0.3"].detail == "the adapter does not fit: x at y"
    [change] = changes(RELEASES[:7], tried)
    assert (change.before, change.after, change.kind) == ("0.1", "0.5", "introduced")
    said = conclusions(RELEASES[:7], tried, [change])[0]
    assert said.startswith("first bad: 0.5 (0.1 is good)")
    assert said.endswith("between them, and not decisive: 0.2, 0.3, 0.4"), "one of them may be the first"


def test_versions_between_are_in_order_and_final() -> None:
    listed = "vllm (0.10.0)\nAvailable versions: 0.10.0, 0.9.2, 0.9.1rc1, 0.9.1, 0.9.0, 0.8.0\n  INSTALLED: 0.9.0"
    assert versions_between(listed, "0.9.0", "0.10.0") == ["0.9.0", "0.9.1", "0.9.2", "0.10.0"]
    with pytest.raises(TargetError, match=r"1\.0"):
        versions_between(listed, "0.9.0", "1.0")
    with pytest.raises(TargetError, match="name the older release first"):
        versions_between(listed, "0.10.0", "0.9.0")


@pytest.mark.parametrize(
    ("target", "versions", "words"),
    [
        ("hybrid", "1..2", "has no releases; engines that have: llamacpp, sglang, transformers, vllm"),
        ("hybrid", "1,2", "has no releases"),
        ("vlm", "1,2", "did you mean vllm?"),
        ("vllm@0.33.0", "1,2", "give vllm and name the releases with --versions"),
        ("vllm", ",", "names no release"),
    ],
)
def test_what_cannot_be_bisected(hybridfuzz: Cli, target: str, versions: str, words: str) -> None:
    trace = min((Path(__file__).parents[3] / "corpus" / "vllm").glob("*.json"))
    ran = hybridfuzz("bisect", trace, "--target", target, "--versions", versions)
    assert ran.status == 2
    assert words in ran.error


def test_bisecting_no_trace(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("bisect", "nowhere.json", "--target", "vllm", "--versions", "1,2")
    assert ran.status == 2
    assert "nowhere.json" in ran.error


class Release:
    """A worker on a release that has some options, and fails for a trace with all of `needed`."""

    def __init__(self, has: set[str], needed: set[str]) -> None:
        self.has, self.needed = has, needed

    def run(self, trace: Trace) -> Outcome:
        if strange := trace.config.options.keys() - self.has:
            raise TraceError(f"there is no option {min(strange)}")
        fails = self.needed <= trace.config.options.keys()
        return Outcome(Violation("S3", "x", "S3: x") if fails else None, 1, 1, {}, {}, 0)

    def port(self, trace: Trace) -> Ported:
        options = {name: value for name, value in trace.config.options.items() if name in self.has}
        gone = sorted(trace.config.options.keys() - self.has)
        return Ported(structs.replace(trace, config=structs.replace(trace.config, options=options)), tuple(gone))


def nearest(among: dict[str, Release], *options: str) -> tuple[dict[str, str], Nearest]:
    """Run a trace with options on releases, the last one first. Return the states."""
    trace = make_trace(arrive("r0", 3))
    trace = structs.replace(trace, config=structs.replace(trace.config, options=dict.fromkeys(options, "1")))
    attempt = Nearest(trace, "", lambda name: nullcontext(among[name]))
    names = list(among)
    return {one.release: one.state for one in bisect(names, "", attempt, first=names[-1], everything=False)}, attempt


def test_an_option_that_the_failure_does_not_need_is_left_out() -> None:
    """A release without it was not decisive."""
    old, new = {"runner"}, {"runner", "data_parallel"}
    among = {"1": Release(old, {"absent"}), "2": Release(old, {"runner"}), "3": Release(new, {"runner"})}
    states, attempt = nearest(among, "runner", "data_parallel")
    assert states == {"1": "good", "2": "bad", "3": "bad"}
    assert attempt.changes == {"1": ("data_parallel",), "2": ("data_parallel",)}


def test_one_that_it_needs_is_not() -> None:
    """Without the option any release is clean: that proves nothing."""
    among = {"1": Release({"runner"}, {"absent"}), "2": Release({"runner", "drafts"}, {"drafts"})}
    states, attempt = nearest(among, "runner", "drafts")
    assert states == {"1": "not applicable", "2": "bad"} and not attempt.changes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with five commits."""
    author = ("-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "gc.auto=0")
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    for number in range(5):
        (tmp_path / "engine.py").write_text(f"NUMBER = {number}\n")
        for command in (["add", "-A"], [*author, "commit", "-q", "-m", f"Commit {number}"]):
            subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_the_commits_of_a_checkout(repository: Path) -> None:
    commits = commits_between(repository, "main~3", "main")
    assert [subject(repository, one) for one in commits] == [f"Commit {number}" for number in range(1, 5)]
    with worktree(repository, commits[1]) as tree:
        assert (tree / "engine.py").read_text() == "NUMBER = 2\n"
    assert not tree.exists()
    left = subprocess.run(["git", "-C", repository, "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(left.stdout.splitlines()) == 1
    assert (repository / "engine.py").read_text() == "NUMBER = 4\n", "the checkout itself is left alone"


@pytest.mark.parametrize(
    ("good", "bad", "words"), [("main", "main~1", "name the older one"), ("no", "main", "git knows no commit")]
)
def test_commits_that_cannot_be_bisected(repository: Path, good: str, bad: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        commits_between(repository, good, bad)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--good", "a"], "need both --good and --bad"),
        (["--good", "a", "--bad", "b", "--versions", "1,2"], "no --versions"),
        (["--good", "a", "--bad", "b"], "is no checkout"),
        ([], "name releases with --versions A..B, or commits"),
    ],
)
def test_releases_or_commits(hybridfuzz: Cli, given: list[str], words: str) -> None:
    trace = min((Path(__file__).parents[3] / "corpus" / "vllm").glob("*.json"))
    ran = hybridfuzz("bisect", trace, "--target", "vllm", *given)
    assert ran.status == 2
    assert words in ran.error
