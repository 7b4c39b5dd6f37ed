"""Small traces, sabotaged targets and recorded runs, for all tests.

A sabotage is a subclass of one part of the correct target, or a change of its records.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import strategies as st

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.observe import Effect, Planned, Record, View
from hybridfuzz.targets.base.protocol import Target, TargetFactory
from hybridfuzz.targets.base.proxy import FactoryProxy, TargetProxy
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Config, Event, Group, Step, Trace
from hybridfuzz.targets.hybrid.factory import HybridFactory
from hybridfuzz.targets.hybrid.host.cache_manager import CacheManager, Hit
from hybridfuzz.targets.hybrid.mutants.build import mutant

CLEAN: TargetFactory = load_factory("hybrid")
MAMBA, ATTENTION = Group("mamba", 8), Group("attention", 8)
ORACLE_IDS = {f"M{number}" for number in range(1, 10)} | {f"S{number}" for number in range(1, 9)}
"""The oracles of targets with a pool. S9 is for plain caches: `test_oracle_plain_caches.py`."""

Records = Sequence[Record]

HOSTILE = [
    "{__import__('os').system('id > pwned')}",
    '"""\nimport os\nos.system("id")\n"""',
    "'''\nraise SystemExit\n'''",
    "\\",
    '\\"""\nx = 1',
    "x\\",
    '"',
    '""',
    "\n\nimport os",
    "\x1b[2J\x1b]0;owned\x07",
    "a\rb\nc\td\x00\x9b31m",
    "</text></svg><script>alert(1)</script>",
    "]]><!-- --><![CDATA[",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1)) ![](http://evil/x.png)",
    "```\n# out\n```",
    "`` ` ```` `",
    "# heading",
    "- item",
    "1. item",
    "@everyone #1 https://evil www.evil.org",
    "\ud800 \udfff \ufffe",
    "\u202egnp.exe \u2028line \u2066",
    "&amp; &lt; %s {0} ${x}",
    "",
]
"""Text that would be code or markup if it were not quoted."""
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(alphabet=st.characters(), max_size=60))


def make_trace(*events: AnyEvent, **config: Any) -> Trace:
    """A trace over one mamba and one attention group of 8 tokens, with blocks to spare."""
    defaults: dict[str, Any] = {
        "num_blocks": 60,
        "groups": (MAMBA, ATTENTION),
        "max_model_len": 64,
        "graph_sizes": (),
    }
    if config.get("mamba_cache_mode") == "none":
        defaults["enable_prefix_caching"] = False
    return Trace(Config(**{**defaults, **config}), events)


def arrive(name: str, *prompt: tuple[str, int] | int, new: int = 2, priority: int = 0) -> Arrive:
    """A request; a bare number stands for that many tokens of document "d"."""
    path = tuple(("d", part) if isinstance(part, int) else part for part in prompt)
    return Arrive(name, path, new, priority)


def steps(count: int, **fields: Any) -> tuple[Step, ...]:
    """The same step several times."""
    return (Step(**fields),) * count


def broken(part: type) -> HybridFactory:
    """The correct target with `part` in the place of the class that it derives from."""
    return HybridFactory("broken", mutant("broken", part))


class Watched(TargetProxy):
    """A target whose records can be looked at afterwards, and changed on the way out."""

    def __init__(
        self,
        target: Target,
        records: Callable[[list[Record]], list[Record]],
        view: Callable[[View], View],
    ) -> None:
        super().__init__(target)
        self.history: list[tuple[Event, Records, View]] = []
        self._records, self._view = records, view

    def apply(self, event: Event) -> Effect:
        done = super().apply(event)
        records = [
            msgspec.structs.replace(record, view=self._view(record.view)) if isinstance(record, Planned) else record
            for record in done.records
        ]
        effect = Effect(self._records(records), done.refused)
        self.history.append((event, effect.records, self.view()))
        return effect

    def view(self) -> View:
        return self._view(super().view())


