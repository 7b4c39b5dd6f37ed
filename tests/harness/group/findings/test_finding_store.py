"""The folder of findings: nothing is lost, nothing contradicts, and a state file cannot point out of the folder."""

import itertools
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.campaign_summary import Finding, Reach, Severity, Summary
from hybridfuzz.harness.draw.trace_files import file_name, load_trace
from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence
from hybridfuzz.harness.group.findings import finding_store as module
from hybridfuzz.harness.group.findings.finding_store import STATE_FILE, FindingStore, read_state, trace_path
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.history import History
from hybridfuzz.targets.base.trace import Trace, TraceError

VIOLATION = Violation("M4", "dead-write", "M4: wrong (step 1)", event_kind="step", group_kind="mamba")
SIGNATURE = VIOLATION.signature


def trace(events: int) -> Trace:
    return make_trace(arrive("r0", 9), *steps(events - 1))


def summary(*findings: Finding) -> Summary:
    return Summary("hybrid", "", 1, {}, None, 10, 100, 1.0, findings, {}, {}, [], [])


def open_store(folder: Path) -> FindingStore:
    store = FindingStore(folder, "hybrid")
    if state := read_state(folder):
        store.resume(state.findings)
    return store


def check_folder(folder: Path, seen: list[int]) -> None:
    """Files of one finding agree, and traces only get shorter."""
    for path in (folder / "findings").glob("*.json"):
        events = len(load_trace(path).events)
        text = path.with_suffix(".txt")
        if text.exists():
            assert f"{events} events." in text.read_text(), "the text is about this trace"
        history = path.with_suffix(".history")
        if history.exists():
            assert text.exists() and "why" in text.read_text(), "a history has its explanation beside it"
    main = folder / "findings" / f"{file_name(SIGNATURE)}.json"
    if main.exists():
        seen.append(len(load_trace(main).events))
    assert seen == sorted(seen, reverse=True), "on disk a trace only gets shorter"


class Killed(BaseException):
    """SIGKILL, for a test: nothing after it runs."""


def investigate(store: FindingStore) -> None:
    """A whole life of a finding."""
    assert store.claim(VIOLATION, 0, trace(9), "")
    store.save_state(summary(*store.findings.values()))
    store.improve(SIGNATURE, trace(6), VIOLATION)
    store.improve(SIGNATURE, trace(3), None)
    store.explain(SIGNATURE, VIOLATION, History(violation=VIOLATION), "why", "what")
    store.settle(SIGNATURE, reproduced=True, shown=3, tried=3)
    store.save_state(summary(*store.findings.values()))


@pytest.mark.parametrize("earlier", [0, 4])
def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: int) -> None:
    """Before each of its writes and removals, with and without a shorter trace of an earlier campaign."""
    for moment in itertools.count():
        folder, seen = tmp_path / str(moment), list[int]()
        if earlier:
            first = open_store(folder)
            first.claim(VIOLATION, 0, trace(earlier), "")
            first.save_state(summary(*first.findings.values()))
        left = iter(range(moment + 3))

        def dying(call: Any, left: Any = left) -> Any:
            def wrapped(*arguments: Any, **keywords: Any) -> Any:
                if next(left, None) is None:
                    raise Killed
                return call(*arguments, **keywords)

            return wrapped

        store = FindingStore(folder, "hybrid")
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_atomically", dying(module.write_atomically))
            patch.setattr(module, "save_trace", dying(module.save_trace))
            patch.setattr(Path, "unlink", dying(Path.unlink))
            patch.setattr(Path, "replace", dying(Path.replace))
            try:
                investigate(store)
                ended = True
            except Killed:
                ended = False
        check_folder(folder, seen)
        resumed = open_store(folder)
        check_folder(folder, seen)
        for finding in resumed.findings.values():
            assert finding.events == len(load_trace(finding.trace).events), "the state is about the trace on disk"
            assert Path(finding.trace).with_suffix(".txt").exists(), "a missing text is written when it resumes"
        if (folder / STATE_FILE).exists():
            assert resumed.count(VIOLATION), "a finding that was in the state stays in it"
        else:  # the trace was not counted yet: it runs again
            assert resumed.count(VIOLATION) is None
            resumed.claim(VIOLATION, 0, trace(9), "")
        check_folder(folder, seen)
        if ended:
            assert moment > 10
            return


