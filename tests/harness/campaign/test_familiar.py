"""Failing traces that look like those which a known bug has explained are told from others."""

from support import arrive, make_trace, steps

from hybridfuzz.harness.campaign.familiar import Familiar
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.trace import Abort, ResetPrefixCache

ABORTED = make_trace(arrive("r0", 30), *steps(1), Abort("r0"), *steps(1), num_blocks=40)
RESET = make_trace(arrive("r0", 30), *steps(1), ResetPrefixCache(), *steps(1), num_blocks=40)
BOTH = make_trace(arrive("r0", 30), Abort("r0"), ResetPrefixCache(), *steps(1), num_blocks=40)


def at(event: int, field: str = "conv") -> Violation:
    return Violation("S3", field, event_kind="step", group_kind="mamba", event=event)


def test_a_trace_with_all_that_the_others_have_in_common_is_familiar() -> None:
    """Whatever else it has."""
    familiar = Familiar()
    assert not familiar.has(ABORTED, at(3))
    familiar.learn("a bug of aborts", ABORTED, at(3))
    assert familiar.has(BOTH, at(3)) and not familiar.has(RESET, at(3))
    familiar.learn("a bug of aborts", BOTH, at(3))
    assert familiar.has(ABORTED, at(3)) and not familiar.has(RESET, at(3))


def test_what_comes_behind_the_failing_event_does_not_count() -> None:
    familiar = Familiar()
    familiar.learn("a bug of resets", RESET, at(3))
    assert not familiar.has(RESET, at(1)), "it failed before the reset"


def test_a_bug_is_expected_only_behind_signatures_that_it_has_shown() -> None:
    familiar = Familiar()
    familiar.learn("a bug of aborts", ABORTED, at(3))
    assert not familiar.has(ABORTED, at(3, "temporal"))
    familiar.learn("another bug", RESET, at(3, "temporal"))
    assert not familiar.has(ABORTED, at(3, "temporal"))


def test_what_one_signature_teaches_of_a_bug_counts_for_its_others() -> None:
    familiar = Familiar()
    familiar.learn("a bug of aborts", BOTH, at(3))
    assert not familiar.has(ABORTED, at(3))
    familiar.learn("a bug of aborts", ABORTED, at(3, "temporal"))
    assert familiar.has(ABORTED, at(3))