class Tampered(FactoryProxy):
    """A factory: `factory`'s targets, with changed records or views, or with less to observe."""

    def __init__(
        self,
        records: Callable[[list[Record]], list[Record]] = lambda records: records,
        view: Callable[[View], View] = lambda view: view,
        factory: TargetFactory = CLEAN,
        observes: frozenset[str] | None = None,
    ) -> None:
        super().__init__(factory)
        self.name = "tampered"
        if observes is not None:
            self.capabilities = msgspec.structs.replace(factory.capabilities, observes=observes)
        self.opened: list[Watched] = []
        self._records, self._view = records, view

    def open(self, config: Config) -> Watched:
        self.opened.append(Watched(super().open(config), self._records, self._view))
        return self.opened[-1]


def change_view(**fields: Callable[[View], object]) -> Tampered:
    """Return the correct target, with some fields of its views changed."""

    def view(before: View) -> View:
        return msgspec.structs.replace(before, **{name: change(before) for name, change in fields.items()})

    return Tampered(view=view)


class Watching(NamedTuple):
    """A run, and everything that the target reported."""

    outcome: Outcome
    records: list[Record]
    history: list[tuple[Event, Records, View]]
    target: Any

    def of(self, kind: type) -> list[Any]:
        """All records of one kind."""
        return [record for record in self.records if isinstance(record, kind)]


def watch(trace: Trace, factory: TargetFactory = CLEAN) -> Watching:
    """Run a trace and keep what was reported."""
    watched = Tampered(factory=factory)
    outcome = run_trace(watched, trace)
    history = watched.opened[0].history
    records = [record for _, records, _ in history for record in records]
    return Watching(outcome, records, history, watched.opened[0].target)


@cache
def drawn(seed: int, index: int) -> Trace:
    """A trace of the workload for the embedded target."""
    return draw_trace(CLEAN.capabilities, seed, index, supports=CLEAN.supports)


class Case(NamedTuple):
    """A sabotage, a trace that shows it, and the expected violation.

    `says` are regular expressions that the message has to match.
    """

    about: str
    factory: TargetFactory
    trace: Trace
    oracle: str
    field: str
    says: tuple[str, ...] = ()


def check_case(case: Case) -> Violation:
    """Check that the trace is legal, that the sabotage is found, and that the message is one sentence."""
    assert run_trace(CLEAN, case.trace).violation is None, "the trace must be clean on its own"
    violation = run_trace(case.factory, case.trace).violation
    assert violation is not None, "no oracle noticed"
    assert (violation.oracle, violation.field) == (case.oracle, case.field), violation.message
    check_sentence(violation)
    for pattern in case.says:
        assert re.search(pattern, violation.message), violation.message
    return violation


def check_sentence(violation: Violation) -> None:
    """One line that names the oracle, the step, the request and the block, where there is one."""
    message = violation.message
    assert message.startswith(f"{violation.oracle}: ")
    assert message.endswith(f" (step {violation.step})")
    assert "\n" not in message
    assert len(message) < 400
    assert "  " not in message
    assert not re.search(r"\d{12}", message), "a digest is no name"
    assert "object at 0x" not in message
    if violation.block >= 0:
        assert f"block {violation.block}" in message
    if violation.request:
        assert violation.request in message
    assert violation.signature.startswith(f"{violation.oracle}-")
    assert violation.signature.endswith(f"-{violation.field}")
    assert violation.step >= -1
    assert violation.event_kind


class NeverHits(CacheManager):
    """vLLM #54360: nothing is ever found."""

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        return Hit(0, tuple(() for _ in self.groups))


class HitsOneUnitLess(CacheManager):
    """The last boundary is given up without a reason."""

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit = super().find_hit(tags, num_tokens)
        return super().find_hit(tags, hit.length - 7) if hit.length > 8 else hit


EVERY_RUN = ("vllm 0.33.0", "sglang 0.5.23")
"""Releases that `make test-engines` drives. Each other one costs a download and an import."""


def of_release(engine: str, release: str, *values: object) -> Any:
    """A case of a release: an exhaustive one unless every run has that release."""
    return pytest.param(*values, marks=() if f"{engine} {release}" in EVERY_RUN else pytest.mark.exhaustive)


def copy_sources(engine: str, release: str, into: Path) -> None:
    """Copy a release's sources, without what a build adds. Times stay, so that compiled files in `__pycache__` fit."""
    prepare(f"{engine}@{release}", print)
    source = cache_folder() / engine / release / "tree" / engine
    shutil.copytree(source, into / engine, ignore=shutil.ignore_patterns("_version.py", "*.so"))
