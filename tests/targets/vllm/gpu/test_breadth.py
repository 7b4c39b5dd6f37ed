"""Real models with sliding windows, images, adapters, EAGLE's rules, an MTP head and least numbers of tokens: sound
traces are silent and reach what they are for, and causes are met. Kernels are interpreted; with a GPU and a vLLM,
compiled."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import (
    Arrive,
    Config,
    DummyRun,
    Evict,
    ExternalLoad,
    Group,
    ResetPrefixCache,
    Step,
    Trace,
)

pytestmark = [pytest.mark.xdist_group("engine")]
CORPUS = Path(__file__).parents[4] / "corpus" / "vllm"
DATA = Path(__file__).parents[3] / "data"
FIX = CORPUS / "fixes" / "0.33.0" / "image-dropped-for-good.patch"
CAN_COMPILE = torch.cuda.is_available() and find_spec("vllm") is not None
COMPILED = [pytest.mark.gpu, pytest.mark.skipif(not CAN_COMPILE, reason="no GPU here, or no vLLM")]
TARGETS = (
    pytest.param("vllm@0.33.0@interpreter", marks=pytest.mark.engine, id="interpreter"),
    pytest.param("vllm@cuda", marks=COMPILED, id="cuda"),
)
BOTH = (Group("mamba", 16), Group("attention", 16))


def alike(*values: str) -> Any:
    """The second of two cases that are alike: interpreted kernels take a minute."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def batched(seats: int, options: Mapping[str, str]) -> Config:
    """Decode graphs for one and two rows."""
    return Config(
        num_blocks=30,
        groups=BOTH,
        max_model_len=64,
        max_num_seqs=seats,
        max_num_batched_tokens=64,
        graph_sizes=(1, 2),
        options=dict(options),
    )


@pytest.fixture(scope="module", params=TARGETS)
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerClient]:
    """Importing vLLM takes most of the time."""
    target: str = request.param
    with WorkerClient(target, prepare(target, print), trace_seconds=900) as client:
        client.start()
        yield client


def windowed(runner: str) -> Trace:
    """A prompt longer than a window, and one that hits its beginning."""
    config = Config(
        num_blocks=30,
        groups=(*BOTH, Group("attention", 16, window=20)),
        max_model_len=80,
        max_num_batched_tokens=64,
        options={"runner": runner, "mixer": "mamba2"},
    )
    first = (Arrive("r0", (("a", 55),), 3), Step(), Step())
    return Trace(config, (*first, Arrive("r1", (("a", 50), ("b", 3)), 3), Step(), Step()))


@pytest.mark.parametrize("runner", [alike("v2"), "v1"])
def test_a_hit_begins_behind_a_window_whose_blocks_are_given_back(worker: WorkerClient, runner: str) -> None:
    outcome = worker.run(windowed(runner))
    assert outcome.violation is None, outcome.violation.message
    assert {"hit behind a sliding window", "blocks to the left of a sliding window freed"} <= set(outcome.reached)


def adapted(runner: str, mixer: str) -> Trace:
    """Rows with an adapter beside one without, the same tokens without and with another one, and a hit."""
    options = {"runner": runner, "mixer": mixer, "inputs": "adapters"}
    config = Config(num_blocks=30, groups=BOTH, max_model_len=64, max_num_batched_tokens=64, options=options)
    first = (Arrive("r0", (("adapter.b", 19),), 3), Arrive("r1", (("a", 19),), 3), Step(), Step())
    second = (Arrive("r2", (("adapter.c", 19),), 2), Arrive("r3", (("adapter.b", 20),), 2), Step(), Step(), Step())
    return Trace(config, (*first, *second))


@pytest.mark.parametrize(("runner", "mixer"), [("v2", "mamba2"), alike("v1", "gdn")])
def test_adapters_are_applied_to_the_rows_that_ask_for_them(worker: WorkerClient, runner: str, mixer: str) -> None:
    outcome = worker.run(adapted(runner, mixer))
    assert outcome.violation is None, outcome.violation.message
    assert "prefix hit" in outcome.reached


@pytest.mark.parametrize(("runner", "mixer"), [("v2", "mamba2"), ("v1", "gdn")])
def test_graphs_with_and_without_adapters_are_captured(worker: WorkerClient, runner: str, mixer: str) -> None:
    """Both rows replay the graph with adapters, which the last one leaves behind; then another adapter takes the place
    of the first."""
    options = {"runner": runner, "mixer": mixer, "inputs": "adapters", "graphs": "decode"}
    config = batched(2, options)
    first = (Arrive("r0", (("adapter.b", 5),), 2), Arrive("r1", (("a", 5),), 3), Step(), Step(), Step())
    outcome = worker.run(Trace(config, (*first, Arrive("r2", (("adapter.c", 5),), 2), Step(), Step())))
    assert outcome.violation is None, outcome.violation.message


