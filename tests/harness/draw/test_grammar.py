"""The workload: a pure function of its seed, within the capabilities, clustered, and wide enough."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from support import CLEAN, drawn, watch

from hybridfuzz.harness.draw import grammar
from hybridfuzz.harness.draw.choices import RandomChoices
from hybridfuzz.harness.draw.configurations import SEATS_IN_POOL_MAX, draw_config, draw_valid_config
from hybridfuzz.harness.draw.grammar import Grammar, draw_trace
from hybridfuzz.harness.draw.overrides import apply_overrides
from hybridfuzz.harness.draw.workload import DEFAULT, Workload, with_ratios
from hybridfuzz.harness.judge.engines import Engines
from hybridfuzz.harness.judge.lockstep import Lockstep
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.state_catalogue import missing_states
from hybridfuzz.reference.batch import original_name
from hybridfuzz.reference.tokens import kind_of
from hybridfuzz.targets.base.observe import Planned
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Event,
    Evict,
    ExternalLoad,
    Fork,
    Group,
    Pause,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Step,
    SwitchStorage,
    Trace,
    TraceError,
    Turn,
    check_config,
    fits,
    has_stop_string,
    has_string_beside,
    tag_of,
)

TRACES = range(150)
POOR = Capabilities(
    events=frozenset({"arrive", "step", "abort"}),
    modes=("align",),
    observes=frozenset(),
    block_sizes=((16, 16),),
)


def test_the_same_seed_gives_the_same_traces() -> None:
    for index in range(20):
        first = draw_trace(CLEAN.capabilities, 5, index)
        assert first == draw_trace(CLEAN.capabilities, 5, index)
        assert first.origin == f"seed 5, trace {index}"


def test_seed_and_index_both_matter() -> None:
    traces = [draw_trace(CLEAN.capabilities, seed, index) for seed in range(4) for index in range(4)]
    distinct = {repr((trace.config, trace.events)) for trace in traces}
    assert len(distinct) == len(traces)


def test_a_trace_does_not_depend_on_its_predecessors() -> None:
    """Trace 7 alone is trace 7 of a campaign: findings can be drawn again."""
    [*_, last] = [draw_trace(CLEAN.capabilities, 1, index) for index in range(8)]
    assert last == draw_trace(CLEAN.capabilities, 1, 7)


@pytest.mark.parametrize("index", range(0, 150, 3))
def test_configurations_are_valid_and_supported(index: int) -> None:
    config = drawn(1, index).config
    check_config(config)
    assert not CLEAN.supports(config)
    assert config.num_blocks <= (1 + SEATS_IN_POOL_MAX) * config.smallest_pool() + 4


def test_most_pools_are_under_pressure() -> None:
    """Half of the pools have room for two requests of the maximum length, or less; some have room for barely one."""
    configs = [drawn(1, index).config for index in TRACES]
    rooms = sorted((config.num_blocks - 4) / config.smallest_pool() for config in configs)
    assert rooms[len(rooms) // 10] <= 1 and rooms[len(rooms) // 2] <= 2


def test_requests_fit_and_names_are_new() -> None:
    for index in TRACES:
        trace = drawn(1, index)
        arrivals = [event for event in trace.events if isinstance(event, Arrive)]
        assert all(fits(trace.config, event) for event in arrivals)
        assert len({event.name for event in arrivals}) == len(arrivals)


def allowed(trace: Trace, capabilities: Capabilities) -> bool:
    tags = {str(event.__struct_config__.tag) for event in trace.events}
    config = trace.config
    return (
        tags <= capabilities.events | {"arrive", "step"}
        and config.mamba_cache_mode in capabilities.modes
        and config.num_speculative_tokens <= capabilities.max_speculative_tokens
        and config.async_depth <= capabilities.max_async_depth
        and config.policy in capabilities.policies
        and config.conv_width in capabilities.conv_widths
        and config.max_model_len <= capabilities.max_model_len
        and (capabilities.eagle_block_drop or not config.eagle_block_drop)
        and config.options.keys() == capabilities.options.keys()
    )


@pytest.mark.parametrize("event", sorted(CLEAN.capabilities.events - {"arrive", "step"}))
def test_every_declared_event_is_drawn_and_none_else(event: str) -> None:
    """With one more event declared, that one appears, too."""
    partners = {"sleep": "wake", "wake": "sleep", "truncate": "resume", "fork": "resume"}
    events = frozenset({event, partners.get(event, event)})
    capabilities = msgspec.structs.replace(CLEAN.capabilities, events=events | {"arrive", "step"})
    seen: Counter[str] = Counter()
    for index in TRACES:
        trace = draw_trace(capabilities, 2, index)
        assert allowed(trace, capabilities)
        seen.update(str(event.__struct_config__.tag) for event in trace.events)
    assert seen[event]


def test_a_poor_target_is_asked_for_nothing_more() -> None:
    for index in TRACES:
        trace = draw_trace(POOR, 3, index)
        assert allowed(trace, POOR)
        assert {group.block_size for group in trace.config.groups} == {16}
        for event in trace.events:
            assert not isinstance(event, Step) or (event.drafts, event.chunks) == (0, {})


def test_all_modes_and_features_are_drawn() -> None:
    """Swarm: each feature is on in some configurations and off in others."""
    configs = [draw_config(RandomChoices(9, index), CLEAN.capabilities) for index in range(400)]
    assert {config.mamba_cache_mode for config in configs} == {"none", "align", "all"}
    assert {config.num_speculative_tokens for config in configs} == {0, 1, 2, 3, 4}
    assert {config.async_depth for config in configs} == {0, 1, 2}
    assert {config.policy for config in configs} == {"fcfs", "priority"}
    assert {config.eagle_block_drop for config in configs} == {True, False}
    assert {bool(config.graph_sizes) for config in configs} == {True, False}
    assert {len(config.groups) for config in configs} >= {1, 2, 3, 4}
    sizes = {tuple(sorted({group.block_size for group in config.groups})) for config in configs}
    assert {(8, 16), (4, 8), (8,), (16,)} <= sizes


def test_lengths_cluster_around_block_boundaries() -> None:
    """Far more prompts than chance would have it end at j * block + {-1, 0, 1, k, k + 1, w - 1}."""
    near = total = 0
    expected = 0.0
    for index in TRACES:
        trace = drawn(1, index)
        config = trace.config
        k, size = config.num_speculative_tokens, config.groups[0].block_size
        offsets = {offset % size for offset in (-1, 0, 1, k, k + 1, config.conv_width - 1)}
        if len(offsets) > size * 0.7:
            continue
        for event in trace.events:
            if isinstance(event, Arrive) and len(event.prompt) == 1:
                total += 1
                near += event.prompt[0][1] % size in offsets
                expected += len(offsets) / size
    assert total > 200
    assert near > 1.3 * expected


def test_prompts_share_prefixes() -> None:
    """Most requests of a trace begin like an earlier one, and some continue an earlier answer."""
    shared = turns = total = 0
    for index in TRACES:
        seen: set[str] = set()
        for event in drawn(1, index).events:
            if isinstance(event, Arrive):
                total += 1
                shared += event.prompt[0][0] in seen
                turns += any(document == "~" for document, _ in event.prompt)
                seen.add(event.prompt[0][0])
    assert shared > 0.5 * total
    assert turns > 0.1 * total


def test_a_sleeping_engine_is_woken_next() -> None:
    for index in TRACES:
        tags = [str(event.__struct_config__.tag) for event in drawn(1, index).events]
        for before, after in pairwise(tags):
            assert (before == "sleep") == (after == "wake")


def test_all_required_states_are_reached_within_a_campaign() -> None:
    """The smoke test of the whole grammar: 250 traces are no vacuous campaign."""
    reached: Counter[str] = Counter()
    for index in range(250):
        reached.update(run_trace(CLEAN, drawn(1, index)).reached)
    assert missing_states(CLEAN.capabilities, reached) == []


def test_a_setting_that_excludes_a_frequent_one_stays_frequent() -> None:
    """A refused configuration is repaired. Drawn again as a whole, a third of all traces would have priorities."""

    def refuse(config: Config) -> str:
        return "they exclude each other" if config.policy == "priority" and not config.async_depth else ""

    configs = [draw_valid_config(RandomChoices(4, index), refuse, CLEAN.capabilities, {}) for index in range(2000)]
    assert not any(map(refuse, configs))
    assert sum(config.policy == "priority" for config in configs) > 0.35 * len(configs)


def test_fewer_steps_are_in_flight_with_some_values_of_an_option() -> None:
    """With those that `depths` leaves out all are; also if the campaign holds the value, or the depth itself."""
    capabilities = msgspec.structs.replace(
        CLEAN.capabilities, options={"pipeline": ("no", "yes")}, depths={"pipeline": {"no": 1}}
    )

    def depths(overrides: dict[str, object], pipeline: str) -> set[int]:
        choices = (RandomChoices(4, index) for index in range(300))
        configs = [draw_valid_config(one, lambda config: "", capabilities, overrides) for one in choices]
        return {config.async_depth for config in configs if config.options["pipeline"] == pipeline}

    assert depths({}, "no") == {0, 1}
    assert depths({}, "yes") == depths({"pipeline": "yes"}, "yes") == {0, 1, 2}
    assert depths({"async_depth": "2"}, "no") == {2}


def test_an_extra_gives_way_to_what_every_configuration_has() -> None:
    """A repeated value of an option is the usual one. Where another one excludes drafts, it is left out, not the
    drafts: before, 58 % of the configurations had drafts, which are drawn for three quarters. Here 6 % of the
    configurations are about the extra."""
    capabilities = msgspec.structs.replace(CLEAN.capabilities, options={"pipeline": ("no", "no", "yes", "deep")})

    def refuse(config: Config) -> str:
        staged = config.options["pipeline"] != "no"
        return "stages exclude drafts" if staged and config.num_speculative_tokens else ""

    configs = [draw_valid_config(RandomChoices(4, index), refuse, capabilities, {}) for index in range(1000)]
    assert not any(map(refuse, configs))
    assert sum(config.num_speculative_tokens > 0 for config in configs) > (0.7 - 0.06) * len(configs)
    assert {config.options["pipeline"] for config in configs} == {"no", "yes", "deep"}


def test_an_extra_that_fits_little_is_what_some_configurations_are_about() -> None:
    """An extra that works beside one setting in a thousand is drawn all the same: the others give way to it."""
    capabilities = msgspec.structs.replace(CLEAN.capabilities, options={"replay": ("0", "0", "0", "6")})

    def refuse(config: Config) -> str:
        fits = config.num_speculative_tokens == 0 and config.max_num_seqs == 1 and config.policy == "priority"
        return "" if fits or config.options["replay"] == "0" else "it fits little else"

    def share(percent: int) -> float:
        workload = Workload(subject=percent)
        drawn = [
            draw_valid_config(RandomChoices(4, index), refuse, capabilities, {}, workload) for index in range(1500)
        ]
        return sum(config.options["replay"] == "6" for config in drawn) / len(drawn)

    assert share(0) < 0.01
    assert share(30) > 0.02


def test_extras_that_are_seldom_drawn_together_are_what_some_configurations_are_about() -> None:
    options = {name: ("no", *["no"] * 8, "yes") for name in ("one", "other")}
    alone = msgspec.structs.replace(CLEAN.capabilities, options=options)
    both = msgspec.structs.replace(alone, together=(("one", "other"),) * 5)

    def share(capabilities: Capabilities) -> float:
        drawn = [
            draw_valid_config(RandomChoices(4, index), lambda config: "", capabilities, {}) for index in range(800)
        ]
        return sum(set(config.options.values()) == {"yes"} for config in drawn) / len(drawn)

    assert share(alone) < 0.05 and share(both) > 0.1


def test_an_extra_takes_another_value_where_one_does_not_fit() -> None:
    """Only the extras that do not fit are left out, and only if another value does not fit either."""
    capabilities = msgspec.structs.replace(CLEAN.capabilities, options={"unit": ("0", "0", "2", "4")})

    def refuse(config: Config) -> str:
        return "too small" if config.options["unit"] == "2" else ""

    configs = [draw_valid_config(RandomChoices(4, index), refuse, capabilities, {}) for index in range(1000)]
    assert sum(config.options["unit"] == "4" for config in configs) > 0.3 * len(configs)
    assert sum(config.eagle_block_drop for config in configs) > 0.15 * len(configs)


def sessions_open(trace: Trace) -> int:
    """Return the most sessions that a trace has open at a time."""
    names: set[str] = set()
    most = 0
    for event in trace.events:
        if (isinstance(event, Arrive) and event.session) or isinstance(event, Fork):
            names.add(event.name)
        elif isinstance(event, Abort):
            names.discard(event.name)
        most = max(most, len(names))
    return most


def test_sessions_leave_seats_to_others() -> None:
    """A parked session may keep a seat: on vLLM, 12 % of all steps had one row because sessions kept the others."""
    traces = [trace for trace in (drawn(1, index) for index in range(400)) if sessions_open(trace)]
    leaving = sum(sessions_open(trace) <= max(trace.config.max_num_seqs // 2, 1) for trace in traces)
    assert 0.7 * len(traces) < leaving < len(traces)


def test_a_session_without_room_is_closed() -> None:
    config = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), max_model_len=32)
    grammar = Grammar(config, CLEAN.capabilities, RandomChoices(1, 1))
    grammar.cuts = grammar.forks = False
    grammar.sessions["r0"] = 31
    assert grammar.turn() == Abort("r0")
    assert not grammar.sessions


def test_loads_follow_turns_as_well_as_arrivals() -> None:
    """A turn that waits for a load is not a prompt that does."""
    capabilities = msgspec.structs.replace(
        CLEAN.capabilities,
        events=CLEAN.capabilities.events | {"external_load"},
        features=CLEAN.capabilities.features | {"async-loads"},
    )
    traces = [draw_trace(capabilities, 2, index) for index in range(100)]
    before = Counter(
        type(first) for trace in traces for first, then in pairwise(trace.events) if isinstance(then, ExternalLoad)
    )
    assert before[Arrive] > before[Resume] > 20


def test_sequences_of_several_parts_end_near_boundaries() -> None:
    """A prompt that extends an earlier one ends near a boundary as a whole: more than six times in ten, where chance
    has it three times. (Only its last part was as long as a few blocks.)"""
    config = Config(
        num_blocks=40,
        groups=(Group("mamba", 16), Group("attention", 16)),
        mamba_cache_mode="align",
        enable_prefix_caching=True,
        num_speculative_tokens=1,
    )
    near = 0
    for index in range(400):
        before = 1 + index % 40
        end = before + Grammar(config, CLEAN.capabilities, RandomChoices(3, index)).length(40, before)
        assert before < end <= before + 40
        near += end % 16 in (15, 0, 1, 2, 3)
    assert near > 0.6 * 400


def test_budgets_end_among_rows_that_decode() -> None:
    """Half of the budgets are within what the running requests take, so that a budget leaves out some of them."""
    config = draw_valid_config(
        RandomChoices(1, 1), lambda config: "", CLEAN.capabilities, {"max_num_batched_tokens": 90}
    )
    decode, within = 1 + config.num_speculative_tokens, 0
    for index in range(400):
        grammar = Grammar(config, CLEAN.capabilities, RandomChoices(3, index), apart=RandomChoices(4, index))
        grammar.left = {"r0": 4, "r1": 4}
        budget = grammar.budget()
        assert decode <= budget <= 90
        within += budget <= 3 * decode
    assert within > 200


def test_requests_run_together_and_end_by_drawn_steps() -> None:
    """Most batches have several rows, and few steps are the plain ones that drain what is left."""
    steps = drawn_steps = rows = batches = 0
    for index in TRACES:
        watching = watch(drawn(1, index))
        sizes = [len(planned.rows) for planned in watching.of(Planned)]
        steps += len(sizes)
        rows += sum(sizes)
        batches += sum(map(bool, sizes))
        drawn_steps += sum(isinstance(event, Step) for event in drawn(1, index).events)
    assert rows > 1.5 * batches
    assert drawn_steps > 0.7 * steps


def test_overrides_are_fixed_and_converted() -> None:
    overrides = {"num_speculative_tokens": "2", "mamba_cache_mode": "align", "policy": "priority"}
    for index in range(20):
        config = draw_trace(CLEAN.capabilities, 1, index, overrides, CLEAN.supports).config
        assert (config.num_speculative_tokens, config.policy) == (2, "priority")
        assert (config.mamba_cache_mode, config.enable_prefix_caching) == ("align", True)
        check_config(config)


def test_unknown_overrides_are_options_of_the_target() -> None:
    config = drawn(1, 0).config
    assert apply_overrides(config, {"runner": "v1"}).options == {**config.options, "runner": "v1"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"num_speculative_tokens": "many"}, "num_speculative_tokens=many"),
        ({"mamba_cache_mode": "most"}, "mamba_cache_mode=most"),
        ({"num_blocks": "2"}, "no configuration fits"),
        ({"mamba_cache_mode": "none", "enable_prefix_caching": "true"}, "contradicts"),
    ],
)
def test_overrides_that_cannot_be_are_refused_in_one_line(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        draw_trace(CLEAN.capabilities, 1, 0, overrides, CLEAN.supports)
    assert "\n" not in str(caught.value)


def test_the_grammar_draws_for_any_configuration() -> None:
    """Also for one that is never drawn: a single tiny block size, a single sequence."""
    config = Config(num_blocks=30, groups=drawn(1, 0).config.groups[:1], max_num_seqs=1, max_model_len=20)
    grammar = Grammar(config, CLEAN.capabilities, RandomChoices(1))
    events = [grammar.next_event() for _ in range(200)]
    assert all(fits(config, event) for event in events if isinstance(event, Arrive))


def test_documents_are_those_of_the_options_value() -> None:
    """Images, adapters and salts are drawn only where the configuration has them."""
    documents = {"images": ("a", "image.b"), "adapters": ("a", "adapter.b", "salt.c")}
    capabilities = msgspec.structs.replace(
        CLEAN.capabilities, options={"inputs": ("tokens", *documents)}, documents={"inputs": documents}
    )
    found: dict[str, set[str]] = {}
    for index in range(60):
        trace = draw_trace(capabilities, 4, index)
        prompts = [event.prompt for event in trace.events if isinstance(event, Arrive)]
        kinds = found.setdefault(trace.config.options["inputs"], set())
        kinds |= {kind_of(document) for prompt in prompts for document, _ in prompt}
    assert found == {"tokens": {""}, "images": {"", "image"}, "adapters": {"", "adapter", "salt"}}


def test_what_was_evicted_is_asked_for_again_where_it_may_be_loaded_back() -> None:
    """Only with the option that has loads: more evictions, and mostly an earlier prompt behind them."""
    able = CLEAN.capabilities
    host = {"host": {"yes": frozenset({"loads-back"})}}
    able = msgspec.structs.replace(
        able, features=able.features | {"loads-back"}, features_with=host, options={"host": ("no", "yes")}
    )
    share: dict[str, list[float]] = {"no": [], "yes": []}
    for index in range(200):
        trace = draw_trace(able, 5, index)
        following = [event for last, event in pairwise(trace.events) if isinstance(last, Evict)]
        share[trace.config.options["host"]] += [isinstance(event, Arrive) for event in following]
    assert len(share["yes"]) > 1.5 * len(share["no"]) > 0
    assert sum(share["yes"]) / len(share["yes"]) > 0.5 > sum(share["no"]) / len(share["no"])


def test_configurations_under_pressure_are_short_of_memory() -> None:
    """A quarter has the values that the target declares, whatever else gives way to them, and few running requests, of
    which more run to the end of their context."""
    able = msgspec.structs.replace(
        CLEAN.capabilities, options={"room": ("much", "much", "little")}, pressure={"room": ("little",)}
    )
    table = with_ratios({"pressed": 100, "full_length": 100})
    traces = [draw_trace(able, 6, index, workload=table) for index in range(60)]
    assert {trace.config.options["room"] for trace in traces} == {"little"}
    assert {trace.config.max_num_seqs for trace in traces} == set(table.few_seats)
    usual = [draw_trace(able, 6, index, workload=with_ratios({"pressed": 0})) for index in range(200)]
    assert 20 < sum(trace.config.options["room"] == "little" for trace in usual) < 100
    fills = {kind: [_fills(trace) for trace in some] for kind, some in (("pressed", traces), ("usual", usual))}
    assert sum(fills["pressed"]) / len(traces) > 0.8 > sum(fills["usual"]) / len(usual)
    fixed = draw_trace(able, 6, 0, {"room": "much"}, workload=table)
    assert fixed.config.options["room"] == "much"


def _fills(trace: Trace) -> bool:
    """Return True if a request may run to the end of its context although its prompt is short."""
    unit = max(group.block_size for group in trace.config.groups)
    for event in trace.events:
        if isinstance(event, Arrive) and not event.session:
            prompt = sum(length for _, length in event.prompt)
            if prompt + event.max_new_tokens == trace.config.max_model_len > prompt + 2 * unit:
                return True
    return False


def test_an_engine_that_can_be_paused_is_reset_while_requests_run_too() -> None:
    able = CLEAN.capabilities
    paused = msgspec.structs.replace(able, features=able.features | {"reset-when-idle"}, events=able.events | {"pause"})
    traces = [draw_trace(paused, 1, index, supports=CLEAN.supports) for index in range(100)]
    events = [event for trace in traces for event in trace.events]
    behind_steps = at_once = 0
    for trace in traces:
        for index, event in enumerate(trace.events):
            if isinstance(event, ResetPrefixCache):
                is_late = all(isinstance(one, Step) for one in trace.events[index - 3 : index])
                behind_steps += is_late
                at_once += not is_late
                assert is_late or event.preempt_running
    assert behind_steps >= 5 and at_once >= 5
    assert sum(isinstance(event, Pause) for event in events) >= 20


def count_behind_steps(traces: list[Trace], kind: type[Event]) -> int:
    """Return how many events of a kind there are, each of which comes behind three steps."""
    places = [(trace, at) for trace in traces for at, event in enumerate(trace.events) if isinstance(event, kind)]
    found = [trace.events[at - 3 : at] for trace, at in places]
    assert all(isinstance(one, Step) for before in found for one in before)
    return len(found)


def test_a_storage_is_switched_behind_steps_where_there_is_one() -> None:
    """Nothing arrives between the end of all requests and the switch; without a storage there is none."""
    able = CLEAN.capabilities
    switched = msgspec.structs.replace(able, events=able.events | {"switch_storage"})
    with_storage = msgspec.structs.replace(switched, features=able.features | {"storage"})
    drawn = [draw_trace(with_storage, 1, index, supports=CLEAN.supports) for index in range(100)]
    assert count_behind_steps(drawn, SwitchStorage) >= 20
    bare = [draw_trace(switched, 1, index, supports=CLEAN.supports) for index in range(20)]
    assert not any(isinstance(event, SwitchStorage) for trace in bare for event in trace.events)


def test_a_detached_storage_is_attached_again_at_the_next_idle_moment_that_is_drawn_for_it() -> None:
    able = CLEAN.capabilities
    able = msgspec.structs.replace(able, events=able.events | {"switch_storage"}, features=able.features | {"storage"})
    counts = []
    for percent in (0, 100):
        workload = Workload(switch_back=percent)
        drawn = [draw_trace(able, 1, index, {}, CLEAN.supports, workload=workload) for index in range(60)]
        found = [sum(isinstance(event, SwitchStorage) for event in trace.events) for trace in drawn]
        counts.append(sum(count >= 2 for count in found))
        assert percent == 0 or count_behind_steps(drawn, SwitchStorage)
    assert counts[0] < counts[1], counts


def test_the_encoder_cache_is_reset_where_prompts_have_images() -> None:
    able = CLEAN.capabilities
    documents = {"inputs": {"images": ("a", "image.b")}}
    with_images = msgspec.structs.replace(
        able,
        events=able.events | {"reset_encoder_cache"},
        features=able.features | {"images"},
        options={**able.options, "inputs": ("tokens", "images")},
        documents=documents,
    )
    found = 0
    for index in range(60):
        trace = draw_trace(with_images, 1, index)
        resets = sum(isinstance(event, ResetEncoderCache) for event in trace.events)
        assert not resets or trace.config.options["inputs"] == "images"
        found += resets > 0
    assert found >= 10


def test_few_requests_are_left_to_the_plain_steps_of_the_end() -> None:
    """They would end without drafts, beside nothing. Of 100 traces 70 are left, without overtime 123."""

    def left(workload: Workload) -> int:
        total = 0
        for index in range(100):
            trace = draw_trace(CLEAN.capabilities, 2, index, supports=CLEAN.supports, workload=workload)
            lockstep = Engines(CLEAN, trace.config).open()
            assert isinstance(lockstep, Lockstep)
            for number, event in enumerate(trace.events):
                lockstep.apply(event, number)
            total += len(lockstep.context.before.running) + len(lockstep.context.before.waiting)
        return total

    assert left(DEFAULT) < 0.75 * left(msgspec.structs.replace(DEFAULT, overtime=(1,)))


def test_a_reset_that_needs_an_idle_engine_comes_behind_steps() -> None:
    """Steps until the requests have probably ended, and a few more; nothing arrives in between."""
    idle = msgspec.structs.replace(CLEAN.capabilities, features=CLEAN.capabilities.features | {"reset-when-idle"})
    traces = [draw_trace(idle, 1, index, supports=CLEAN.supports) for index in range(150)]
    assert count_behind_steps(traces, ResetPrefixCache) >= 20


def test_most_answers_end_by_a_stop_token() -> None:
    """Where there is room for more: full-length requests and foreseen ends are drawn, too."""
    turns = [event for index in range(200) for event in drawn(1, index).events if isinstance(event, Turn)]
    assert all(0 <= event.stop_at < event.max_new_tokens or not event.stop_at for event in turns)
    assert 0.6 < sum(event.stop_at > 0 for event in turns) / len(turns) < 0.9


def test_without_stop_tokens_everything_else_is_drawn_as_before() -> None:
    """For a target that has none, and with a ratio of 0."""
    features = CLEAN.capabilities.features - {"stop-tokens"}
    without = msgspec.structs.replace(CLEAN.capabilities, features=features)
    table = msgspec.structs.replace(DEFAULT, stop_token=0)
    for index in range(20):
        trace = draw_trace(CLEAN.capabilities, 1, index, supports=CLEAN.supports, workload=table)
        assert trace == draw_trace(without, 1, index, supports=CLEAN.supports)
        assert not any(event.stop_at for event in trace.events if isinstance(event, Turn))


def asking(*features: str, count: int = 60) -> list[Trace]:
    """Return traces of a target with further features."""
    more = msgspec.structs.replace(CLEAN.capabilities, features=CLEAN.capabilities.features | set(features))
    return [draw_trace(more, 1, index, supports=CLEAN.supports) for index in range(count)]


def test_some_requests_ask_for_log_probabilities_or_structured_output() -> None:
    """Turns of sessions ask for structured output alone, each for itself."""
    arrivals = [event for trace in asking("structured-output") for event in trace.events if isinstance(event, Arrive)]
    assert 0.05 < sum(event.prompt_logprobs for event in arrivals) / len(arrivals) < 0.25
    assert {event.structured for event in arrivals} == {0, 1, 2, 3, 5}
    assert not any(event.session and event.prompt_logprobs for event in arrivals)
    assert not any(event.logprobs_from for event in arrivals)
    traces = asking("structured-output", count=150)
    turns = [event for trace in traces for event in trace.events if isinstance(event, Resume)]
    assert 0.05 < sum(event.structured > 0 for event in turns) / len(turns) < 0.3


def test_more_traces_with_drafts_have_structured_output() -> None:
    """Beside drafts a grammar is walked and rolled back. A workload that asks for more of it gets that everywhere."""
    able = msgspec.structs.replace(CLEAN.capabilities, features=CLEAN.capabilities.features | {"structured-output"})

    def shares(workload: Workload) -> list[float]:
        """Return the shares of traces with such requests: without drafts, with drafts."""
        found: list[list[bool]] = [[], []]
        for index in range(240):
            trace = draw_trace(able, 1, index, supports=CLEAN.supports, workload=workload)
            asked = any(isinstance(event, Turn) and event.structured for event in trace.events)
            found[trace.config.num_speculative_tokens > 0].append(asked)
        return [sum(asked) / len(asked) for asked in found]

    free, drafted = shares(DEFAULT)
    assert 0.2 < free < 0.4 < drafted < 0.6
    assert min(shares(msgspec.structs.replace(DEFAULT, structured_used=100))) > 0.85
    assert max(shares(msgspec.structs.replace(DEFAULT, structured_drafted=0))) < 0.4


def test_some_answers_with_structured_output_begin_with_reasoning() -> None:
    """It ends within the answer, or with it; no other request reasons."""
    turns = [event for trace in asking("reasoning") for event in trace.events if isinstance(event, Turn)]
    reasons = [event for event in turns if event.reasoning]
    assert all(event.structured and event.reasoning <= (event.stop_at or event.max_new_tokens) for event in reasons)
    assert 0.25 < len(reasons) / sum(event.structured > 0 for event in turns) < 0.55
    assert {type(event) for event in reasons} == {Arrive, Resume}
    assert not any(event.reasoning for trace in asking() for event in trace.events if isinstance(event, Turn))


def test_a_few_grammars_do_not_compile() -> None:
    """Those of requests, after any number of steps; not of sessions."""
    arrivals = [event for index in range(200) for event in drawn(1, index).events if isinstance(event, Arrive)]
    bad = [event for event in arrivals if event.bad_grammar]
    assert 0.01 < len(bad) / len(arrivals) < 0.1
    assert {event.bad_grammar for event in bad} == {1, 2, 3, 5}
    assert not any(event.session or event.structured for event in bad)
    table = msgspec.structs.replace(DEFAULT, bad_grammars_used=0)
    for index in range(60):
        trace = draw_trace(CLEAN.capabilities, 1, index, supports=CLEAN.supports, workload=table)
        assert not any(isinstance(event, Arrive) and event.bad_grammar for event in trace.events)


def test_some_stop_tokens_are_to_be_found_as_strings() -> None:
    turns = [event for trace in asking("stop-strings") for event in trace.events if isinstance(event, Turn)]
    assert all(event.stop_at for event in turns if event.stop_string)
    assert 0.2 < sum(event.stop_string for event in turns) / sum(event.stop_at > 0 for event in turns) < 0.6
    assert not any(event.stop_string for trace in asking() for event in trace.events if isinstance(event, Turn))


def test_half_of_the_stop_strings_have_several_tokens() -> None:
    turns = [event for trace in asking("stop-strings") for event in trace.events if isinstance(event, Turn)]
    strings = [event for event in turns if event.stop_string]
    assert 0.3 < sum(event.string_before > 0 for event in strings) / len(strings) < 0.7
    assert {event.string_before for event in strings} == {0, 1, 2, 3}
    assert not any(event.string_before for event in turns if not event.stop_string)


def test_some_answers_have_a_least_number_of_tokens() -> None:
    """Before the stop token or behind its place, and more than there may be where the context ends the answer."""
    turns = [event for trace in asking("min-tokens") for event in trace.events if isinstance(event, Turn)]
    beyond = [event for event in turns if event.min_tokens > event.max_new_tokens]
    assert 0 < len(beyond) < len(turns) / 20
    turns = [event for event in turns if event not in beyond]
    exact = [event for event in turns if event.min_tokens and not event.stop_at]
    assert exact and all(event.min_tokens == event.max_new_tokens for event in exact)
    least = [event for event in turns if event.min_tokens and event.stop_at]
    assert all(event.min_tokens <= event.max_new_tokens for event in least)
    assert 0.15 < len(least) / sum(event.stop_at > 0 for event in turns) < 0.45
    assert 0.2 < sum(event.min_tokens < event.stop_at for event in least) / len(least) < 0.8
    table = msgspec.structs.replace(DEFAULT, min_tokens=0, exact_length=0, beyond_context=0)
    for index in range(60):
        trace = draw_trace(CLEAN.capabilities, 1, index, supports=CLEAN.supports, workload=table)
        assert not any(isinstance(event, Turn) and event.min_tokens for event in trace.events)


def test_more_tokens_than_the_context_holds_are_asked_for_where_the_answer_fills_it() -> None:
    for trace in asking("min-tokens"):
        for event in trace.events:
            if isinstance(event, Arrive) and event.min_tokens > event.max_new_tokens:
                assert sum(length for _, length in event.prompt) + event.max_new_tokens == trace.config.max_model_len


def test_an_engine_that_counts_drafts_otherwise_is_asked_for_all_tokens_of_an_answer() -> None:
    """However it counts beside drafts, it holds stop tokens back until the answer ends by its length."""
    lacking = msgspec.structs.replace(CLEAN.capabilities, lacks=frozenset({"least-beside-drafts"}))
    traces = [draw_trace(lacking, 1, index, supports=CLEAN.supports) for index in range(60)]
    fewer = {True: 0, False: 0}
    for trace in traces:
        turns = [event for event in trace.events if isinstance(event, Turn) and event.min_tokens]
        drafts = trace.config.num_speculative_tokens > 0
        assert not drafts or all(event.min_tokens >= event.max_new_tokens for event in turns)
        assert not turns or not drafts or not trace.config.async_depth, "a step behind the end depends on the counting"
        fewer[drafts] += sum(event.min_tokens < event.max_new_tokens for event in turns)
    assert fewer[False] and not fewer[True]


def test_an_engine_that_ends_no_answer_by_a_grammar_alone_gets_either_that_or_a_least_number_of_tokens() -> None:
    lacking = msgspec.structs.replace(CLEAN.capabilities, lacks=frozenset({"least-by-grammar"}))
    both = {}
    for name, able in (("has", CLEAN.capabilities), ("lacks", lacking)):
        traces = [draw_trace(able, 1, index, supports=CLEAN.supports) for index in range(60)]
        turns = [event for trace in traces for event in trace.events if isinstance(event, Turn) and event.structured]
        assert turns
        both[name] = any(event.min_tokens for event in turns)
    assert both == {"has": True, "lacks": False}


def test_an_engine_that_refuses_strings_in_sessions_and_beside_grammars_gets_them_elsewhere() -> None:
    features = CLEAN.capabilities.features | {"stop-strings", "structured-output"}
    able = msgspec.structs.replace(CLEAN.capabilities, features=features)
    lacking = msgspec.structs.replace(able, lacks=frozenset({"strings-everywhere"}))
    found = {}
    for name, capabilities in (("has", able), ("lacks", lacking)):
        traces = [draw_trace(capabilities, 1, index, supports=CLEAN.supports) for index in range(60)]
        turns = [event for trace in traces for event in trace.events if isinstance(event, Turn)]
        assert any(has_stop_string(event) for event in turns)
        found[name] = any(has_string_beside(event) for event in turns)
    assert found == {"has": True, "lacks": False}


def test_samples_of_a_prompt_arrive_together_and_are_the_same() -> None:
    aborted = 0
    for trace in asking("samples"):
        for before, event in zip(trace.events, trace.events[1:], strict=False):
            if isinstance(event, Arrive) and original_name(event.name) != event.name:
                assert isinstance(before, Arrive)
                assert msgspec.structs.replace(before, name=event.name) == event
            aborted += isinstance(event, Abort) and bool(event.together)
    assert aborted > 2


def test_some_clients_abort_a_turn_and_go_on_with_its_session() -> None:
    """With a turn that probably runs or waits, of a session that is not closed; not on a target that closes it."""
    kept = closed = went_on = 0
    table = msgspec.structs.replace(DEFAULT, rare={**DEFAULT.rare, "abort": 30})

    def drawn(able: Capabilities) -> list[Trace]:
        return [draw_trace(able, 1, index, supports=CLEAN.supports, workload=table) for index in range(60)]

    for trace in drawn(CLEAN.capabilities):
        sessions = {event.name for event in trace.events if isinstance(event, Arrive) and event.session}
        left: set[str] = set()
        for event in trace.events:
            if isinstance(event, Abort) and event.name in sessions:
                kept += event.keeps_session
                closed += not event.keeps_session
                left |= {event.name} if event.keeps_session else set()
            elif isinstance(event, Resume):
                went_on += event.name in left
    assert kept > 3 and closed > kept and went_on > 0
    less = msgspec.structs.replace(CLEAN.capabilities, features=CLEAN.capabilities.features - {"aborted-turns"})
    assert not any(isinstance(event, Abort) and event.keeps_session for trace in drawn(less) for event in trace.events)


def test_no_number_is_drawn_from_an_empty_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis refuses one: a session whose first turn was aborted has no tokens, and was cut."""

    class Strict(RandomChoices):
        def integer(self, low: int, high: int) -> int:
            assert low <= high
            return super().integer(low, high)

    monkeypatch.setattr(grammar, "RandomChoices", Strict)
    often = {"turn_aborted": 100, "turn_truncates": 60, "truncations": 100, "rare": {**DEFAULT.rare, "abort": 60}}
    for table in (DEFAULT, msgspec.structs.replace(DEFAULT, **often)):
        for index in TRACES:
            draw_trace(CLEAN.capabilities, 1, index, supports=CLEAN.supports, workload=table)