def test_a_shorter_trace_of_an_earlier_campaign_stays_until_it_is_decided(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.claim(VIOLATION, 0, trace(3), "")
    main = tmp_path / "findings" / f"{file_name(SIGNATURE)}.json"
    for fails_again in (True, False):
        store = FindingStore(tmp_path, "hybrid")
        claimed = store.claim(VIOLATION, 5, trace(8), "")
        assert claimed
        finding, earlier = claimed
        assert earlier and len(earlier.events) == 3 == len(load_trace(main).events)
        assert len(load_trace(finding.trace).events) == 8
        if fails_again:
            store.improve(SIGNATURE, earlier, VIOLATION)
        settled = store.settle(SIGNATURE, reproduced=True, shown=1, tried=1)
        assert settled.trace == str(main)
        assert len(load_trace(main).events) == settled.events == (3 if fails_again else 8)
        assert [path.name for path in (tmp_path / "findings").glob("*.json")] == [main.name]


@pytest.mark.parametrize(
    "named", ["/etc/passwd", "../x.json", "findings/other.json", "findings/../../x.json", "", "findings", "x.json"]
)
def test_a_state_file_cannot_name_other_files(tmp_path: Path, named: str) -> None:
    with pytest.raises(TraceError, match=r"is not a trace in findings/"):
        trace_path(tmp_path, SIGNATURE, named)
    finding = Finding(SIGNATURE, "M4", "M4: x", 1, 1, 1, named, 0)
    (tmp_path / "campaign.json").write_bytes(msgspec.json.encode(summary(finding)))
    with pytest.raises(TraceError, match=r"campaign\.json: finding"):
        read_state(tmp_path)


def test_a_folder_that_was_moved_is_read_where_it_is(tmp_path: Path) -> None:
    store = open_store(tmp_path / "here")
    store.claim(VIOLATION, 0, trace(3), "")
    store.save_state(summary(*store.findings.values()))
    (tmp_path / "here").rename(tmp_path / "there")
    state = read_state(tmp_path / "there")
    assert state
    [finding] = state.findings
    assert finding.trace == str(tmp_path / "there" / "findings" / f"{file_name(SIGNATURE)}.json")


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, '{"target": 3}', "\xff"])
def test_a_broken_state_is_one_line_with_a_cure(tmp_path: Path, text: str) -> None:
    (tmp_path / "campaign.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError) as raised:
        read_state(tmp_path)
    assert "\n" not in str(raised.value)
    assert "move it away" in str(raised.value)


def test_names_of_files_are_harmless() -> None:
    for signature in ("../../x", "/etc/passwd", "a b\nc", "x" * 500, "ü\x00"):
        name = file_name(signature)
        assert "/" not in name and "\x00" not in name and len(name) <= 120
    assert json.loads(json.dumps(file_name("M4-step"))) == "M4-step"


def evidence_of(signature: str) -> FindingEvidence:
    return FindingEvidence([Evidence(signature)])


def test_a_trace_counts_unsorted_until_it_is_sorted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.claim(VIOLATION, 0, trace(3))
    counted = store.count(VIOLATION)
    assert counted and (counted.count, counted.unsorted) == (2, 1)
    own = store.split(counted.id, VIOLATION, 1, trace(2))
    assert own.id == f"{SIGNATURE}.2"
    assert [(one.count, one.unsorted, dict(one.symptoms)) for one in store.findings.values()] == [
        (1, 0, {SIGNATURE: 1}),
        (1, 0, {SIGNATURE: 1}),
    ]
    assert store.count(VIOLATION)
    assert store.holder(own.id, SIGNATURE) == SIGNATURE, "the other one counts none that is unsorted"
    moved = store.sort(SIGNATURE, SIGNATURE, own.id)
    assert (moved.count, store.findings[SIGNATURE].count, store.findings[SIGNATURE].unsorted) == (2, 1, 0)


def test_merged_findings_lose_no_count_and_leave_no_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.claim(VIOLATION, 0, trace(3))
    other = msgspec.structs.replace(VIOLATION, field="other")
    store.claim(other, 1, trace(2))
    store.learn(other.signature, evidence_of(other.signature))
    store.add_trace(other.signature, trace(4))
    gone, kept = store.merge(other.signature, SIGNATURE)
    store.save_state(summary(*store.findings.values()))
    store.remove(gone)
    assert (kept.count, dict(kept.symptoms)) == (2, {SIGNATURE: 1, other.signature: 1})
    assert {path.name for path in (tmp_path / "findings").iterdir()} == {f"{SIGNATURE}.json", f"{SIGNATURE}.txt"}
    assert store.count(other), "its symptom counts for the finding that is left"
    assert store.holder(other.signature, other.signature) == SIGNATURE, "a trace that waits is sorted out of it"
    assert store.holder("gone", "never-seen") == ""
    assert store.claim(other, 2, trace(2))[0].id == f"{other.signature}.2", (
        "the name that was announced is not used again"
    )


def test_a_later_campaign_gives_the_same_cause_the_same_name(tmp_path: Path) -> None:
    first = open_store(tmp_path)
    first.claim(VIOLATION, 0, trace(3))
    first.learn(SIGNATURE, evidence_of(SIGNATURE))
    later = FindingStore(tmp_path, "hybrid")
    assert later.evidence[SIGNATURE].evidence[0].signature == SIGNATURE
    claimed, _ = later.claim(VIOLATION, 0, trace(5))
    assert claimed.id == f"{SIGNATURE}.2", "until its evidence is there it may be another cause"
    gone, kept = later.merge(claimed.id, SIGNATURE)
    later.remove(gone)
    assert (kept.id, kept.events) == (SIGNATURE, 3)
    assert not list((tmp_path / "findings").glob("*.2.*"))


def test_further_traces_are_read_back_and_cannot_name_other_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.claim(VIOLATION, 0, trace(3))
    finding = store.add_trace(SIGNATURE, trace(2))
    assert [Path(extra).name for extra in finding.extras] == [f"{SIGNATURE}.also-1.json"]
    store.save_state(summary(finding))
    state = read_state(tmp_path)
    assert state and list(state.findings[0].extras) == list(finding.extras)
    (tmp_path / "campaign.json").write_bytes(
        msgspec.json.encode(summary(msgspec.structs.replace(finding, extras=["findings/other.json"])))
    )
    with pytest.raises(TraceError, match="is not a trace in findings/"):
        read_state(tmp_path)


@pytest.mark.parametrize("inner", ["findings", "parts/one"])
def test_a_folder_is_not_made_through_a_link(tmp_path: Path, inner: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / inner.partition("/")[0]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(module.OutputError, match="is a symbolic link"):
        module.make_folder(tmp_path / "out", inner)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    "done, beyond",
    [(0, [[5, 5]]), (0, [[7, 5]]), (0, [[2, 5], [4, 9]]), (0, [[6, 9], [2, 5]]), (3, [[2, 5]]), (-1, []), (9**19, [])],
)
def test_counted_traces_that_no_campaign_writes(tmp_path: Path, done: int, beyond: list[list[int]]) -> None:
    FindingStore(tmp_path, "hybrid").save_state(summary())
    state = json.loads((tmp_path / "campaign.json").read_text())
    (tmp_path / "campaign.json").write_text(json.dumps({**state, "done": 1, "beyond": [[2, 5], [6, 9]]}))
    assert read_state(tmp_path)
    (tmp_path / "campaign.json").write_text(json.dumps({**state, "done": done, "beyond": beyond}))
    with pytest.raises(TraceError, match=r"campaign\.json: (done, )?beyond: .*; move it away"):
        read_state(tmp_path)


def test_a_severity_stands_behind_the_message_and_stays_with_a_cause(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, _ = store.claim(VIOLATION, 0, trace(3), "")
    store.explain(first.id, VIOLATION, History(), "Explanation: because\n\nof this", "A phrase")
    near, far = Severity("P1", "hang", Reach()), Severity("P2", "hang", Reach(("--x",)))
    for _ in range(2):
        store.grade(first.id, far)
    text = Path(first.trace).with_suffix(".txt").read_text()
    _, message, severity, *rest = text.split("\n\n")
    assert severity == "Severity: P2, hang; needs --x" and "of this" in rest[-1] and message == VIOLATION.message
    other, _ = store.claim(VIOLATION, 1, trace(5), "")
    Path(other.trace).with_suffix(".txt").unlink(missing_ok=True)
    os.mkfifo(Path(other.trace).with_suffix(".txt"))
    store.grade(other.id, near)  # which is not waited for
    _, kept = store.merge(other.id, first.id)
    assert kept.severity == near


def test_a_merged_finding_s_shorter_trace_brings_its_words_along(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    later = msgspec.structs.replace(VIOLATION, step=7)
    store.claim(VIOLATION, 0, trace(3))
    store.claim(later, 1, trace(2))
    gone, _ = store.merge(store.split(SIGNATURE, later, 1, trace(2)).id, SIGNATURE)
    store.adopt(SIGNATURE, gone, trace(2))
    kept = store.findings[SIGNATURE]
    assert (kept.events, kept.step, kept.message) == (2, 7, gone.message)
    assert len(load_trace(kept.trace).events) == 2


def test_the_trace_of_another_symptom_takes_no_place(tmp_path: Path) -> None:
    """A hang was told of the trace of a leak: the two had one cause, and the leak's trace was shorter."""
    store = open_store(tmp_path)
    leak = msgspec.structs.replace(VIOLATION, field="other", step=7)
    store.claim(VIOLATION, 0, trace(3))
    store.claim(leak, 1, trace(2))
    gone, _ = store.merge(leak.signature, SIGNATURE)
    store.adopt(SIGNATURE, gone, trace(2))
    kept = store.findings[SIGNATURE]
    assert (kept.events, kept.step, len(load_trace(kept.trace).events)) == (3, VIOLATION.step, 3)
