"""Failures with one cause are like each other, whatever invariant broke first."""

from hybridfuzz.harness.identity.compare import SAME, learned, likeness, same_cause
from hybridfuzz.harness.identity.evidence import Evidence, FindingEvidence

PADDED = Evidence(
    "S3-step-mamba-temporal",
    switches={"num_speculative_tokens": "1"},
    facts=("own now one known token", "own now prompt"),
    needed=("own now one known token",),
    parting=("+a.py:f:1>2", "+a.py:f:2>3"),
)


def variant(**fields: object) -> Evidence:
    return Evidence(**{name: getattr(PADDED, name) for name in Evidence.__struct_fields__} | fields)  # type: ignore[arg-type]


def test_another_signature_is_no_other_cause() -> None:
    assert likeness(PADDED, variant(signature="S4-step-mamba-temporal")) == 1.0


def test_the_same_signature_is_not_the_same_cause() -> None:
    other = variant(switches={"runner": "v1"}, facts=("now graph",), parting=("+b.py:g:7>8",))
    assert likeness(PADDED, other) < SAME


def test_without_lines_the_symptom_has_to_agree() -> None:
    bare = variant(parting=())
    assert likeness(bare, bare) == 1.0
    assert likeness(bare, variant(parting=(), signature="M4-step")) == 0.0
    assert likeness(PADDED, variant(parting=(), relation="another")) == 0.0


def test_a_trace_that_is_like_two_findings_links_them() -> None:
    one, other = variant(parting=("+a.py:f:1>2",)), variant(parting=("+a.py:f:2>3",))
    findings = {"one": FindingEvidence([one]), "other": FindingEvidence([other])}
    assert set(same_cause(PADDED, findings)) == {"one", "other"}
    assert same_cause(variant(facts=("x",), switches={"y": "1"}, parting=("+c.py:h:1>2",)), findings) == []


def test_a_condition_holds_what_all_traces_have_and_some_neighbour_lacks() -> None:
    other = variant(switches={"num_speculative_tokens": "3", "runner": "v1"}, facts=("own now one known token",))
    condition = learned([PADDED, other])
    assert condition.facts == ("own now one known token",)
    assert condition.switches == {"num_speculative_tokens": ("1", "3")}
    assert learned([]).facts == ()
