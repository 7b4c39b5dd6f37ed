"""Porting: whatever the corpus holds becomes a valid trace of every engine, and what changed is said."""

from collections.abc import Callable
from copy import copy
from pathlib import Path

import msgspec
import pytest

from hybridfuzz.harness.draw.adapt import port, refusal
from hybridfuzz.harness.draw.overrides import check_overrides
from hybridfuzz.harness.draw.trace_files import json_below, load_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.tokens import plain_name
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import (
    Arrive,
    Config,
    ExternalLoad,
    Group,
    Preempt,
    Step,
    Trace,
    TraceError,
    check_config,
    needed_kinds,
)
from hybridfuzz.targets.sglang.factory import SglangFactory
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.release import Release

CORPUS = Path(__file__).parents[3] / "corpus"
FILES = [path.relative_to(CORPUS).as_posix() for path in json_below(CORPUS)]
HYBRID = load_factory("hybrid")
FACTORIES: tuple[TargetFactory, ...] = (HYBRID, VllmFactory("vllm", Release()), SglangFactory("sglang"))
PLAIN_SGLANG = SglangFactory("sglang")
PLAIN_SGLANG.capabilities = msgspec.structs.replace(PLAIN_SGLANG.capabilities, max_speculative_tokens=0)
CONFIG = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)))


def requests(trace: Trace, name: Callable[[str], str] = str) -> list[tuple[object, ...]]:
    """`name` makes names of documents comparable."""
    return [
        (each.name, tuple((name(document), length) for document, length in each.prompt), each.max_new_tokens)
        for each in trace.events
        if isinstance(each, Arrive)
    ]


def ported(trace: Trace, factory: TargetFactory) -> tuple[Trace, tuple[str, ...]]:
    try:
        return port(trace, factory)
    except TraceError as error:
        assert trace.config.mamba_cache_mode == "none", error
        pytest.skip(str(error))


@pytest.mark.parametrize("factory", FACTORIES, ids=lambda factory: factory.name)
@pytest.mark.parametrize("name", FILES)
def test_every_trace_of_the_corpus_becomes_a_valid_one(name: str, factory: TargetFactory) -> None:
    trace = load_trace(CORPUS / name)
    made, changes = ported(trace, factory)
    check_config(made.config)
    assert not refusal(made, factory)
    assert (made == trace) == (not changes), "every change is named, and nothing else"
    assert port(made, factory) == (made, ()), "once is enough"
    name = str if needed_kinds(trace.events) <= factory.capabilities.features else plain_name
    assert requests(trace, name) == requests(made), "requests stay what they are, with text in place of images"


@pytest.mark.parametrize("name", [name for name in FILES if "/" in name])
def test_traces_of_other_engines_run_clean_on_the_embedded_target(name: str) -> None:
    made, _ = ported(load_trace(CORPUS / name), HYBRID)
    violation = run_trace(HYBRID, made).violation
    assert violation is None, violation.message


@pytest.mark.parametrize(
    ("options", "says"),
    [({"conector_saves": "yes"}, "there is no option 'conector_saves'"),
     ({"connector_saves": "Yes"}, "there is no connector_saves=Yes; known: no, yes")],
)  # fmt: skip
def test_a_switch_that_a_target_would_not_look_at_is_refused_and_ported_away(
    options: dict[str, str], says: str
) -> None:
    odd = Trace(msgspec.structs.replace(CONFIG, options=options), (Step(),))
    assert says in refusal(odd, HYBRID)
    with pytest.raises(TraceError, match="configuration"):
        run_trace(HYBRID, odd)
    assert port(odd, HYBRID)[0].config.options == {}
    assert not refusal(Trace(msgspec.structs.replace(CONFIG, options={"dp": "1"}), (Step(),)), HYBRID)
    with pytest.raises(TraceError, match=says.split(";", maxsplit=1)[0].replace("option ", "")):
        check_overrides(options, HYBRID.capabilities)


def test_a_switch_that_is_accepted_but_not_drawn_may_be_held() -> None:
    taken = msgspec.structs.replace(HYBRID.capabilities, accepts={"rare_switch": ("no", "yes")})
    check_overrides({"rare_switch": "yes"}, taken)
    with pytest.raises(TraceError, match="there is no rare_switch=maybe; known: no, yes"):
        check_overrides({"rare_switch": "maybe"}, taken)
    with pytest.raises(TraceError, match="there is no 'rare_switch'"):
        check_overrides({"rare_switch": "yes"}, HYBRID.capabilities)


def test_what_a_target_takes_stays_as_it_is() -> None:
    odd = Trace(msgspec.structs.replace(CONFIG, groups=(Group("mamba", 5), Group("attention", 3))), (Step(),))
    assert port(odd, HYBRID) == (odd, ())


def test_prefix_caching_is_never_turned_on() -> None:
    plain = msgspec.structs.replace(CONFIG, mamba_cache_mode="none", enable_prefix_caching=False)
    caching = msgspec.structs.replace(HYBRID.capabilities, modes=("align", "all"))
    factory = load_factory("hybrid")
    factory.capabilities = caching
    with pytest.raises(TraceError, match="mamba_cache_mode=none has no counterpart"):
        port(Trace(plain, ()), factory)


