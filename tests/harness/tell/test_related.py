"""The known bug that a report is about, and what that names."""

import re
from pathlib import Path

from msgspec import structs

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.known.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.tell.related import other_fixes, packaged_trace, public_reports, related, title_of

CORPUS = Path(__file__).parents[3] / "corpus" / "vllm"
LLAMACPP = CORPUS.parent / "llamacpp"


def test_the_known_bug_of_a_trace() -> None:
    [path] = CORPUS.glob("0.33.0--published-then-preempted--*.json")
    found = related("vllm@0.33.0", "0.33.0", load_trace(path))
    assert found and found.name == "published-then-preempted"
    assert "+++ b/vllm/v1/core" in found.patch
    assert public_reports(found) == ["#57580", "#43569", "#56525"]


def test_the_text_of_a_known_bug_comes_along() -> None:
    """Reports said what happened and never why, although the text beside the patch does."""
    [path] = CORPUS.glob("0.33.0--published-then-preempted--*.json")
    found = related("vllm@0.33.0", "0.33.0", load_trace(path))
    assert found and found.cause
    assert found.cause.title.startswith("Keys of a request") and found.cause.public.startswith("#57580 (open)")
    assert "| --- |" not in found.cause.body and "](../" not in found.cause.body
    assert "**Fix.**" in found.cause.body


def test_a_text_names_no_cause_by_our_number() -> None:
    """A report said "Cause 10 is the same node in another place"."""
    [path] = CORPUS.parent.glob("sglang/0.5.23--abort-behind-a-pause--*.json")
    found = related("sglang@0.5.23", "0.5.23", load_trace(path))
    assert found and found.cause
    assert 'another defect ("' in found.cause.body
    assert not re.search(r"[Cc]ause \d", found.cause.body)


def test_an_entry_without_a_patch_has_a_text_too() -> None:
    """A release of llama.cpp is a binary; reports on it did not say why something fails, nor what is public."""
    [path] = LLAMACPP.glob("*--roll-back-past-the-newest-batch--*.json")
    target, release = "llamacpp@2026.10.11549", "2026.10.11549"
    found = related(target, release, load_trace(path))
    assert found and not found.patch and found.cause
    assert found.cause.title.startswith("seq_rm agrees") and found.cause.public.startswith("#29117 (closed")
    assert "n_written" in found.cause.body


def test_the_packaged_trace_of_a_bug_is_of_this_release_and_nearest_to_the_failure() -> None:
    def stem(name: str, signature: str) -> str:
        found = packaged_trace("vllm@0.33.0", "0.33.0", name, signature)
        every = {path.stem: load_trace(path) for path in CORPUS.glob("*.json")}
        return next((one for one, trace in every.items() if trace == found), "")

    by_signature = stem("prompt-as-decode", "S6-step-sampled")
    assert by_signature == "0.33.0--prompt-as-decode-v1--S6-step-sampled"
    assert stem("prompt-as-decode", "S3-step-mamba-temporal").endswith("S3-step-mamba-state-ignored"), "of its rule"
    assert stem("loads-wait-for-each-other", "M7-step-blocks").startswith("0.33.0--loads-wait-for-each-other")
    assert stem("no-such-bug", "S6-step-sampled") == ""


def test_other_traces_of_a_cause_are_named() -> None:
    """Two packaged traces of one defect made two reports."""
    folder = CORPUS.parent / "transformers"
    for call, other in (("reset", "reorder"), ("beams", "reset")):
        [path] = folder.glob(f"*--falcon-h1-{call}-of-a-prefetched-layer--*.json")
        found = related("transformers@5.24.0", "5.24.0", load_trace(path))
        assert found and found.others == [f"CRASH-{other}-EngineError-unfinished_copy"]
    for path in LLAMACPP.glob("*--shift-of-shared-cells--*.json"):
        shared = related("llamacpp@2026.10.11549", "2026.10.11549", load_trace(path))
        assert shared and shared.others, "the other entry has the same text"


def test_two_entries_may_share_a_text() -> None:
    found = [
        related("llamacpp@2026.10.11549", "2026.10.11549", load_trace(path))
        for path in LLAMACPP.glob("*--shift-of-shared-cells--*.json")
    ]
    assert {one and one.name for one in found} == {"shift-of-shared-cells", "shift-of-shared-cells-answers"}
    first, second = found
    assert first and second and first.cause and first.cause == second.cause


def test_what_a_campaign_recognized_and_what_another_release_has() -> None:
    """A packaged trace is the same bug in whatever release it fails, also if its patch is not made for that."""
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    other = structs.replace(load_trace(path), events=load_trace(path).events[:-1])
    found = related("vllm@0.33.0", "0.33.0", other, "unscheduled-row")
    assert found and found.patch and found.cause
    earlier = related("vllm@0.32.0", "0.32.0", load_trace(path))
    assert earlier and earlier.cause and not earlier.patch, "the patch is of 0.33.0"


def test_the_same_symptom_is_no_certainty() -> None:
    """Reports listed entries of the same signature, which a maintainer took for duplicates."""
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    other = structs.replace(load_trace(path), events=load_trace(path).events[:-1])
    assert related("vllm@0.33.0", "0.33.0", other) is None


def test_an_engine_without_known_bugs() -> None:
    [path] = CORPUS.glob("0.33.0--unscheduled-row-v1--*.json")
    assert related("hybrid", "", load_trace(path)) is None
    assert related("python:some:THING", "", load_trace(path)) is None


def test_other_causes_are_told_by_their_titles() -> None:
    """ "(cause 1)" and "(S4)" stood in reports: numbers of our pages, and ids of our rules."""
    [path] = CORPUS.glob("0.33.0--session-behind-stop-v2--*.json")
    found = related("vllm@0.33.0", "0.33.0", load_trace(path))
    assert found and found.cause and 'another defect ("' in found.cause.body
    for engine, release in (("vllm", "0.33.0"), ("sglang", "0.5.23"), ("transformers", "5.23.0")):
        spec = f"{engine}@{release}"
        for entry in read_fixes(BUILTIN, spec):
            for trace in entry.read_traces()[:1] if release in entry.releases else ():
                one = related(spec, release, trace, entry.title)
                assert one and one.cause
                assert not re.search(r"\bcauses? \d|\([MS]\d\b", one.cause.body), one.name


def test_the_patches_of_like_bugs_come_first() -> None:
    """Behind its patch a failure met another packaged bug, and the report said that the patch does not fix it."""
    found = other_fixes("transformers@5.24.0", "5.24.0", "offload-waits", "CRASH-reorder-EngineError-two_devices")
    assert found[0].title == "offload-states-stay" and all(one.patch for one in found)
    assert "offload-waits" not in [one.title for one in found]
    assert title_of(found[0]).startswith("States of layers with both halves")
    assert other_fixes("python:some:THING", "", "", "S1") == []
