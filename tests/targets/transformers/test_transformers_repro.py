"""Reproducers for transformers."""

import re

import pytest
from msgspec import structs

from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.repro import DEVIATION, Failure, Place, Script
from hybridfuzz.targets.base.trace import Arrive, Config, Crop, Event, Group, Reorder, Step, Trace
from hybridfuzz.targets.transformers.deployment import deployment
from hybridfuzz.targets.transformers.repro import write_scripts, write_test

CONFIG = Config(
    16,
    (Group("mamba", 8), Group("attention", 1)),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
    options={"family": "falcon-h1", "record": "yes"},
)
EVENTS: tuple[Event, ...] = (Arrive("r0", (("a", 6),), 4), Step(), Step(), Crop(1), Step())


@pytest.mark.parametrize(("oracle", "declines"), [("S9", True), ("CRASH", False)])
def test_a_library_that_declines_what_it_cannot_do_has_no_defect(oracle: str, declines: bool) -> None:
    """With the packaged fix `crop` of a state is an error of the library's own, and the script failed. Where an
    exception is the defect it still fails."""
    failure = Failure(oracle, "mamba-temporal", "broken", EVENTS, 2, "r0")
    [script] = write_scripts("", Trace(CONFIG, EVENTS), failure)
    compile(script.text, "repro.py", "exec")
    assert ("with may_decline():\n    cache.crop(-1)\n" in script.text) == declines
    assert ("def may_decline():" in script.text) == declines
    assert "cache.crop(-1)\n" in script.text


def test_behind_the_failure_each_forward_has_one_token() -> None:
    """Two tokens behind a crop start a scan anew in FalconMamba: the numbers need not come from the crop."""
    events = (Arrive("r0", (("a", 6),), 4), Step(chunks={"r0": 3}), Crop(1))
    [script] = write_scripts("", Trace(CONFIG, events), Failure("S9", "mamba-temporal", "broken", events, 1, "r0"))
    behind = script.text.partition("cache.crop(-1)\n")[2]
    fed = re.findall(r"tokens=\[\[([\d, ]*)\]\]", behind)
    assert len(fed) > 3 and not any("," in one for one in fed), fed


def test_an_exception_of_a_forward_is_a_difference_too() -> None:
    """A cache whose parts have different batch sizes was shown by torch's error, which the script had not promised."""
    failure = Failure("S9", "mamba-temporal", "broken", EVENTS, 2, "r0")
    [script] = write_scripts("", Trace(CONFIG, EVENTS), failure)
    assert script.promise == "the same tokens alone"
    assert "hybridfuzz" not in script.text
    assert "but takes the same tokens alone" in script.text
    assert "differ from the same tokens alone by" in script.text


def test_what_beam_search_does_is_shown_by_generate_first() -> None:
    """The script called `reorder_cache` by itself, which no user does."""
    events = (Arrive("r0", (("a", 4),), 4), Arrive("r1", (("b", 2),), 4), Step(), Reorder({"r0": "r1", "r1": "r0"}))
    failure = Failure("S9", "mamba-temporal", "broken", events, 1, "r0")
    config = structs.replace(CONFIG, options={"family": "minimax"})
    first, second = write_scripts("", Trace(config, events), failure)
    compile(first.text, "repro.py", "exec")
    assert "reorder_cache" not in first.text and "reorder_cache" in second.text
    assert "[0, 0, " in first.text and "[0, 0, 1, 1]" in first.text, "the shorter prompt is padded on its left"
    assert first.promise in first.body[-1].replace('assert cached == alone, "', "AssertionError: ")
    assert "generate" in first.text.partition(DEVIATION)[2] and "def forward" not in first.text
    test = write_test(Trace(config, events), first, "wrong_beams")
    compile(next(iter(test.files.values())), "test.py", "exec")
    moved = structs.replace(config, options={**config.options, "offload": "yes"})
    assert len(write_scripts("", Trace(moved, events), failure)) == 1, "a device is simulated for no generate()"
    later = structs.replace(failure, events=(*events, Step()))
    assert len(write_scripts("", Trace(config, later.events), later)) == 1, "another call goes wrong"