def pictured(runner: str, graphs: str) -> Trace:
    """A prompt whose first chunks end and begin inside an image; one that hits it, beside one with another image; text
    behind images, whose positions are lower than the numbers of its tokens."""
    config = batched(3, {"runner": runner, "mixer": "gdn", "inputs": "images", "graphs": graphs})
    first = (Arrive("r0", (("a", 2), ("image.b", 20), ("c", 13)), 3), Step(budget=5), Step(budget=23), Step(), Step())
    second = (Arrive("r1", (("a", 2), ("image.b", 20), ("c", 14)), 3), Arrive("r2", (("image.c", 6), ("a", 3)), 3))
    return Trace(config, (*first, *second, Step(), Step(), Step()))


@pytest.mark.parametrize(("runner", "graphs"), [("v2", "decode"), ("v1", "none"), ("v1", "decode")])
def test_a_chunk_that_begins_inside_an_image_gets_the_rest_of_it(
    worker: WorkerClient, runner: str, graphs: str
) -> None:
    outcome = worker.run(pictured(runner, graphs))
    assert outcome.violation is None, outcome.violation.message
    assert "hit behind an image" in outcome.reached


@pytest.mark.engine
@pytest.mark.exhaustive
def test_an_image_that_a_hit_covered_is_encoded_after_a_preemption() -> None:
    """The V1 runner has its pixels: with the packaged fix; without it the engine dies."""
    options = {"runner": "v1", "mixer": "gdn", "inputs": "images", "graphs": "none"}
    config = Config(num_blocks=40, groups=BOTH, max_model_len=64, max_num_batched_tokens=64, options=options)
    prompt = (("image.b", 6), ("c", 27))
    others = (Arrive("r2", (("image.c", 12),), 1), Step())  # the encoder's output of the first ones is dropped
    first = (Arrive("r0", prompt, 1), Step(), Arrive("r1", prompt, 6), Step(), *others)
    trace = Trace(config, (*first, ResetPrefixCache(preempt_running=True), Step(), Step()))
    target = "vllm@0.33.0@interpreter"
    found = {}
    for name, patches in {"released": [], "fixed": [parse_patch(FIX.read_text(), FIX.stem)]}.items():
        with WorkerClient(target, patched(prepare(target, print), patches), trace_seconds=900) as client:
            client.start()
            found[name] = client.run(trace).violation
    assert found["released"] is not None
    assert found["released"].signature == "CRASH-step-AssertionError-sanity_check_mm_encoder_outputs"
    assert found["fixed"] is None, found["fixed"].sentence


def test_an_mtp_head_is_one_token_ahead_inside_an_image(worker: WorkerClient) -> None:
    """The embedding of the token behind each one is the image's: of the first, too, once the image is encoded."""
    config = Config(
        num_blocks=40,
        groups=(*BOTH, Group("attention", 16, draft=True)),
        max_model_len=64,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        num_speculative_tokens=2,
        options={"runner": "v2", "mixer": "gdn", "inputs": "images", "hashing": "lookahead"},
    )
    first = (Arrive("r0", (("a", 2), ("image.b", 20), ("c", 3)), 5), Step(budget=2), Step(budget=4))
    outcome = worker.run(Trace(config, (*first, Step(drafts=2), Step(drafts=2, right=2), Step(drafts=2, right=2))))
    assert outcome.violation is None, outcome.violation.message
    assert "proposals written by the drafter" in outcome.reached


@pytest.mark.parametrize(
    ("inputs", "prompt"),
    [("images", (("a", 3), ("image.b", 24), ("c", 8))), ("adapters", (("adapter.b", 35),))],
    ids=["images", "adapters"],
)
def test_another_engine_has_computed_the_same_inputs(
    worker: WorkerClient, inputs: str, prompt: tuple[tuple[str, int], ...]
) -> None:
    """What a connector loads was computed with the image or the adapter of the request."""
    options = {"runner": "v2", "mixer": "gdn", "inputs": inputs, "connector": "store"}
    config = Config(num_blocks=30, groups=BOTH, max_model_len=64, max_num_batched_tokens=64, options=options)
    outcome = worker.run(Trace(config, (Arrive("r0", prompt, 2), ExternalLoad("r0", 35), Step(), Step())))
    assert outcome.violation is None, outcome.violation.message
    assert "loaded from outside the pool" in outcome.reached


