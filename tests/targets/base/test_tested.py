"""A version of an engine that seems to have less than its newest tested release is pointed out."""

import pytest
from msgspec import structs

from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.base.tested import narrower, newest_tested, words

TESTED = [
    (engine, variant)
    for engine in ("vllm", "sglang", "transformers", "llamacpp")
    if (tested := newest_tested(engine))
    for variant in tested.has
]


def capabilities_with(has: tuple[str, ...]) -> Capabilities:
    """Return capabilities of which only events and options matter here."""
    events = frozenset(word.removeprefix("event ") for word in has if word.startswith("event "))
    options: dict[str, tuple[str, ...]] = {}
    for word in has:
        if word.startswith("option "):
            name, _, value = word.removeprefix("option ").partition("=")
            options[name] = (*options.get(name, ()), value)
    return Capabilities(events, (), frozenset(), (), options=options)


def test_every_engine_with_releases_has_the_file() -> None:
    assert {engine for engine, _ in TESTED} == {"vllm", "sglang", "transformers", "llamacpp"}
    assert newest_tested("hybrid") is None


def test_what_is_lost_is_named_for_a_checkout_and_a_newer_release() -> None:
    tested = newest_tested("vllm")
    assert tested
    less = capabilities_with(tuple(word for word in tested.has[""] if word != "event resume"))
    for version in ("/somewhere/vllm", "0.34.0", "0.33.0 + 31 fixes"):
        notice = narrower("vllm@.", version, less)
        assert notice.startswith(f"not found in this vllm, though {tested.release} has it, so not tested: ")
        assert "event resume" in notice or "more" in notice
    assert narrower("vllm@0.28.0", "0.28.0", less) == "", "an older release is known to have less"
    assert narrower("hybrid", "", less) == ""


def test_the_built_in_target_has_words_for_all_that_it_declares() -> None:
    full = load_factory("hybrid").capabilities
    assert {f"event {name}" for name in full.events} <= set(words(full))
    without = structs.replace(full, events=full.events - {"fork"}, max_speculative_tokens=0)
    assert set(words(full)) - set(words(without)) >= {"event fork", "drafts per step: 4"}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("engine", "variant"),
    # SGLang's variants differ in a tree core, and take half a minute each.
    [pytest.param(*one, marks=[pytest.mark.exhaustive] if one[0] == "sglang" and one[1] else []) for one in TESTED],
)
def test_the_file_is_what_the_release_has(engine: str, variant: str) -> None:
    """If this fails after a change of the adapter, bring targets/ENGINE/tested.json up to date by hand."""
    tested = newest_tested(engine)
    assert tested
    spec = f"{engine}{':' * bool(variant)}{variant}@{tested.release}"
    with WorkerClient(spec, prepare(spec, print), trace_seconds=60) as worker:
        here = words(worker.start().capabilities)
    listed = list(tested.has[variant])
    assert (sorted(set(here) - set(listed)), sorted(set(listed) - set(here))) == ([], [])
