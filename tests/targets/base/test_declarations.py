"""A misspelt or contradictory declaration is one line, with the nearest word that is known."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support import make_trace

from hybridfuzz.targets.base.declarations import EVENTS, check_capabilities, fault
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import engines, load_factory
from hybridfuzz.targets.base.stock import Setting

GOOD = load_factory("hybrid").capabilities
PLAIN = replace(
    GOOD,
    modes=("none",),
    features=frozenset(),
    observes=frozenset({"accesses", "caches"}),
    windows=(),
    options={},
    features_with={},
    stock=None,
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"observes": frozenset({"acceses"})}, "observes has 'acceses'; did you mean 'accesses'?"),
        ({"events": EVENTS - {"abort"} | {"abbort"}}, "events has 'abbort'; did you mean 'abort'?"),
        ({"events": EVENTS | {"zzz"}}, "events has 'zzz'; known: abort, arrive"),
        ({"events": frozenset({"arrive"})}, "events has no step"),
        ({"events": frozenset({"arrive", "step", "park"})}, "events has 'park' but no 'resume'"),
        ({"features": frozenset({"blocktables"})}, "features has 'blocktables'; did you mean 'block-tables'?"),
        ({"lacks": frozenset({"preempt"})}, "lacks has 'preempt'; did you mean 'preemption'?"),
        ({"modes": ("alin",)}, "modes has 'alin'; did you mean 'align'?"),
        ({"policies": ("fifo",)}, "policies has 'fifo'; did you mean 'fcfs'?"),
        ({"observes": "pool"}, "observes is one string, expected several words"),
        ({"block_sizes": ((8, "4"),)}, "Expected `int`, got `str` - at `$.block_sizes[0][1]`"),
        ({"block_sizes": ()}, "modes, block_sizes and group_counts must not be empty"),
        ({"options": {"dp": ("1",)}}, "options has 'dp', which --config already has; choose another name"),
        ({"options": {"num_blocks": ("1",)}}, "options has 'num_blocks', which --config already has"),
        ({"options": {"mixer": ()}}, "options has no value for 'mixer'"),
        ({"pressure": {"connector_saves": ("yess",)}}, "pressure has connector_saves=yess; did you mean 'yes'?"),
        ({"together": (("window", "conector_saves"),)}, "together has 'conector_saves'; did you mean"),
        ({"documents": {"conector_saves": {}}}, "documents has 'conector_saves'; did you mean 'connector_saves'?"),
        (
            {"features_with": {"connector_saves": {"yess": ()}}},
            "features_with has connector_saves=yess; did you mean 'yes'?",
        ),
        (
            {"features_with": {"connector_saves": {"yes": frozenset({"images"})}}},
            "features_with has 'images' with connector_saves=yes, but features does not",
        ),
        ({"documents": {"connector_saves": {"yess": ()}}}, "connector_saves=yess; did you mean 'yes'?"),
        ({"stock": (Setting("--x", {"polcy": "fcfs"}),)}, "stock has 'polcy' in '--x'; did you mean 'policy'?"),
        ({"stock": (Setting("--x", {"policy": "fifo"}),)}, "stock has policy=fifo in '--x': Invalid enum value"),
        ({"stock": (Setting("--x", {"async_depth": "yes"}),)}, "stock has async_depth=yes in '--x': Expected `int`"),
        ({"stock": (Setting("--x", {"connector_saves": "n"}),)}, "connector_saves=n in '--x'; did you mean 'no'?"),
        ({"stock": (Setting("--x", events=frozenset({"rest"})),)}, "stock has 'rest' in '--x'; did you mean 'reset'?"),
        ({"documents": {"connector_saves": {"yes": 1}}}, "Expected `array`, got `int` - at `$.documents"),
        (
            {"documents": {"connector_saves": {"yes": ("a", "image.b")}}},
            "documents has 'image.b' with connector_saves=yes, but features has no 'images'",
        ),
        ({"features": frozenset({"padding"})}, "neither 'block-tables' nor 'pool'"),
        ({"observes": GOOD.observes | {"caches"}}, "observes has 'caches', which is for targets without a pool"),
    ],
)
def test_each_fault_is_one_line(changes: dict[str, Any], reason: str) -> None:
    found = fault(replace(GOOD, **changes))
    assert reason in found
    assert "\n" not in found
    with pytest.raises(TargetError, match=r"^target 'mine': its capabilities: "):
        check_capabilities(replace(GOOD, **changes), "mine")


def test_plain_caches_have_no_pool_to_observe() -> None:
    assert not fault(PLAIN)
    assert "observes has 'tables'" in fault(replace(PLAIN, observes=PLAIN.observes | {"tables"}))
    assert "modes has 'align'" in fault(replace(PLAIN, modes=("none", "align")))


def test_the_targets_here_declare_what_is_known() -> None:
    """Those that can be loaded without their engine."""
    assert not fault(GOOD)
    assert engines()


def test_a_factory_may_be_given_as_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class has `capabilities`, too: it was used as if it were an instance, and ended as an internal error."""
    (tmp_path / "given_as_class.py").write_text(
        "from hybridfuzz.targets.base.registry import load_factory\n"
        "class FACTORY:\n"
        "    name = 'mine'\n"
        "    capabilities = load_factory('hybrid').capabilities\n"
        "    def supports(self, config): return ''\n"
        "    def open(self, config): raise NotImplementedError\n"
    )
    monkeypatch.chdir(tmp_path)
    factory = load_factory("python:given_as_class:FACTORY")
    assert factory.supports(make_trace().config) == ""
