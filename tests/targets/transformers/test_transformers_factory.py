"""The transformers target's refusals and scripts, without transformers."""

from pathlib import Path

import msgspec
import pytest

from hybridfuzz.targets.base.repro import Failure
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Reorder, Step, Trace
from hybridfuzz.targets.transformers.environment import NEWER, OLDER, requirements_of
from hybridfuzz.targets.transformers.factory import capabilities, refusal, variants
from hybridfuzz.targets.transformers.families import FAMILIES
from hybridfuzz.targets.transformers.features import Features
from hybridfuzz.targets.transformers.repro import PROMISE, write_scripts

PLAIN = Config(
    num_blocks=200,
    groups=(Group("mamba", 4), Group("attention", 1)),
    mamba_cache_mode="none",
    enable_prefix_caching=False,
)


def config(family: str, **changes: object) -> Config:
    options = {
        "family": family,
        **{name: str(changes.pop(name)) for name in ("cache", "record", "offload") if name in changes},
    }
    return msgspec.structs.replace(PLAIN, options=options, **changes)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (config("jamba"), ""),
        (config("lfm2", num_speculative_tokens=2), ""),
        (config("jamba", num_speculative_tokens=2), "assisted decoding"),
        (config("jamba", cache="static"), ""),
        (config("jamba", cache="static", record="yes"), "does not record"),
        (config("mamba", cache="static"), "no static cache"),
        (config("jamba", offload="yes"), ""),
        (config("mamba", offload="yes"), "does not offload"),
        (config("minimax", offload="yes"), "does not offload"),
        (config("minimax", record="yes"), "does not record"),
        (config("jamba", mamba_cache_mode="align"), "mamba_cache_mode=none"),
        (config("llama"), "family"),
    ],
)
def test_configurations_are_refused_with_a_reason(wanted: Config, reason: str) -> None:
    answer = refusal(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


@pytest.mark.parametrize(
    ("features", "wanted", "reason"),
    [
        (Features(records=False), config("jamba", record="yes"), "does not record"),
        (Features(tags=False), config("jamba"), "forward=model is all"),
    ],
)
def test_an_older_release_refuses_what_it_cannot_do(features: Features, wanted: Config, reason: str) -> None:
    assert reason in refusal(wanted, features)


def test_an_older_release_draws_and_observes_less() -> None:
    older = capabilities("", Features(tags=False, records=False))
    assert older.observes == {"leftovers", "real_model"}
    assert (older.options["forward"], older.options["record"], older.options["offload"]) == (
        ("model",),
        ("no",),
        ("no",),
    )
    assert older.max_speculative_tokens == 0


@pytest.mark.parametrize(
    ("table", "name"),
    [('"tokenizers>=0.22.0,<=0.23.0"', OLDER), ('"tokenizers>=0.23.1,<0.24.0"', NEWER), ("", NEWER), (None, NEWER)],
)
def test_a_release_gets_the_requirements_that_it_accepts(tmp_path: Path, table: str | None, name: Path) -> None:
    """Its own table decides; without one the newer ones."""
    (tmp_path / "transformers").mkdir()
    if table is not None:
        (tmp_path / "transformers" / "dependency_versions_table.py").write_text(f"deps = {{'tokenizers': {table}}}")
    assert requirements_of(tmp_path) == name


def test_each_family_is_a_variant() -> None:
    assert set(variants()) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_script_calls_public_api_only(family: str) -> None:
    events = (
        Arrive("r0", (("a", 5),), 4),
        Arrive("r1", (("b", 3),), 4),
        Step(),
        Reorder({"r0": "r1", "r1": "r0"}),
    )
    failure = Failure("S9", "temporal", "r0 holds the state of r1", events, 0)
    generating, script = write_scripts("", Trace(config(family), events), failure)
    for one in (generating, script):
        compile(one.text, "script.py", "exec")
        assert "hybridfuzz" not in one.text
        assert one.needs == "transformers, torch"
    assert '"num_beams": ' in generating.text, "the public function that reorders rows comes first"
    assert generating.promise == "AssertionError: generate() returns wrong tokens"
    assert script.promise == PROMISE
    assert "cache.reorder_cache(torch.tensor([1, 0]))" in script.text
