"""The front door: what runs is the configuration that vLLM makes of the command in a report, but for a list."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridfuzz.targets.vllm.front_door import BEHIND, Difference, at_the_door, differences, reason_for

BENCHMARK = Path(__file__).parents[3] / "benchmarks/front_door.py"


@dataclass
class Cache:
    blocks: int = 4
    caching: bool = True


@dataclass
class Engine:
    cache: Cache = field(default_factory=Cache)
    drafter: Cache | None = None
    sizes: tuple[int, ...] = (1, 2)


def test_equal_configurations_have_no_difference() -> None:
    assert list(differences(Engine(), Engine(), {})) == []


@pytest.mark.parametrize(
    ("ran", "found"),
    [
        (Engine(cache=Cache(blocks=5)), Difference("cache.blocks", "4", "5")),
        (Engine(sizes=(1,)), Difference("sizes", "(1, 2)", "(1,)")),
    ],
)
def test_each_field_that_differs_is_named(ran: Engine, found: Difference) -> None:
    assert list(differences(Engine(), ran, {})) == [found]


def test_a_part_that_one_side_lacks_differs_in_its_fields() -> None:
    found = {one.field for one in differences(Engine(), Engine(drafter=Cache()), {})}
    assert found == {"drafter.blocks", "drafter.caching"}


def test_what_was_parsed_counts_where_the_platform_changes_it() -> None:
    server = replace(Engine(), cache=Cache(caching=False))
    assert list(differences(server, Engine(), {"cache.caching": True})) == []
    assert [one.server for one in differences(Engine(), Engine(), {"cache.caching": False})] == ["False"]


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_graphs_are_compared_only_where_the_command_has_them(enforce_eager: bool) -> None:
    parsed = SimpleNamespace(
        async_scheduling=True,
        enforce_eager=enforce_eager,
        compilation_config=SimpleNamespace(cudagraph_mode="full"),
        cudagraph_capture_sizes=[1],
    )
    assert len(at_the_door(parsed)) == (1 if enforce_eager else 3)


def test_a_field_may_differ_only_if_it_or_what_it_is_part_of_is_listed() -> None:
    assert reason_for("kv_transfer_config") == reason_for("kv_transfer_config.kv_port") != ""
    assert reason_for("kv_transfer_configuration") == reason_for("cache_config.enable_prefix_caching") == ""


def test_no_field_is_listed_twice() -> None:
    fields = [one for behind in BEHIND for one in behind.fields]
    assert len(fields) == len(set(fields))
    assert all(reason_for(field.rpartition(".")[0]) == "" for field in fields)


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_drawn_configurations_are_what_vllm_makes_of_their_commands() -> None:
    """The command of a trace whose drafter has a group of its own named n-gram drafts. Adapters, states published at
    forks, ReplaySSM and the statistics had no flag. Pipeline stages were driven asynchronously on V1, which vLLM
    refuses."""
    ran = subprocess.run([sys.executable, str(BENCHMARK), "--count", "30"], capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("30 configurations, 0 differences that are not listed\n"), ran.stdout + ran.stderr
