"""What a campaign's traces have shown: over nights, workers and sources; and a campaign that ends by it."""

import json
from pathlib import Path

import pytest
from cli_process import Cli
from msgspec import structs

from hybridfuzz.harness.campaign.species import CampaignSpecies, check_independent
from hybridfuzz.harness.campaign_summary import Seen, Summary
from hybridfuzz.harness.risk.species_counts import Stream, load_species
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import TraceError

FEW = ["fuzz", "--jobs", "1", "--traces", "20", "--no-canary", "--json", "-o", "out"]
STREAM = Stream("hybrid", "", {}, {}, "1")
STATE = Summary("hybrid", "", 1, {}, "traces", 2, 9, 1.0, [], {}, {}, [], [])


def night(folder: Path, seed: int, stream: Stream = STREAM) -> tuple[CampaignSpecies, Summary]:
    """Return the species of a campaign in a folder, and its state: two traces, one species each, one of them new."""
    last = json.loads((folder / "seed").read_text()) if (folder / "seed").exists() else None
    species = CampaignSpecies(folder, stream, seed, "")
    if last:
        species.follow(load_species(folder), structs.replace(STATE, seed=last, seen=species_of(folder)))
    species.count(2, failing=1)
    species.add([1], 0)
    species.add([100 + seed], 1)
    species.save()
    (folder / "seed").write_text(str(seed))
    (folder / "seen").write_text(json.dumps(structs.asdict(species.seen())))
    return species, structs.replace(STATE, seed=seed, seen=species.seen())


def species_of(folder: Path) -> Seen:
    return Seen(**json.loads((folder / "seen").read_text()))


def test_nights_add_up(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        species, _ = night(tmp_path, seed)
    seen = species.seen()
    assert (seen.traces, seen.failing, seen.campaigns) == (6, 3, 3)
    assert (seen.species, seen.once, seen.twice) == (4, 3, 0)


def test_a_night_starts_over(tmp_path: Path) -> None:
    """With a seed that counts already, and with another engine."""
    for seed in (1, 2):
        night(tmp_path, seed)
    assert night(tmp_path, 1)[0].seen().traces == 2
    assert night(tmp_path, 3, structs.replace(STREAM, version="2"))[0].seen().traces == 2


def test_a_campaign_goes_on_where_its_state_ends(tmp_path: Path) -> None:
    """Traces that are in the file and not in the state run again, and count once."""
    species, state = night(tmp_path, 1)
    species.add([500], 2)
    species.save()
    again = CampaignSpecies(tmp_path, STREAM, 1, "")
    again.resume(load_species(tmp_path), state)
    again.count(1, failing=0)
    again.add([500], 2)
    assert again.seen() == structs.replace(species.seen(), traces=3)


def test_an_old_folder_starts_from_nothing(tmp_path: Path) -> None:
    species = CampaignSpecies(tmp_path, STREAM, 1, "")
    species.resume(None, STATE)
    species.follow(None, STATE)
    assert species.seen().traces == 0


def test_traces_that_share_a_configuration_are_not_independent() -> None:
    capabilities = load_factory("hybrid").capabilities
    check_independent(capabilities)
    with pytest.raises(TraceError, match="--until-risk: 24 traces share a drawn configuration"):
        check_independent(structs.replace(capabilities, traces_per_configuration=24))


def test_two_nights_and_a_fresh_one(hybridfuzz: Cli, tmp_path: Path) -> None:
    first = hybridfuzz(*FEW, "--seed", "1").json
    second = hybridfuzz(*FEW, "--seed", "2").json
    assert (first["seen"]["traces"], second["seen"]["traces"], second["seen"]["campaigns"]) == (20, 40, 2)
    assert second["risk"]["new"]["value"] < first["risk"]["new"]["value"]
    assert hybridfuzz(*FEW, "--seed", "3", "--fresh").json["seen"]["traces"] == 20


@pytest.mark.exhaustive
def test_the_number_of_workers_does_not_matter(hybridfuzz: Cli) -> None:
    one = hybridfuzz(*FEW, "--seed", "1").json
    two = hybridfuzz(*FEW[:1], *FEW[3:-1], "two", "--jobs", "2", "--seed", "1").json
    assert one["seen"] == two["seen"]


def test_a_state_of_an_older_version_is_continued(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Its traces were not looked at: estimates are for those that come."""
    hybridfuzz(*FEW, "--seed", "1")
    path = tmp_path / "out" / "campaign.json"
    state = {**json.loads(path.read_text()), "exit_reason": "interrupted"}
    del state["seen"]
    path.write_text(json.dumps(state))
    (tmp_path / "out" / "species.json").unlink()
    again = hybridfuzz(
        "fuzz", "--jobs", "1", "--traces", "30", "--no-canary", "--json", "-o", "out", "--seed", "1"
    ).json
    assert (again["traces"], again["seen"]["traces"]) == (30, 10)


def test_it_ends_when_little_is_left(hybridfuzz: Cli) -> None:
    """The limit is wide, and the time long: only the estimate can have ended it."""
    ran = hybridfuzz(
        "fuzz", "--seed", "1", "--until-risk", "0.7", "--time", "10m", "--no-canary", "--json", "-o", "out"
    )
    assert ran.json["exit_reason"] == "risk"
    assert ran.json["risk"]["new"]["high"] < 0.7
    assert "ended as little is left to be seen" in ran.err
    assert "what is left: the next trace shows something new with a chance of" in ran.err


@pytest.mark.parametrize("value", ["0", "1", "-1", "nan", "many"])
def test_what_is_no_chance(hybridfuzz: Cli, value: str) -> None:
    ran = hybridfuzz("fuzz", f"--until-risk={value}")
    assert (ran.status, "write a number between 0 and 1, such as 1e-4" in ran.err) == (2, True)


@pytest.mark.exhaustive
def test_hypothesis_varies_its_own_examples(hybridfuzz: Cli) -> None:
    ran = hybridfuzz("fuzz", "--source", "hypothesis", "--until-risk", "0.1")
    assert (ran.status, "leave out --source hypothesis" in ran.error) == (2, True)
    few = hybridfuzz("fuzz", "--source", "hypothesis", "--traces", "3", "--no-canary", "--json", "-o", "out")
    assert (few.json["seen"], few.json["risk"]) == (None, None)
    assert "what is left" not in few.err


@pytest.mark.exhaustive
def test_a_part_of_an_older_version_is_left_out(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Its traces count, but nothing is estimated from them."""
    for seed in ("1", "2"):
        hybridfuzz(*FEW[:-1], f"out-{seed}", "--seed", seed)
    both = hybridfuzz("merge", "out-1", "out-2", "-o", "both", "--json").json
    assert (both["traces"], both["seen"]["traces"], both["seen"]["campaigns"]) == (40, 40, 2)
    (tmp_path / "out-2" / "species.json").unlink()
    one = hybridfuzz("merge", "out-1", "out-2", "-o", "one", "--json").json
    assert (one["traces"], one["seen"]["traces"]) == (40, 20)
