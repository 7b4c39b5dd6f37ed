"""Scopes and the alphabet of a trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from hybridfuzz.harness.explore.scope import SCOPE_BYTES_MAX, Alphabet, disturbs, packaged, read_scope
from hybridfuzz.targets.base.trace import Abort, Arrive, Preempt, Step, TraceError
from hybridfuzz.targets.hybrid.factory import make_factory

CAPABILITIES = make_factory().capabilities


@pytest.mark.parametrize("name", packaged())
def test_packaged_scopes_can_be_read(name: str) -> None:
    assert read_scope(name).about.endswith(".")


def test_a_request_gets_the_next_name_and_events_name_those_that_arrived() -> None:
    scope = read_scope("minute")
    alphabet = Alphabet(scope, scope.configuration[0], CAPABILITIES)
    first = Arrive("r0", (("a", 3),), 2)
    assert {event.name for event in alphabet.after(()) if isinstance(event, Arrive)} == {"r0"}
    after = alphabet.after((first,))
    assert {event.name for event in after if isinstance(event, Arrive)} == {"r1"}
    assert [event for event in after if isinstance(event, Preempt | Abort)] == [Preempt("r0"), Abort("r0")]
    both = alphabet.after((first, structs.replace(first, name="r1")))
    assert not [event for event in both if isinstance(event, Arrive)], "the scope has two requests"


def test_drafts_need_a_configuration_with_drafts() -> None:
    scope = read_scope("hour")
    without, with_drafts = (Alphabet(scope, config, CAPABILITIES).after(()) for config in scope.configuration)
    assert Step(drafts=1) not in without
    left_out = Alphabet(scope, scope.configuration[0], CAPABILITIES).left_out
    assert left_out == ['step {"drafts":1}', 'step {"drafts":1,"right":1}'], "the certificate names each"
    assert Step(drafts=1) in with_drafts


def test_stop_tokens_need_a_target_that_has_them(tmp_path: Path) -> None:
    """A target without them would be asked to run traces that it does not take."""
    text = (Path(__file__).parents[3] / "harness/explore/scopes/minute.toml").read_text(encoding="utf-8")
    path = tmp_path / "stops.toml"
    path.write_text(text.replace("max_new_tokens = 1 }", "max_new_tokens = 2, stop_at = 1 }"), encoding="utf-8")
    scope = read_scope(str(path))
    lacking = structs.replace(CAPABILITIES, features=CAPABILITIES.features - {"stop-tokens"})
    found = [Alphabet(scope, scope.configuration[0], target).after(()) for target in (CAPABILITIES, lacking)]
    assert [any(isinstance(event, Arrive) and event.stop_at for event in events) for events in found] == [True, False]


def test_images_need_a_configuration_that_takes_them() -> None:
    """Prompts with images were given to a configuration without: a false alarm."""
    scope = read_scope("vllm-priority")
    images = {"images": ("a", "image.b")}
    capabilities = structs.replace(
        CAPABILITIES, features=CAPABILITIES.features | {"images"}, documents={"inputs": images}
    )
    of_text, of_images = (Alphabet(scope, config, capabilities) for config in scope.configuration)
    assert len(of_text.left_out) == 2 and all("image" in event for event in of_text.left_out)
    assert not of_images.left_out


def test_documents_that_mean_the_same_come_in_one_order(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "harness/explore/scopes/minute.toml").read_text(encoding="utf-8")
    both = text.replace('{ prompt = [["a", 5]], max_new_tokens = 1 },', '{ prompt = [["b", 3]], max_new_tokens = 2 },')
    path = tmp_path / "two.toml"
    path.write_text(both, encoding="utf-8")
    scope = read_scope(str(path))
    alphabet = Alphabet(scope, scope.configuration[0], CAPABILITIES)
    arrivals = [event for event in alphabet.after(()) if isinstance(event, Arrive)]
    assert [event.prompt for event in arrivals] == [(("a", 3),)]
    later = [event for event in alphabet.after(arrivals) if isinstance(event, Arrive)]
    assert [event.prompt for event in later] == [(("a", 3),), (("b", 3),)]
    assert alphabet.context(()) != alphabet.context(arrivals)


def test_only_what_is_out_of_the_ordinary_disturbs() -> None:
    ordinary = (Arrive("r0", (("a", 1),), 1), Step(), Step(drafts=2, right=2))
    assert not any(map(disturbs, ordinary))
    assert all(map(disturbs, (Preempt("r0"), Abort("r0"), Step(drafts=1), Step(budget=1))))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[alphabet]", "[alphabet]\njump = [{}]", "no kind of event 'jump'"),
        ("events = 5", "events = 0", "events"),
        ("num_blocks = 9", "num_blocks = 3", "num_blocks=3 cannot hold"),
        ("evict = [{ blocks = 1 }]", "evict = [{}]", "blocks"),
        ("[alphabet]", "[alphabet", r"wrong\.toml: "),
    ],
)
def test_a_scope_that_is_wrong_is_refused_in_one_line(tmp_path: Path, before: str, after: str, message: str) -> None:
    text = (Path(__file__).parents[3] / "harness/explore/scopes/minute.toml").read_text(encoding="utf-8")
    assert before in text
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        read_scope(str(path))


def test_a_scope_is_a_small_regular_file(tmp_path: Path) -> None:
    """It was waited for, or read whole."""
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(TraceError, match="not a regular file"):
        read_scope(str(tmp_path / "pipe.toml"))
    (tmp_path / "large.toml").write_bytes(b"#" * (SCOPE_BYTES_MAX + 1))
    with pytest.raises(TraceError, match="too large for a scope"):
        read_scope(str(tmp_path / "large.toml"))


def test_an_unknown_scope_names_those_that_are_packaged() -> None:
    with pytest.raises(TraceError, match="minute"):
        read_scope("nowhere")
