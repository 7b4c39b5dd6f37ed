"""Reproducers for transformers."""

import pytest

from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Arrive, Config, Crop, Event, Group, Step, Trace
from hybridfuzz.targets.transformers.repro import write_scripts

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


def test_an_exception_of_a_forward_is_a_difference_too() -> None:
    """A cache whose parts have different batch sizes was shown by torch's error, which the script had not promised."""
    failure = Failure("S9", "mamba-temporal", "broken", EVENTS, 2, "r0")
    [script] = write_scripts("", Trace(CONFIG, EVENTS), failure)
    assert script.promise == "the same tokens alone"
    assert "hybridfuzz" not in script.text
    assert "but takes the same tokens alone" in script.text
    assert "differ from the same tokens alone by" in script.text


def test_a_script_goes_by_the_tolerance_of_the_failure() -> None:
    """It had one of its own, five times as large: a model whose time step is not clamped passed."""
    numbers = Failure("S6", "logprobs", "broken", EVENTS, 2, "r0", tolerance=0.002)
    tags = Failure("S9", "mamba-temporal", "broken", EVENTS, 2, "r0")
    texts = [write_scripts("", Trace(CONFIG, EVENTS), one)[0].text for one in (numbers, tags)]
    assert "assert distance <= 0.002," in texts[0] and "assert distance <= 0.01," in texts[1]