def test_in_some_traces_every_draft_is_right() -> None:
    """But for those of single requests: a request then crosses boundaries in two verifications in a row."""
    steps = [
        [event for event in trace.events if isinstance(event, Step)]
        for trace in (draw_trace(CLEAN.capabilities, 1, index, supports=CLEAN.supports) for index in range(80))
        if trace.config.num_speculative_tokens
    ]
    right = [all(step.right == step.drafts for step in trace) for trace in steps if len(trace) > 5]
    assert 0.1 < sum(right) / len(right) < 0.4
    assert any(step.per_request for trace in steps if all(one.right == one.drafts for one in trace) for step in trace)


def test_some_clients_want_the_log_probabilities_of_the_end_of_a_prompt() -> None:
    arrivals = [event for trace in asking("logprobs-from") for event in trace.events if isinstance(event, Arrive)]
    wanted = [event for event in arrivals if event.prompt_logprobs]
    assert 0.3 < sum(event.logprobs_from > 0 for event in wanted) / len(wanted) < 0.6
    assert all(event.logprobs_from < sum(length for _, length in event.prompt) for event in wanted)
    assert not any(event.logprobs_from for event in arrivals if not event.prompt_logprobs)


def test_what_requests_ask_for_shifts_no_other_draw() -> None:
    """Log-probabilities, structured output and grammars that do not compile have choices of their own."""
    asks = {"prompt-logprobs", "structured-output", "failing-grammars", "min-tokens"}
    features = CLEAN.capabilities.features - asks
    plain = msgspec.structs.replace(CLEAN.capabilities, features=features)
    asked = {"prompt_logprobs": False, "structured": 0, "reasoning": 0, "bad_grammar": 0, "min_tokens": 0}
    for index, trace in enumerate(asking("structured-output", "reasoning")[:20]):
        events = tuple(
            msgspec.structs.replace(event, **{name: plainly for name, plainly in asked.items() if hasattr(event, name)})
            if isinstance(event, Turn)
            else event
            for event in trace.events
        )
        assert events == draw_trace(plain, 1, index, supports=CLEAN.supports).events


def test_answers_have_one_token_where_an_option_says_so() -> None:
    """And there are none of the events that it switches off."""
    able = msgspec.structs.replace(
        CLEAN.capabilities,
        options={"part": ("whole", "first")},
        features_with={"part": {"whole": frozenset({"long-answers", "preempt", "resume", "stop-tokens"})}},
    )
    longest: dict[str, int] = {}
    tags: dict[str, set[str]] = {}
    for index in range(60):
        trace = draw_trace(able, 8, index)
        part = trace.config.options["part"]
        asked = [event for event in trace.events if isinstance(event, Arrive)]
        longest[part] = max([longest.get(part, 0), *(event.max_new_tokens for event in asked)])
        tags[part] = tags.get(part, set()) | {tag_of(event) for event in trace.events}
        assert part == "whole" or not any(event.session or event.stop_at for event in asked)
    assert longest["first"] == 1 < longest["whole"]
    assert tags["whole"] - tags["first"] >= {"preempt", "resume"}
