"""Counts of species: neither the order of traces, nor how often each comes, nor who counts them matters."""

import random
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_summary import Seen, Summary
from hybridfuzz.harness.risk import species_counts
from hybridfuzz.harness.risk.species_counts import (
    SPECIES_FILE,
    Draws,
    SpeciesCounts,
    Stream,
    load_species,
    save_species,
    up_to_date,
)
from hybridfuzz.targets.base.trace import TraceError

STREAM = Stream("hybrid", "", {}, {}, "1")
TRACES = {1: [10, 11, 12], 2: [10, 13, 14], 3: [10, 13, 15], 4: [10, 15]}
"""Species by trace: 11, 12 and 14 are seen once, 13 and 15 twice, 10 always."""
SEEN = Seen(4, 1, 6, 3, 2, 2, 2, 5, 2, 1)


def counted(traces: dict[int, list[int]]) -> SpeciesCounts:
    counts = SpeciesCounts()
    for trace, species in traces.items():
        counts.add(species, trace)
    return counts


def content(counts: SpeciesCounts) -> bytes:
    return msgspec.json.encode(counts.saved(STREAM, [Draws(7, "", 4, 1)]))


def test_what_is_counted() -> None:
    assert counted(TRACES).seen([Draws(7, "", 4, 1)]) == SEEN


def test_order_and_repetition_do_not_matter() -> None:
    rng = random.Random(1)
    for _ in range(20):
        order = rng.sample(sorted(TRACES), 4) + rng.choices(sorted(TRACES), k=5)
        counts = SpeciesCounts()
        for trace in order:
            counts.add(rng.sample(TRACES[trace], len(TRACES[trace])), trace)
        assert content(counts) == content(counted(TRACES))


def test_parts_are_merged_as_if_one_had_counted() -> None:
    """Also where both have counted a trace, and in any order."""
    one, other = counted({1: TRACES[1], 2: TRACES[2]}), counted({2: TRACES[2], 3: TRACES[3], 4: TRACES[4]})
    for first, second in ((one, other), (other, one)):
        merged = SpeciesCounts()
        for part in (first, second, first):
            merged.merge(part.saved(STREAM, ()))
        assert content(merged) == content(counted(TRACES))
        assert merged.seen([Draws(7, "", 4, 1)]) == SEEN


def test_a_process_may_leave_out_what_it_has_reported_three_times() -> None:
    every = {trace: [1] for trace in range(9)}
    assert content(counted(every)) == content(counted({trace: [1] for trace in range(3)}))


def test_a_file_holds_all(tmp_path: Path) -> None:
    saved = counted(TRACES).saved(STREAM, [Draws(7, "1/2", 4, 1)])
    save_species(tmp_path, saved)
    assert load_species(tmp_path) == saved
    assert load_species(tmp_path / "none") is None


@pytest.mark.parametrize("text", ["", "[]", '{"once":[[-1,2]]}', '{"stream":{}}'])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / SPECIES_FILE).write_text(text)
    with pytest.raises(TraceError, match=r"species\.json: .*; move it away, or choose another folder$"):
        load_species(tmp_path)


def test_more_species_than_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and stays said in a file; those that are known go on being counted."""
    monkeypatch.setattr(species_counts, "SPECIES_MAX", 4)
    counts = counted(TRACES)
    seen = counts.seen([])
    assert (seen.is_full, seen.species) == (True, 4)
    merged = SpeciesCounts()
    merged.merge(counts.saved(STREAM, ()))
    assert merged.seen([]) == seen


class TestUpToDate:
    """Which traces count, by file and state of a folder."""

    STATE = Summary("hybrid", "", 8, {}, None, 9, 9, 1.0, [], {}, {}, [], [], seen=structs.replace(SEEN, traces=14))

    def test_the_state_has_the_newer_totals(self) -> None:
        saved = SpeciesCounts().saved(STREAM, [Draws(7, "", 4, 1), Draws(8, "", 2, 0)])
        assert up_to_date(saved, self.STATE) == [Draws(7, "", 4, 1), Draws(8, "", 10, 0)]

    def test_a_campaign_that_was_killed_before_its_first_state(self) -> None:
        saved = SpeciesCounts().saved(STREAM, [Draws(8, "", 14, 1), Draws(9, "", 0, 0)])
        assert up_to_date(saved, self.STATE) == [Draws(8, "", 14, 1)]

    def test_a_file_of_another_campaign(self) -> None:
        assert not up_to_date(SpeciesCounts().saved(STREAM, [Draws(7, "", 4, 1)]), self.STATE)
        assert not up_to_date(SpeciesCounts().saved(STREAM, [Draws(7, "", 40, 1), Draws(8, "", 2, 0)]), self.STATE)

    def test_a_state_of_an_older_version(self) -> None:
        saved = SpeciesCounts().saved(STREAM, [Draws(8, "", 4, 1)])
        assert not up_to_date(saved, structs.replace(self.STATE, seen=None))