def test_a_report_names_the_public_function_that_calls_it() -> None:
    """A maintainer read of a private call, and did not know which user meets it."""
    events = (Arrive("r0", (("a", 4),), 4), Step(chunks={"r0": 2}), Reorder({"r0": "r0"}))
    told = deployment("", Trace(CONFIG, events), "5.24.0").reached
    assert told[0] == "`Cache.reorder_cache`: `generate(num_beams=...)`, after each token"
    assert told[1] == "a prompt in chunks: `generate(prefill_chunk_size=...)`"
    moved = structs.replace(CONFIG, options={**CONFIG.options, "offload": "yes", "cache": "static"})
    assert deployment("", Trace(moved, events[:2]), "5.24.0").reached[-1].endswith('"offloaded_static")`')


def test_a_script_goes_by_the_tolerance_of_the_failure() -> None:
    """It had one of its own, five times as large: a model whose time step is not clamped passed."""
    numbers = Failure("S6", "logprobs", "broken", EVENTS, 2, "r0", tolerance=0.002)
    tags = Failure("S9", "mamba-temporal", "broken", EVENTS, 2, "r0")
    texts = [write_scripts("", Trace(CONFIG, EVENTS), one)[0].text for one in (numbers, tags)]
    assert "if distance > 0.002:" in texts[0] and "if distance > 0.01:" in texts[1]


def offloading(field: str) -> Script:
    events: tuple[Event, ...] = (Arrive("r0", (("a", 6),), 4), Step(), Crop(1), Step())
    config = structs.replace(CONFIG, options={**CONFIG.options, "offload": "yes"})
    [script] = write_scripts("", Trace(config, events), Failure("CRASH", field, "broken", events, 1, "r0"))
    return script


def test_offload_runs_on_the_simulated_devices_that_the_script_has() -> None:
    """A failure of offload had no script: on a CPU the library moves nothing."""
    script = offloading("EngineError-two_devices")
    compile(script.text, "repro.py", "exec")
    assert "hybridfuzz" not in script.text
    assert script.promise == "EngineError"
    first, _, calls = "\n".join(script.body).partition("with simulated():\n")
    assert first == "model = tiny_model()\n", "no part of the model is moved"
    assert all(line.startswith("    ") for line in calls.splitlines())
    assert "cache = DynamicCache(config=model.config, offloading=True)" in calls
    assert [script.text.count(one) for one in ("\ndef simulated()", "\nclass Devices(", "\nclass EngineError(")] == [
        1
    ] * 3
    [test, *_] = write_test(Trace(CONFIG, ()), script, "moved").files.values()
    compile(test, "test_moved.py", "exec")
    assert "\nimport unittest\n" in test and "            cache.crop(-1)\n" in test


def test_what_only_our_layers_raise_is_a_wrong_number_or_an_error_of_the_model() -> None:
    """The mask and the cache had different lengths, which layers of tags refuse: the script was to fail like them."""
    failure = Failure("CRASH", "EngineError-_attended", "broken", EVENTS, 2, "r0")
    [script] = write_scripts("", Trace(CONFIG, EVENTS), failure)
    assert script.promise == "the same tokens alone"
    assert "class EngineError" not in script.text


def test_a_script_marks_the_call_that_fails() -> None:
    """One failed at a defect of an earlier forward, and was good."""
    numbers = Failure("S6", "logprobs", "broken", EVENTS, 2, "r0", tolerance=0.002)
    [script] = write_scripts("", Trace(CONFIG, EVENTS), numbers)
    before, _, after = "\n".join(script.body).partition(DEVIATION)
    assert before.count("cache = forward(") == 2 and after.startswith("\ncache = forward(")
    assert script.first_line == script.text.splitlines().index(DEVIATION) + 1
    assert offloading("EngineError-two_devices").place == Place(function="two_devices")


def test_a_script_feeds_the_answer_without_stop_tokens_that_are_held_back() -> None:
    asked = Arrive("r0", (("a", 6),), 4, stop_at=2, min_tokens=4)
    events = (asked, *[Step()] * 4, Crop(1), Step())
    [script] = write_scripts("", Trace(CONFIG, events), Failure("S9", "mamba-temporal", "broken", events, 5, "r0"))
    truth = Truth(asked.prompt)
    free = Truth(asked.prompt)
    truth.stop_tokens(2, 4)
    truth.reach(9)
    free.reach(9)
    assert truth.tokens != free.tokens
    assert str(truth.tokens[:9]) in script.text and str(free.tokens[:9]) not in script.text
