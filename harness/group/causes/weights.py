"""Fitted numbers of `same_cause`: how strong each kind of evidence, and each fact, is.

Fitted on the pairs of 190 failing traces of vLLM 0.33.0 (seeds 900 to 913) and of 20 mixtures of mutants
(`benchmarks/mixtures.py`, T1 to T20), all causes of equal weight: a logistic regression whose overlaps of facts are
weighted, with a penalty on the logarithms of these weights (1e-3) that keeps a fact at 1 unless several causes speak
against it. Rounded; fact weights between 0.8 and 1.25 are 1, and none is above 5. `CONTRADICTION`, `UNNEEDED`,
`OTHER_SUBJECT`, `SAME` and `SAME_RELATED` were chosen afterwards with the figures of benchmarks/identity.md in view.

A fact with a large weight separates causes: rows that were preempted, graphs, a prompt beside a decode, a row that was
left out of a step. One with a small weight is an accident of the trace: how many tokens a decode has, whether the
request is new.
"""

from __future__ import annotations

VOTES, NOW, ORIGINS, SWITCHES, SYMPTOM = 5.0, 5.8, 4.0, 1.7, 0.8
"""Weights of the kinds of evidence."""
WITHOUT_VOTES = 0.7
"""Stands in for the votes where one of two failures has none."""
CONTRADICTION = 2.5
"""Loss if one failure needs an implementation that the other does not use."""
UNNEEDED = 2.0
"""Loss if one failure needs an implementation without which the other fails, too."""
OTHER_SUBJECT = 1.5
"""Loss if two failures break rules with different subjects (resources, the cache, the device)."""
BIAS = -4.65
SAME = 0.55
"""Mean likeness from which two groups of failing traces have one cause."""
SAME_RELATED = 0.25
"""The same for two findings that need the same switches, or show the same symptoms: at least SHARED_MIN of them."""
SHARED_MIN = 2
FACTS = {
    "own now was preempted": 5.0,
    "now graph": 4.5,
    "other now prompt": 2.7,
    "own now prefix hit": 2.5,
    "now after external_load": 2.1,
    "own was left out of the step before": 2.1,
    "own now alone": 1.9,
    "own now unfinished prompt": 1.8,
    "now after truncate": 1.7,
    "other now whole prompt": 1.6,
    "own now whole prompt": 1.5,
    "own now drafts": 1.4,
    "own now admitted again": 1.3,
    "now after resume": 0.8,
    "own now ends on a boundary": 0.8,
    "own now starts on a boundary": 0.8,
    "event step": 0.7,
    "other now as long as a full decode": 0.7,
    "other now decode": 0.7,
    "own now as long as a full decode": 0.7,
    "own now kept caches": 0.7,
    "own now prompt chunk": 0.7,
    "own now recomputes output": 0.7,
    "own now shorter than a full decode": 0.6,
    "now a row of the step before is gone": 0.5,
    "own first step": 0.5,
    "own now admitted": 0.5,
    "own now no drafts": 0.5,
    "own now decode": 0.3,
    "own now one known token": 0.3,
    "own now prompt": 0.3,
}
"""Weights of facts of the violating step (`facts`), 1 where none is listed."""

ORIGIN_FACTS = {
    "found load by own": 5.0,
    "own resumes from nothing": 5.0,
    "found by ends on a boundary": 4.6,
    "own stores several": 2.4,
    "wanted never written": 1.6,
    "found by resumes from nothing": 1.5,
    "found by starts on a boundary": 1.5,
    "found by stores several": 0.8,
    "found zeroed": 0.8,
    "wanted by one known token": 0.8,
    "found by admitted again": 0.7,
    "found by drafts": 0.7,
    "found by one known token": 0.7,
    "found by resumes": 0.7,
    "found write by own": 0.7,
    "wanted in the step before": 0.7,
    "wanted write by own": 0.7,
    "found by no drafts": 0.6,
    "found by prompt": 0.6,
    "found by prompt chunk": 0.6,
    "found in this step": 0.6,
    "found by stores once": 0.5,
    "found in the step before": 0.5,
}
"""The same of facts about origins (`origins`)."""
