"""Of the fixes of a campaign a failure keeps those without which the trace fails otherwise, and no more."""

from types import TracebackType
from typing import Any

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.group.known import needed_fixes as module
from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.group.known.known_toml import Known
from hybridfuzz.harness.group.known.needed_fixes import needed_fixes
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patches import Patch, PatchError

NAMES = ("one", "two", "three", "four", "five", "six", "seven")
TRACE = make_trace(arrive("r0", 3), *steps(6))


class Engine:
    """A fake worker: bugs that are not fixed fail at event 2, the new one at event 4."""

    def __init__(self, launch: Launch, met: set[str], *, new: bool) -> None:
        self._met, self._fixed, self._new = met, set(launch.python.split(",")), new

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None: ...

    def start(self) -> None: ...

    def run(self, trace: object) -> Outcome:
        assert trace is TRACE
        event = 2 if self._met - self._fixed else 4 if self._new else 0
        found = Violation(oracle="S3", event_kind="step", group_kind="mamba", field="conv", event=event)
        return Outcome(found if event else None, 1, 1, {}, {}, 0)


def needed(met: set[str], monkeypatch: pytest.MonkeyPatch, *, new: bool = True, leads: bool = False) -> Any:
    """Return the names of the entries that are needed, and of the patches that the engine has."""

    def patched(_: Launch, patches: list[Patch]) -> Launch:
        names = [patch.name for patch in patches]
        if leads and "six" in names and "two" not in names:
            raise PatchError("six changes a line that two adds")
        return Launch(",".join(names), {})

    monkeypatch.setattr(module, "patched", patched)
    monkeypatch.setattr(Known, "read_patch", lambda entry: Patch(entry.name, ()))
    entries = tuple(Known(name=name, reason="r", patch=f"{name}.patch") for name in NAMES)
    fixes = Fixes(Launch(",".join(NAMES), {}), Launch("", {}), entries, patches=tuple(Patch(n, ()) for n in NAMES))
    found = needed_fixes(fixes, TRACE, lambda launch: Engine(launch, met, new=new))  # type: ignore[arg-type, return-value]
    return found and ([entry.name for entry in found[0]], found[1].python)


@pytest.mark.parametrize("met", [set(), {"one"}, {"seven"}, {"two", "six"}, set(NAMES)])
def test_exactly_those_that_are_met_stay(met: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [name for name in NAMES if name in met]
    assert needed(met, monkeypatch) == (wanted, ",".join(wanted))


def test_a_patch_stays_with_the_one_that_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed({"six"}, monkeypatch, leads=True) == (["two", "six"], "two,six")


def test_a_trace_that_is_silent_behind_all_fixes_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed({"one"}, monkeypatch, new=False) is None
