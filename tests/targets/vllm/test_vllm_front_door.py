"""The front door: what runs is the configuration that vLLM makes of the command in a report, but for a list."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from hybridfuzz.targets.base.front_door import differences
from hybridfuzz.targets.vllm.front_door import at_the_door, leaves

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


def test_a_configuration_is_its_leaves() -> None:
    assert leaves(Engine()) == {"cache.blocks": 4, "cache.caching": True, "drafter": None, "sizes": (1, 2)}
    found = {one.field for one in differences(leaves(Engine()), leaves(Engine(drafter=Cache())))}
    assert found == {"drafter.blocks", "drafter.caching"}


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_graphs_are_compared_only_where_the_command_has_them(enforce_eager: bool) -> None:
    parsed = SimpleNamespace(
        async_scheduling=True,
        enforce_eager=enforce_eager,
        compilation_config=SimpleNamespace(cudagraph_mode="full"),
        cudagraph_capture_sizes=[1],
    )
    assert len(at_the_door(parsed)) == (1 if enforce_eager else 3)


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_drawn_configurations_are_what_vllm_makes_of_their_commands() -> None:
    """The command of a trace whose drafter has a group of its own named n-gram drafts. Adapters, states published at
    forks, ReplaySSM and the statistics had no flag. Pipeline stages were driven asynchronously on V1, which vLLM
    refuses."""
    ran = subprocess.run([sys.executable, str(BENCHMARK), "--count", "30"], capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("30 configurations, 0 differences that are not listed\n"), ran.stdout + ran.stderr
