"""The SGLang target's capabilities and refusals, without SGLang."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from hybridfuzz.harness.draw.adapt import refusal
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.state_catalogue import required_states
from hybridfuzz.targets.base.declarations import check_capabilities
from hybridfuzz.targets.base.trace import Arrive, Config, DummyRun, Group, Step, Trace
from hybridfuzz.targets.sglang.compat.sizes import sizes_of, storage_config, storage_request
from hybridfuzz.targets.sglang.deployment import deployment
from hybridfuzz.targets.sglang.factory import SglangFactory, variants

PLAIN = Config(num_blocks=60, groups=(Group("mamba", 4), Group("attention", 1)), mamba_cache_mode="slots")
WINDOWS = (*PLAIN.groups, Group("attention", 1, window=4))
LARGE_WINDOWS = (Group("mamba", 4), Group("attention", 4), Group("attention", 4, window=4))
FACTORY = SglangFactory("sglang")
MIXES = SglangFactory("sglang", mixes=True)


def config(strategy: str, **changes: object) -> Config:
    return msgspec.structs.replace(PLAIN, options={"strategy": strategy}, **changes)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (config("no_buffer"), ""),
        (config("extra_buffer", async_depth=1), ""),
        (config("extra_buffer_lazy", async_depth=1), ""),
        (config("no_buffer", async_depth=1), "overlap"),
        (config("no_buffer", groups=(Group("mamba", 4), Group("attention", 4))), "pages of one token"),
        (config("extra_buffer_lazy"), "needs overlap"),
        (config("extra_buffer", groups=(Group("mamba", 6), Group("attention", 4))), "multiple of attention blocks"),
        (config("extra_buffer", mamba_cache_mode="align"), "slots"),
        (config("extra_buffer", mamba_cache_mode="none", groups=(Group("mamba", 8), Group("attention", 16))), ""),
        (config("no_buffer", mamba_cache_mode="none", async_depth=2), "async_depth must"),
        (config("extra_buffer", num_speculative_tokens=3), ""),
        (config("extra_buffer", num_speculative_tokens=4), "at most 3"),
    ],
)
def test_combinations_that_the_server_refuses_are_refused_with_a_reason(wanted: Config, reason: str) -> None:
    answer = FACTORY.supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


@pytest.mark.parametrize(
    ("strategy", "changes", "reason"),
    [
        ("extra_buffer", {}, ""),
        ("extra_buffer_lazy", {"async_depth": 1}, ""),
        ("no_buffer", {}, "windows need prefix caching with strategy extra_buffer"),
        ("extra_buffer", {"mamba_cache_mode": "none"}, "windows need prefix caching"),
        ("extra_buffer", {"groups": (*PLAIN.groups, Group("attention", 2, window=4))}, "the pages of the attention"),
        ("extra_buffer", {"groups": (*WINDOWS, WINDOWS[-1])}, "windows need one group"),
        ("extra_buffer", {"options": {"strategy": "extra_buffer", "tree_core": "rust"}}, "tree_core=python"),
        ("extra_buffer", {"options": {"strategy": "extra_buffer", "hicache": "write_back"}}, ""),
    ],
)
def test_windows_are_taken_as_models_have_them_that_have_states_too(
    strategy: str, changes: dict[str, Any], reason: str
) -> None:
    wanted = msgspec.structs.replace(config(strategy, groups=WINDOWS), **changes)
    answer = MIXES.supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_windows_images_and_idle_ranks_are_drawn() -> None:
    drawn = [draw_trace(MIXES.capabilities, 1, index, {}, MIXES.supports) for index in range(150)]
    assert any(group.window for trace in drawn for group in trace.config.groups)
    assert {trace.config.options["inputs"] for trace in drawn} == {"tokens", "images", "adapters", "tenants"}
    assert any(isinstance(event, DummyRun) for trace in drawn for event in trace.events)
    assert not FACTORY.capabilities.windows
    assert "dummy_run" not in FACTORY.capabilities.events


def test_a_tree_that_a_release_does_not_have_is_refused() -> None:
    older = SglangFactory("sglang", tree_cores=("legacy", "python"))
    wanted = msgspec.structs.replace(PLAIN, options={"tree_core": "legacy"})
    assert not older.supports(wanted)
    assert "legacy" in FACTORY.supports(wanted)
    assert {draw_trace(older.capabilities, 1, index, {}).config.options["tree_core"] for index in range(20)} == {
        "legacy",
        "python",
    }


def test_a_fixed_tree_core_takes_traces_of_the_others_but_draws_its_own() -> None:
    fixed = SglangFactory("sglang", "python")
    drawn = [draw_trace(fixed.capabilities, 1, index, {}, fixed.supports) for index in range(10)]
    assert {trace.config.options["tree_core"] for trace in drawn} == {"python"}
    for core, taken in (("rust", True), ("legacy", True), ("bark", False)):
        options = {**drawn[0].config.options, "tree_core": core}
        trace = Trace(msgspec.structs.replace(drawn[0].config, options=options), ())
        assert (not refusal(trace, fixed)) == taken, core


def test_a_release_whose_speculation_cannot_be_driven_gets_no_drafts() -> None:
    older = SglangFactory("sglang", drafts=0)
    assert "num_speculative_tokens must be at most 0" in older.supports(config("no_buffer", num_speculative_tokens=1))
    assert not any(
        draw_trace(older.capabilities, 1, index, {}, older.supports).config.num_speculative_tokens
        for index in range(20)
    )


def test_sessions_are_drawn_where_a_release_has_them() -> None:
    sessions = SglangFactory("sglang", sessions=True)
    tags = {
        str(event.__struct_config__.tag)
        for index in range(20)
        for event in draw_trace(sessions.capabilities, 1, index, {}, sessions.supports).events
    }
    assert "resume" in tags
    assert "resume" not in FACTORY.capabilities.events
    assert "sessions" in variants()


def test_mixed_chunks_and_priorities_are_drawn_where_a_release_is_driven_with_them() -> None:
    drawn = [draw_trace(MIXES.capabilities, 1, index, {}, MIXES.supports).config for index in range(60)]
    assert {one.options["mixed_chunk"] for one in drawn} == {"no", "yes"}
    assert {one.policy for one in drawn} == {"fcfs", "priority"}
    assert "mixed_chunk" not in FACTORY.capabilities.options and FACTORY.capabilities.policies == ("fcfs",)


def test_a_machine_that_cannot_compile_the_hash_of_pages_gets_no_storage_and_keeps_the_host_tier() -> None:
    bare = SglangFactory("sglang", mixes=True, hashes=False)
    drawn = [draw_trace(bare.capabilities, 1, index, {}, bare.supports).config for index in range(60)]
    assert any(one.options["hicache"] != "no" for one in drawn)
    assert not any("storage" in one.options for one in drawn)
    assert "storage" not in bare.capabilities.features <= MIXES.capabilities.features
    wanted = config("extra_buffer", async_depth=1)
    wanted.options.update(hicache="write_through", storage="file")
    assert not MIXES.supports(wanted)
    assert "needs a C++ compiler and headers of OpenSSL" in bare.supports(wanted)


def test_a_server_with_states_has_one_of_two_layouts_of_the_host() -> None:
    """Old traces ran with the second, unified memory with the default whatever is asked for: the server resolves it."""

    def flags(**options: str) -> tuple[str, ...]:
        wanted = config("extra_buffer", async_depth=1)
        wanted.options.update(hicache="write_through", tree_core="python", **options)
        assert not MIXES.supports(wanted)
        return deployment("", Trace(wanted, ()), "0.5.23").flags

    direct = "--hicache-mem-layout", "page_first_direct"
    for options in ({}, {"host_layout": "page_first_direct"}):
        given = flags(**options)
        assert direct in pairwise(given)
    assert "--hicache-mem-layout" not in flags(host_layout="page_first")
    assert "--hicache-mem-layout" not in flags(host_layout="page_first_direct", unified_memory="lazy")
    refused = config("extra_buffer", async_depth=1)
    refused.options.update(hicache="write_through", host_layout="layer_first")
    assert "the server ends at its start" in MIXES.supports(refused)


@pytest.mark.parametrize("drafter", ["eagle", "ngram"])
def test_a_server_mixes_chunks_beside_a_draft_model_but_not_beside_n_grams(drafter: str) -> None:
    wanted = config("no_buffer")
    wanted.options.update(mixed_chunk="yes", drafter=drafter)
    assert not MIXES.supports(wanted)
    drafts = msgspec.structs.replace(wanted, num_speculative_tokens=2)
    assert ("the server switches it off" in MIXES.supports(drafts)) == (drafter == "ngram")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"options": {"drafter": "eagle"}}, ""),
        ({"options": {"unified_memory": "lazy", "drafter": "eagle"}}, "refuses trees of drafts"),
        ({"options": {"breadth": "3"}}, "too many drafts"),
        ({"options": {"breadth": "3", "track": "2"}}, ""),
        ({"groups": WINDOWS}, ""),
        ({"groups": LARGE_WINDOWS}, "needs pages of one token"),
        ({"groups": LARGE_WINDOWS, "options": {"drafter": "eagle"}}, ""),
    ],
)
def test_trees_of_drafts_are_taken_where_a_server_takes_them(changes: dict[str, Any], reason: str) -> None:
    options = {"strategy": "extra_buffer", "breadth": "2", "tree_core": "python", **changes.get("options", {})}
    drafts = {"num_speculative_tokens": 1 if options["breadth"] == "2" else 2}
    wanted = msgspec.structs.replace(PLAIN, **{**drafts, **changes, "options": options})
    answer = MIXES.supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)
    without = msgspec.structs.replace(wanted, options={**options, "breadth": "1"})
    assert not MIXES.supports(without)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"sampled": "target"}, ""),
        ({"sampled": "target", "breadth": "2", "track": "2"}, ""),
        ({"sampled": "rejection", "drafter": "eagle"}, ""),
        ({"sampled": "block", "drafter": "eagle"}, ""),
        ({"sampled": "rejection"}, "needs drafter=eagle"),
        ({"sampled": "block", "drafter": "eagle", "breadth": "2", "track": "2"}, "breadth=1"),
    ],
)
def test_verifications_that_sample_are_taken_where_a_server_takes_them(options: dict[str, str], reason: str) -> None:
    wanted = msgspec.structs.replace(
        PLAIN, num_speculative_tokens=2, options={"strategy": "extra_buffer", "tree_core": "python", **options}
    )
    answer = MIXES.supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)
    flags = deployment("", Trace(wanted, (Arrive("b", (("a", 3),), 4),)), "0.5.23").flags
    assert ("--speculative-use-rejection-sampling" in flags) == (options["sampled"] == "rejection")
    assert ("--speculative-use-block-verification" in flags) == (options["sampled"] == "block")
    assert sizes_of(msgspec.structs.replace(wanted, num_speculative_tokens=0)).sampled == "no"


@pytest.mark.parametrize("logits", ["shaped", "processors"])
def test_logits_are_shaped_where_nothing_is_drawn_by_chance(logits: str) -> None:
    drafts = msgspec.structs.replace(PLAIN, num_speculative_tokens=2)
    for config in (PLAIN, drafts):
        for sampled in ("no", "target"):
            options = {"strategy": "extra_buffer", "tree_core": "python", "sampled": sampled}
            assert not MIXES.supports(msgspec.structs.replace(config, options=options))
            answer = MIXES.supports(msgspec.structs.replace(config, options={**options, "logits": logits}))
            assert ("is not driven with sampled=target" in answer) == bool(answer)
            # Without drafts nothing is verified.
            assert bool(answer) == (config is drafts and sampled == "target")


def test_logits_are_shaped_now_and_then_and_the_server_is_told() -> None:
    drawn = [draw_trace(MIXES.capabilities, 1, index, {}, MIXES.supports).config for index in range(900)]
    shaped = [one for one in drawn if one.options["logits"] == "shaped"]
    assert {one.options["logits"] for one in drawn} == {"plain", "shaped", "processors"}
    assert 0.15 < len(shaped) / len(drawn) < 0.4
    for config in (PLAIN, shaped[0]):
        shown = deployment("", Trace(config, ()), "0.5.23")
        assert ("--enable-custom-logit-processor" in shown.flags) == (config is not PLAIN)
        assert shown.client and ("logit_bias" in str(shown.client)) == (config is not PLAIN)


@pytest.mark.parametrize(
    ("options", "depth", "reason"),
    [
        ({"delay": "slots"}, 1, ""),
        ({"delay": "queue"}, 1, ""),
        ({"delay": "free"}, 0, ""),
        ({"delay": "slots"}, 0, "needs overlap"),
        ({"delay": "queue"}, 0, "needs overlap"),
        ({"chunked": "no"}, 0, ""),
        ({"chunked": "no", "mixed_chunk": "yes"}, 0, "the server switches it off"),
        ({"preempts": "no"}, 0, ""),
    ],
)
def test_admission_is_asked_for_as_a_server_takes_it(options: dict[str, str], depth: int, reason: str) -> None:
    given = {"strategy": "extra_buffer", "tree_core": "python", **options}
    wanted = msgspec.structs.replace(PLAIN, async_depth=depth, policy="priority", options=given)
    answer = MIXES.supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)
    shown = deployment("", Trace(wanted, ()), "0.5.23")
    pairs = list(pairwise((*shown.flags, *shown.sizes)))
    assert ("--enable-prefill-delayer" in shown.flags) == (options.get("delay") in ("slots", "queue"))
    assert (("--prefill-delayer-queue-min-ratio", "1") in pairs) == (options.get("delay") == "queue")
    assert (("--min-free-slots-delay", "2") in pairs) == (options.get("delay") == "free")
    assert ("--disable-priority-preemption" in shown.flags) == ("preempts" in options)
    assert (
        (("--chunked-prefill-size", "-1") in pairs) == ("chunked" in options) == ("--max-prefill-tokens" in shown.sizes)
    )
    # Without priorities there is nothing to switch off.
    assert sizes_of(msgspec.structs.replace(wanted, policy="fcfs")).preempts


def test_clients_ask_for_a_temperature_where_nothing_is_withheld() -> None:
    """Each by its name; what else a client asks for may take the first choice away."""
    sampled = msgspec.structs.replace(PLAIN, num_speculative_tokens=2, options={"sampled": "target"})
    plain, least = Arrive("r1", (("a", 3),), 4), Arrive("r1", (("a", 3),), 4, stop_at=4, min_tokens=3)
    for config, event in ((sampled, plain), (sampled, least), (PLAIN, plain)):
        client = deployment("", Trace(config, (event,)), "0.5.23").client
        assert client and ("temperature" in str(client.calls)) == (config is sampled and event is plain)


@pytest.mark.parametrize(("drafter", "page"), [("eagle", 1), ("eagle", 4), ("ngram", 1), ("ngram", 4)])
def test_a_server_is_told_the_breadth_of_a_tree_and_how_long_it_is(drafter: str, page: int) -> None:
    groups = Group("mamba", 8), Group("attention", page)
    options = {"strategy": "extra_buffer", "breadth": "2", "drafter": drafter}
    wanted = msgspec.structs.replace(PLAIN, groups=groups, num_speculative_tokens=3, options=options)
    assert not MIXES.supports(wanted)
    flags = list(pairwise(deployment("", Trace(wanted, ()), "0.5.23").flags))
    assert ("--speculative-num-draft-tokens", "7") in flags
    assert (("--speculative-eagle-topk", "2") in flags) == (drafter == "eagle")
    assert (("--speculative-num-steps", "3") in flags) == (drafter == "eagle")
    assert (("--speculative-ngram-max-bfs-breadth", "2") in flags) == (drafter == "ngram")
    assert (("--attention-backend", "flashinfer") in flags) == (page > 1)
    assert sizes_of(wanted).drafts == 7
    # Pages of its own for each branch of a draft model's tree: 2 of 4 tokens for 3 drafts.
    assert sizes_of(wanted).decode_tokens == (16 if (drafter, page) == ("eagle", 4) else 7)


def test_prompts_alone_are_kept_where_that_is_asked_for() -> None:
    """It is taken and not drawn; the server is told both that answers are reasoning, and not to keep them."""
    asked = msgspec.structs.replace(PLAIN, options={"strip_thinking": "yes"}, max_model_len=24)
    assert not refusal(Trace(asked, ()), MIXES) and "strip_thinking" not in MIXES.capabilities.options
    assert refusal(Trace(asked, ()), FACTORY)
    assert sizes_of(asked).strips and not sizes_of(PLAIN).strips
    flags = deployment("", Trace(asked, ()), "0.5.23").flags
    assert {"--strip-thinking-cache", "--reasoning-parser"} <= set(flags)
    assert "--strip-thinking-cache" not in deployment("", Trace(PLAIN, ()), "0.5.23").flags


def test_a_server_with_priorities_sorts_by_arrival_or_length_only() -> None:
    wanted = msgspec.structs.replace(PLAIN, policy="priority", options={"strategy": "no_buffer", "order": "lpm"})
    assert "takes fcfs and lof" in MIXES.supports(wanted)
    assert not MIXES.supports(msgspec.structs.replace(wanted, options={"strategy": "no_buffer", "order": "lof"}))


def test_a_server_is_told_who_gives_way_and_how_many_prompts_a_step_has() -> None:
    """Retraction by priority needs priorities: without them the server refuses it."""
    options = {"strategy": "no_buffer", "retraction": "priority", "prefill_rows": "1"}
    wanted = msgspec.structs.replace(PLAIN, policy="priority", options=options)
    told = " ".join(deployment("", Trace(wanted, ()), "0.5.23").flags)
    assert "--retraction-policy priority" in told and "--prefill-max-requests 1" in told
    without = msgspec.structs.replace(wanted, policy="fcfs")
    assert "--retraction-policy" not in deployment("", Trace(without, ()), "0.5.23").flags
    assert not MIXES.supports(wanted) and not MIXES.supports(without)


def test_clients_come_with_routing_keys_where_requests_are_sorted_by_them() -> None:
    """Two of three: by the name of the request."""
    events = tuple(Arrive(f"r{number}", (("a", 5),), 1) for number in range(9))
    for order, count in (("routing-key", 6), ("random", 0)):
        wanted = msgspec.structs.replace(PLAIN, options={"strategy": "no_buffer", "order": order})
        assert not MIXES.supports(wanted)
        described = deployment("", Trace(wanted, events), "0.5.23")
        assert described.client is not None
        assert str(described.client.calls).count("routing_key=") == count


def test_a_storage_is_attached_again_with_a_policy_of_its_own() -> None:
    """Not with write_back where the host is a buffer."""
    base = {"strategy": "extra_buffer", "hicache": "write_through", "storage": "file"}
    for more, policy in (
        ({}, None),
        ({"attach_policy": "write_back"}, "write_back"),
        ({"attach_policy": "write_back", "host_mode": "buffer"}, None),
        ({"attach_policy": "write_through_selective", "host_mode": "buffer"}, "write_through_selective"),
    ):
        asked = storage_request(sizes_of(msgspec.structs.replace(PLAIN, options={**base, **more})))
        assert asked.get("hicache_write_policy") == policy
    told = storage_config(sizes_of(msgspec.structs.replace(PLAIN, options={**base, "prefix_keys": "yes"})))
    assert told["hicache_storage_pass_prefix_keys"] is True


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"mamba_cache_mode": "none", "async_depth": 1, "options": {"strategy": "extra_buffer"}}, ""),
        ({"options": {"hicache": "write_through", "tree_core": "python", "mixed_chunk": "yes"}}, ""),
        ({"options": {"strategy": "extra_buffer"}}, "needs strategy no_buffer: the server refuses"),
        ({"num_speculative_tokens": 2, "options": {"drafter": "eagle"}}, "excludes drafts"),
        ({"options": {"unified_memory": "lazy"}}, "has no rings"),
        ({"options": {"state_layers": "mamba2"}}, "needs state_layers=gdn"),
    ],
)
def test_a_ring_of_inputs_is_taken_where_it_has_an_effect(changes: dict[str, Any], reason: str) -> None:
    options = {"strategy": "no_buffer", "replay": "3", **changes.get("options", {})}
    wanted = msgspec.structs.replace(PLAIN, **{**changes, "options": options})
    answer = MIXES.supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)
    without = msgspec.structs.replace(wanted, options={**options, "replay": "0"})
    assert not MIXES.supports(without)


def test_a_ring_of_inputs_is_drawn_now_and_then_and_the_server_is_told() -> None:
    drawn = [draw_trace(MIXES.capabilities, 2, index, {}, MIXES.supports).config for index in range(600)]
    rings = [one for one in drawn if one.options["replay"] != "0"]
    assert 0 < len(rings) < 60 and {sizes_of(one).ring for one in rings} == {3, 6}
    for one in (rings[0], msgspec.structs.replace(rings[0], mamba_cache_mode="none", enable_prefix_caching=False)):
        flags = deployment("", Trace(one, ()), "0.5.23").flags
        assert "--enable-linear-replayssm" in flags and "--mamba-track-interval" in flags
        assert ("--linear-replayssm-cache-len", one.options["replay"]) in pairwise(flags)
    assert "--enable-linear-replayssm" not in deployment("", Trace(PLAIN, ()), "0.5.23").flags


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"async_depth": 1, "num_speculative_tokens": 2, "options": {"strategy": "extra_buffer"}}, ""),
        ({"options": {"tree_core": "rust"}}, ""),
        ({"options": {"replay": "3", "mixed_chunk": "yes"}}, ""),
        ({"mamba_cache_mode": "none", "enable_prefix_caching": False}, "needs prefix caching"),
        ({"options": {"hicache": "write_through", "tree_core": "python"}}, "the server refuses both"),
        ({"options": {"unified_memory": "lazy"}}, "has no such pool"),
        ({"groups": WINDOWS, "async_depth": 1, "options": {"strategy": "extra_buffer"}}, "excludes windows"),
    ],
)
@pytest.mark.parametrize("size", ["few", "default"])
def test_int8_checkpoints_are_taken_where_a_server_takes_them(size: str, changes: dict[str, Any], reason: str) -> None:
    options = {"strategy": "no_buffer", **changes.get("options", {})}
    without = msgspec.structs.replace(PLAIN, **{**changes, "options": options})
    assert not MIXES.supports(without)
    answer = MIXES.supports(msgspec.structs.replace(without, options={**options, "int8_checkpoints": size}))
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_int8_checkpoints_are_drawn_now_and_then_and_the_server_is_told() -> None:
    drawn = [draw_trace(MIXES.capabilities, 1, index, {}, MIXES.supports).config for index in range(900)]
    able = [
        one
        for one in drawn
        if not MIXES.supports(msgspec.structs.replace(one, options={**one.options, "int8_checkpoints": "few"}))
    ]
    some = {size: [one for one in able if one.options["int8_checkpoints"] == size] for size in ("few", "default")}
    assert 0.06 < sum(map(len, some.values())) / len(able) < 0.15
    for size, chosen in some.items():
        flags = deployment("", Trace(chosen[0], ()), "0.5.23").flags
        assert "--enable-int8-mamba-checkpoint" in flags
        given = "--int8-mamba-ckpt-size", str(chosen[0].max_num_seqs + 1)
        assert (given in pairwise(flags)) == ("--int8-mamba-ckpt-size" in flags) == (size == "few")
    assert "--enable-int8-mamba-checkpoint" not in deployment("", Trace(PLAIN, ()), "0.5.23").flags


@pytest.mark.parametrize(("size", "checkpoints"), [("few", 3), ("default", 20), ("no", 0)])
def test_checkpoints_are_numbered_between_working_slots_and_pages(size: str, checkpoints: int) -> None:
    """Two requests run; a server has five working slots for each. Number 0 of each pool is reserved."""
    options = {"strategy": "extra_buffer", "int8_checkpoints": size}
    sizes = sizes_of(msgspec.structs.replace(PLAIN, options=options, async_depth=1, max_num_seqs=2))
    assert (sizes.slots, sizes.checkpoints, sizes.first_checkpoint) == (10, checkpoints, 11)
    assert sizes.first_page == 11 + (checkpoints + 1 if checkpoints else 0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"async_depth": 1, "options": {"strategy": "extra_buffer"}}, ""),
        ({"options": {"hicache": "write_through", "tree_core": "python"}}, ""),
        ({"groups": WINDOWS, "options": {"strategy": "extra_buffer"}}, ""),
        ({"async_depth": 1, "options": {"strategy": "extra_buffer_lazy"}}, "the server refuses it"),
        ({"options": {"replay": "3"}}, "the server refuses it"),
        ({"options": {"unified_memory": "lazy"}}, "not driven with unified memory"),
        ({"num_speculative_tokens": 2}, "not driven with drafts"),
    ],
)
def test_a_prefill_server_is_taken_with_what_it_takes(changes: dict[str, Any], reason: str) -> None:
    options = {"strategy": "no_buffer", **changes.get("options", {})}
    without = msgspec.structs.replace(PLAIN, **{**changes, "options": options})
    assert not MIXES.supports(without)
    answer = MIXES.supports(msgspec.structs.replace(without, options={**options, "disaggregation": "prefill"}))
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_a_prefill_server_is_asked_for_one_token_and_told_what_it_is() -> None:
    """It has no turns of sessions and no retractions, and its campaigns do not have to reach what needs them."""
    able = SglangFactory("sglang", sessions=True, mixes=True)
    overrides = {"disaggregation": "prefill"}
    drawn = [draw_trace(able.capabilities, 1, index, overrides, able.supports) for index in range(20)]
    asked = [event for trace in drawn for event in trace.events if isinstance(event, Arrive)]
    assert {(event.max_new_tokens, event.session, event.stop_at) for event in asked} == {(1, False, 0)}
    assert not any(refusal(trace, able) for trace in drawn)
    assert ("--disaggregation-mode", "prefill") in pairwise(deployment("", drawn[0], "0.5.23").flags)
    longer = msgspec.structs.replace(drawn[0], events=(Arrive("r0", (("a", 3),), 2), Step()))
    assert "answers have no more with disaggregation=prefill" in refusal(longer, able)
    needed = set(required_states(able.capabilities, overrides))
    assert {"content sent to another engine", "prefix hit", "cached content kept outside the pool alone"} <= needed
    assert not {"preempted", "draft rejected", "session parked", "ended by a stop token", "padding rows"} & needed
    assert "answer held back until its request was sent" in required_states(able.capabilities)
    assert "answer held back until its request was sent" not in required_states(
        able.capabilities, {"disaggregation": "no"}
    )


def test_all_strategies_and_pages_are_drawn() -> None:
    drawn = [draw_trace(FACTORY.capabilities, 1, index, {}, FACTORY.supports).config for index in range(60)]
    assert {one.options["strategy"] for one in drawn} == set(FACTORY.capabilities.options["strategy"])
    assert {one.groups[1].block_size for one in drawn} >= {1, 4}
    assert {one.async_depth for one in drawn} == {0, 1}
    assert {one.num_speculative_tokens for one in drawn} == {0, 1, 2, 3}


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("core", ["", "python", "rust", "both"])
def test_each_tree_core_has_capabilities_that_agree(core: str, mixes: bool) -> None:
    """The stock server had HiCache, which `sglang:rust` does not drive: no campaign on it could start."""
    check_capabilities(SglangFactory("sglang", core, mixes=mixes).capabilities, "sglang")
