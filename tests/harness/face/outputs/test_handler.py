"""Handlers get every event in order; one that fails costs the campaign that handler alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridfuzz.harness.campaign_events import CampaignEnded, CampaignEvent, Notice, TraceDone
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.face.outputs import handler
from hybridfuzz.harness.face.outputs.handler import CampaignInfo, Dispatcher, registered
from hybridfuzz.harness.group.findings.finding_store import OutputError

INFO = CampaignInfo(target="hybrid", version="", seed=1, out=Path("out"))
SUMMARY = Summary("hybrid", "", 1, {}, "traces", 1, 1, 1.0, [], {}, {}, [], [])
EVENTS = [TraceDone(0, 0, 5), CampaignEnded(SUMMARY)]


class Recording:
    """Keeps what it gets; raises `error` at the call of that name."""

    def __init__(self, at: str = "", error: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self._at, self._error = at, error

    def _call(self, name: str, value: object) -> None:
        self.calls.append(value)
        if name == self._at and self._error:
            raise self._error

    def start(self, campaign: CampaignInfo) -> None:
        self._call("start", "start")

    def handle_event(self, event: CampaignEvent) -> None:
        self._call("handle_event", event)

    def shutdown(self) -> None:
        self._call("shutdown", "shutdown")


def run(*handlers: Recording) -> None:
    dispatcher = Dispatcher(handlers)
    dispatcher.start(INFO)
    try:
        assert dispatcher.deliver(EVENTS) == EVENTS[-1]
    finally:
        dispatcher.shutdown()


def test_every_handler_gets_everything_in_order() -> None:
    one, two = Recording(), Recording()
    run(one, two)
    assert one.calls == two.calls == ["start", *EVENTS, "shutdown"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OutputError("no room"), BrokenPipeError()])
def test_a_lost_output_is_a_warning_for_the_others(error: Exception) -> None:
    lost, other = Recording("handle_event", error), Recording()
    run(lost, other)
    assert lost.calls == ["start", EVENTS[0], "shutdown"], "it may still save what it has"
    [warning] = [event for event in other.calls if isinstance(event, Notice)]
    assert warning.text.startswith("Recording ended early: ")
    assert [call for call in other.calls if call != warning] == ["start", *EVENTS, "shutdown"]


def test_an_output_that_cannot_start_ends_the_command_before_any_work() -> None:
    first, broken, last = Recording(), Recording("start", OSError(13, "Permission denied")), Recording()
    with pytest.raises(OutputError, match="Permission denied"):
        Dispatcher([first, broken, last]).start(INFO)
    assert (first.calls, last.calls) == (["start", "shutdown"], [])


@pytest.mark.parametrize("at", ["handle_event", "shutdown"])
def test_an_internal_error_of_a_handler_costs_that_handler_alone_and_is_said(at: str) -> None:
    """A stranger's history file made the report raise: the campaign's exit status was 4, and --json had no line."""
    other = Recording()
    run(other, Recording(at, ZeroDivisionError("division by zero")))
    [warning] = [event for event in other.calls if isinstance(event, Notice)]
    said = "Recording ended early: internal error, please report it: ZeroDivisionError: division by zero"
    assert warning.text.startswith(f"{said} (test_handler.py:")
    assert [call for call in other.calls if call != warning] == ["start", *EVENTS, "shutdown"]


@pytest.mark.parametrize("at", ["handle_event", "shutdown"])
def test_an_internal_error_of_the_one_that_prints_warnings_is_raised(at: str) -> None:
    other = Recording()
    with pytest.raises(ZeroDivisionError):
        run(Recording(at, ZeroDivisionError()), other)
    assert other.calls[-1] == "shutdown"


def test_an_internal_error_at_the_start_is_not_taken_for_one_of_the_user() -> None:
    with pytest.raises(ZeroDivisionError):
        Dispatcher([Recording("start", ZeroDivisionError())]).start(INFO)


class Point:
    """An entry point of another package."""

    name, value, module = "theirs", "theirs:module", Recording("handle_event", ZeroDivisionError("division by zero"))

    def load(self) -> Any:
        if self.module is None:
            raise ImportError("no module named theirs")
        return self

    def make_handler(self, options: object) -> Recording:
        return self.module


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> Iterator[Point]:
    one = Point()
    monkeypatch.setattr(handler, "entry_points", lambda group: [one] if group == "hybridfuzz.handlers" else [])
    yield one


def test_whatever_another_package_s_handler_raises_is_a_warning_that_names_it(point: Point) -> None:
    [module] = registered("hybridfuzz.handlers")
    theirs: Any = module.make_handler(None)  # type: ignore[arg-type]
    other = Recording()
    run(theirs, other)
    [warning] = [event for event in other.calls if isinstance(event, Notice)]
    assert warning.text == "theirs ended early: handler theirs: ZeroDivisionError: division by zero"


def test_another_package_that_cannot_be_imported_is_one_line(point: Point) -> None:
    point.module = None  # type: ignore[assignment]
    with pytest.raises(OutputError, match="handler theirs: ImportError: no module named theirs"):
        list(registered("hybridfuzz.handlers"))
