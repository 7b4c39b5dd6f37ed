"""A report names the options that a failure needs, and no others."""

from msgspec import structs
from support import arrive, make_trace

from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.tell.usual_options import changes, plainest
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import Trace
from hybridfuzz.targets.hybrid.factory import CAPABILITIES

OPTIONS = {"runner": ("v1", "v2"), "tap": ("off", "off", "on"), "cache": ("big", "big", "small"), "kernel": ("a", "b")}
TARGET = structs.replace(CAPABILITIES, options=OPTIONS)
DRAWN = make_trace(arrive("r0", 4), options={"runner": "v1", "tap": "on", "cache": "small", "kernel": "b"})


def unusual(trace: Trace) -> int:
    """The default runner of this engine is v2."""
    return int(trace.config.options["runner"] != "v2")


def failing(trace: Trace) -> Outcome:
    """The failure needs the small cache; without the tap another one comes first; v2 does not have kernel b."""
    options = trace.config.options
    if options["runner"] == "v2" and options["kernel"] == "b":
        raise TargetError("no such kernel")
    field = "state" if options["cache"] == "small" else ""
    return Outcome(Violation("S3", field, "wrong") if field else None, 1, 0, {}, {}, 0)


def test_options_that_do_not_matter_become_usual() -> None:
    plain = plainest(DRAWN, failing(DRAWN).violation.signature, failing, TARGET, unusual)  # type: ignore[union-attr]
    assert plain.config.options == {"runner": "v1", "tap": "off", "cache": "small", "kernel": "b"}
    assert changes(DRAWN, plain) == ["tap=off"]


def test_the_default_implementation_is_preferred_where_it_fails() -> None:
    trace = structs.replace(
        DRAWN, config=structs.replace(DRAWN.config, options={**DRAWN.config.options, "kernel": "a"})
    )
    plain = plainest(trace, failing(trace).violation.signature, failing, TARGET, unusual)  # type: ignore[union-attr]
    assert plain.config.options == {"runner": "v2", "tap": "off", "cache": "small", "kernel": "a"}


def test_another_failure_does_not_count() -> None:
    def differently(trace: Trace) -> Outcome:
        return Outcome(Violation("S3", trace.config.options["tap"], "wrong"), 1, 0, {}, {}, 0)

    plain = plainest(DRAWN, "S3-on", differently, TARGET, unusual)
    assert plain.config.options["tap"] == "on"
