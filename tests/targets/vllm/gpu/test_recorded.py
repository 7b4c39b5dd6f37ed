"""The oracles on a real model's numbers, on rows that were recorded on a GPU (`benchmarks/gpu_engines.py --record`)."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridfuzz.harness.judge.oracles.base import Context
from hybridfuzz.harness.judge.oracles.real_model import RealNumbers
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.targets.base.observe import RealDraft, RealForward, RealRow

RECORDED = Path(__file__).parent / "recorded"
LAYOUT = Layout((Group("mamba", 16), Group("attention", 16)), 12, 4, "align", True)


def rows(name: str) -> list[tuple[int, RealRow]]:
    """(step, row) as recorded."""
    found = []
    for one in json.loads((RECORDED / f"{name}.json").read_text())["rows"]:
        values, expected = (
            None if one[key] is None else np.array([np.nan if x is None else x for x in one[key]], dtype=np.float32)
            for key in ("logprobs", "expected")
        )
        found.append((one["step"], RealRow(one["request"], one["position"], values, expected, one["agrees"])))
    return found


def judge(forward: RealForward) -> Violation | None:
    target: Any = SimpleNamespace(layout=LAYOUT)
    context = Context.__new__(Context)
    context.layout, context.step, context.event_index, context.event_kind = target.layout, forward.step, 0, "step"
    context.facts = SimpleNamespace(  # type: ignore[assignment]
        lives={row.request: SimpleNamespace(name=row.request) for row in forward.rows}
    )
    return RealNumbers().on_real_forward(context, forward)


def verdicts(name: str, tolerance: float = 0.15) -> list[str]:
    """The signature of each recorded row's violation, "" for none."""
    found = [judge(RealForward(step, [row], tolerance)) for step, row in rows(name)]
    return [violation.signature if violation else "" for violation in found]


def test_a_batch_that_folds_placeholders_into_a_state_is_seen_one_step_later() -> None:
    """Cause 1 of vLLM 0.33.0 on Mamba 2: the row itself is right, the next one continues from a wrong state."""
    assert verdicts("one-token-prompt-v2-mamba2-stock") == ["", "", "", "S6-step-logprobs"]


def test_a_row_that_lost_its_accepted_count_is_seen() -> None:
    """Cause 2 on a gated delta net."""
    found = verdicts("unscheduled-row-v1-gdn-stock")
    assert found[-1] == "S6-step-logprobs"
    assert not any(found[:-1])


def test_the_fixed_tree_is_silent() -> None:
    assert verdicts("one-token-prompt-v2-mamba2-fixed") == [""] * 4


def changed(**fields: Any) -> RealForward:
    [(step, row), *_] = rows("one-token-prompt-v2-mamba2-fixed")
    values = {name: fields.pop(name, getattr(row, name)) for name in RealRow.__struct_fields__}
    return RealForward(step, [RealRow(**values)], 0.15, **fields)


@pytest.mark.parametrize(("forward", "field"), [
    (changed(), ""),
    (changed(agrees=False), "logprobs-fills"),
    (changed(logprobs=np.full(128, np.nan, dtype=np.float32)), "logprobs-nan"),
    (changed(states=[(0, 0, 3)]), "state-fills"),
    (changed(drafts=[RealDraft("r0", 0, True, False)]), ""),
    (changed(drafts=[RealDraft("r0", 0, True, False), RealDraft("r0", 1, False, False)]), "draft-fills"),
    (changed(drafts=[RealDraft("r0", 2, False, True)]), "draft-nan"),
    (changed(expected=None), ""),
    (changed(expected=np.full(128, -4.85, dtype=np.float32)), "logprobs"),
])  # fmt: skip
def test_each_rule_decides_by_its_own(forward: RealForward, field: str) -> None:
    violation = judge(forward)
    assert (violation.field if violation else "") == field


def exact(change: float = 0.0, **fields: Any) -> RealForward:
    """A finished request whose steps were repeated alone; `change` of one log-probability."""
    found = [row for _, row in rows("one-token-prompt-v2-mamba2-fixed")]
    repeated = [
        RealRow(row.request, row.position, row.logprobs, row.logprobs + np.float32(change), True) for row in found
    ]
    return RealForward(3, repeated, 0.0, exact=True, **fields)


@pytest.mark.parametrize(("forward", "signature"), [
    (exact(), ""),
    (exact(change=1e-6), "S6-step-logprobs-bits"),  # a hundredth of the tolerance of a record that is not exact
    (exact(moved=[("r0", 16, 0, 1)]), "S1-step-mamba-state-bits"),
])  # fmt: skip
def test_an_exact_record_demands_every_bit(forward: RealForward, signature: str) -> None:
    violation = judge(forward)
    assert (violation.signature if violation else "") == signature