@pytest.mark.parametrize(("runner", "mixer", "offload"), [("v2", "gdn", "prompts"), ("v1", "mamba2", "sync")])
def test_vllm_s_own_connector_brings_pages_back_from_the_host(
    worker: WorkerClient, runner: str, mixer: str, offload: str
) -> None:
    """Pages are stored while requests run, their blocks lose their keys, and the same tokens are asked for again."""
    options = {"runner": runner, "mixer": mixer, "connector": "offloading", "offload": offload}
    config = Config(num_blocks=30, groups=BOTH, max_model_len=64, max_num_batched_tokens=64, options=options)
    slow = (Arrive("r0", (("a", 35),), 2), ExternalLoad("r0", 1, delay=4), Arrive("r2", (("c", 20),), 16))
    # The blocks of r0 are free and have no key while they are still to be copied.
    again = (*[Step()] * 3, Evict(30), *[Step()] * 8, Arrive("r1", (("a", 35), ("b", 4)), 3), *[Step()] * 5)
    outcome = worker.run(Trace(config, (*slow, *again)))
    assert outcome.violation is None, outcome.violation.message
    assert {"stored outside the pool", "loaded from outside the pool"} <= set(outcome.reached)


@pytest.mark.parametrize(("runner", "mixer"), [("v2", "gdn"), ("v1", "mamba2")])
def test_the_last_block_of_a_hit_is_computed_again_by_eagle_s_rules(
    worker: WorkerClient, runner: str, mixer: str
) -> None:
    config = Config(
        num_blocks=34,
        groups=BOTH,
        max_model_len=64,
        max_num_batched_tokens=64,
        num_speculative_tokens=2,
        eagle_block_drop=True,
        options={"runner": runner, "mixer": mixer, "hashing": "lookahead"},
    )
    first = (Arrive("r0", (("a", 36),), 4), Step(drafts=2, right=1), Step(drafts=2, right=2))
    outcome = worker.run(Trace(config, (*first, Arrive("r1", (("a", 34), ("b", 2)), 3), Step(drafts=2), Step())))
    assert outcome.violation is None, outcome.violation.message
    assert "hit by keys that name the token behind their block" in outcome.reached


@pytest.mark.parametrize(("mixer", "graphs"), [("gdn", "decode"), alike("mamba2", "none")])
def test_an_mtp_head_drafts_from_blocks_of_its_own(worker: WorkerClient, mixer: str, graphs: str) -> None:
    """vLLM's speculator runs the head behind each step: chunks of prompts, verifications, both at once, a dummy run."""
    config = Config(
        num_blocks=40,
        groups=(*BOTH, Group("attention", 16, draft=True)),
        max_model_len=64,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        num_speculative_tokens=3,
        graph_sizes=(1, 2),
        options={"runner": "v2", "mixer": mixer, "hashing": "lookahead", "graphs": graphs},
    )
    first = (Arrive("r0", (("a", 36),), 8), Step(drafts=3, right=1), Step(drafts=3, right=3))
    both = (Arrive("r1", (("a", 34), ("b", 2)), 5), Step(drafts=3), Step(drafts=3, right=2), Step(drafts=3, right=3))
    outcome = worker.run(Trace(config, (*first, *both, Step(drafts=3, right=3), DummyRun(2))))
    assert outcome.violation is None, outcome.violation.message
    drafted = {"draft rejected", "all drafts accepted", "prompts and drafts in one step"}
    written = {"proposals written by the drafter", "dummy run with a drafter present"}
    assert {*drafted, *written, "hit by keys that name the token behind their block"} <= set(outcome.reached)


@pytest.mark.exhaustive
def test_a_state_is_compared_until_its_block_is_given_away(worker: WorkerClient) -> None:
    """A reset that waits for the steps in flight runs many: blocks of a request that ends are attention's in a later
    one, zeroed, and other numbers in the other memory."""
    outcome = worker.run(load_trace(DATA / "vllm-state-whose-block-a-drain-gives-away.json"))
    assert outcome.violation is None, outcome.violation.message
    assert "proposals written by the drafter" in outcome.reached


@pytest.mark.parametrize("cause", ["min-tokens-of-a-bonus-token", "min-tokens-counts-drafts"])
def test_a_stop_token_is_withheld_from_a_real_model_s_sampler(worker: WorkerClient, cause: str) -> None:
    """Causes 34 and 35, on the stock release."""
    [path] = CORPUS.glob(f"0.33.0--{cause}-v1--*.json")
    violation = worker.run(load_trace(path)).violation
    assert violation is not None
    assert violation.signature == "S6-step-sampled"