def test_the_pool_keeps_its_slack() -> None:
    """States have a pool of their own in SGLang: fewer blocks are needed, as few are spare."""
    made, _ = port(Trace(CONFIG, ()), SglangFactory("sglang"))
    assert made.config.num_blocks != CONFIG.num_blocks
    slack = CONFIG.num_blocks - CONFIG.smallest_pool()
    assert made.config.num_blocks - made.config.smallest_pool() == slack


def test_events_options_and_drafts_that_a_target_does_not_know_are_left_out() -> None:
    config = msgspec.structs.replace(CONFIG, num_speculative_tokens=3, options={"connector_saves": "yes"})
    events = (Arrive("x", (("a", 9),), 4), ExternalLoad("x", 8), Step(drafts=3, right=2, chunks={"x": 4}), Step())
    made, changes = port(Trace(config, events), PLAIN_SGLANG)
    assert made.events == (events[0], Step(), Step())
    assert changes == (
        "num_blocks: 40 -> 47",
        "groups: mamba 8 + attention 8 -> mamba 8 + attention 4",
        "mamba_cache_mode: align -> slots",
        "num_speculative_tokens: 3 -> 0",
        "option connector_saves: yes -> left out",
        "option strategy: not set -> extra_buffer",
        "events: 1 external_load left out",
        "chunks: changed in 1 events",
        "drafts: changed in 1 events",
        "right: changed in 1 events",
    )


def test_images_and_adapters_become_text_where_a_target_has_none() -> None:
    arrival = Arrive("x", (("adapter.b", 4), ("image.c", 5), ("~", 2)), 3)
    trace = Trace(CONFIG, (arrival, Step()))
    assert refusal(trace, HYBRID) == "requests: hybrid has no adapters, images"
    made, changes = port(trace, HYBRID)
    assert requests(made)[0][1] == (("b", 4), ("c", 5), ("~", 2))
    assert changes and not refusal(made, HYBRID)


def test_a_stop_token_is_left_out_where_a_target_has_none() -> None:
    """Refused unchanged: such a target would go on to the most tokens."""
    trace = Trace(CONFIG, (Arrive("r0", (("a", 5),), 4, stop_at=2),))
    assert refusal(trace, HYBRID) == ""
    features = HYBRID.capabilities.features - {"stop-tokens"}
    without = copy(HYBRID)
    without.capabilities = msgspec.structs.replace(HYBRID.capabilities, features=features)
    assert refusal(trace, without) == "requests: hybrid has no stop-tokens"
    ported, changes = port(trace, without)
    assert ported.events == (Arrive("r0", (("a", 5),), 4),)
    assert changes == ("stop_at: changed in 1 events",)


def test_a_stop_string_in_a_session_is_a_stop_token_where_a_target_refuses_it() -> None:
    first = Arrive("r0", (("a", 5),), 4, session=True, stop_at=2, stop_string=True, string_before=1)
    trace = Trace(CONFIG, (first, Arrive("r1", (("a", 5),), 4, stop_at=2, stop_string=True)))
    features, lacks = HYBRID.capabilities.features | {"stop-strings"}, frozenset({"strings-everywhere"})
    able, without = copy(HYBRID), copy(HYBRID)
    able.capabilities = msgspec.structs.replace(HYBRID.capabilities, features=features)
    without.capabilities = msgspec.structs.replace(able.capabilities, lacks=lacks)
    assert refusal(trace, able) == ""
    assert refusal(trace, without) == "requests: hybrid has no strings-everywhere"
    ported, changes = port(trace, without)
    assert ported.events == (Arrive("r0", (("a", 5),), 4, session=True, stop_at=2), trace.events[1])
    assert changes == ("stop_string: changed in 1 events", "string_before: changed in 1 events")


def test_an_option_with_which_answers_have_one_token_is_told_and_ported() -> None:
    """Events that there are not with it are left out; a trace that asks for one token is taken as it is."""
    switch = {"part": {"whole": frozenset({"long-answers", "preempt"})}}
    brief = copy(HYBRID)
    brief.capabilities = msgspec.structs.replace(
        HYBRID.capabilities, options={"part": ("whole", "first")}, features_with=switch
    )
    config = msgspec.structs.replace(CONFIG, options={"part": "first"})
    asked = Trace(config, (Arrive("r0", (("a", 9),), 4, stop_at=3), Step(), Preempt("r0"), Step()))
    assert "there is no preempt with part=first" in refusal(asked, brief)
    assert "max_new_tokens" in refusal(msgspec.structs.replace(asked, events=asked.events[:2]), brief)
    short, changes = port(asked, brief)
    assert short.events == (Arrive("r0", (("a", 9),), 1), Step(), Step())
    assert len(changes) == 2 and not refusal(short, brief)
    whole = msgspec.structs.replace(asked, config=msgspec.structs.replace(config, options={"part": "whole"}))
    assert not refusal(whole, brief)
