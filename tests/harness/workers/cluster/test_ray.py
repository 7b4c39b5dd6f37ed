"""Drills on a real Ray cluster of several nodes on this machine: whatever dies, the totals are those of one machine.

make test-cluster
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_process import MUTANT, command, ended, wait_for

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parents[3]
NIGHT = ["fuzz", "--seed", "1", "--reduce", "1s", "--no-canary", "--json", "--target", MUTANT, "--traces", "60"]
COUNTED = ("traces", "steps", "exercised", "reached", "done", "beyond", "exit_reason")
FILL = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
held = []
while len(held) < 40:
    held.append(ray.put(bytes(8 << 20)))
print("full", ray.available_resources().get("object_store_memory", 0) < 8 << 20, flush=True)
time.sleep(600)
"""


def counts(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what has to be the same as on one machine. A worker that is killed is a flaky finding of its own."""
    symptoms = Counter[str]()
    for finding in summary["findings"]:
        symptoms.update({name: times for name, times in finding["symptoms"].items() if not name.startswith("CRASH")})
    return {**{name: summary[name] for name in COUNTED}, "symptoms": symptoms}


def patiently(start: Callable[[], Any]) -> Any:
    """Start a node; Ray gives up after 30 s, which a busy machine may need."""
    for _ in range(4):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


class Nodes:
    """A cluster with a head that runs nothing and nodes with a CPU each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False}
        self.cluster = patiently(
            lambda: Cluster(initialize_head=True, head_node_args={**head, "node_ip_address": "127.0.0.1"})
        )
        self.address: str = self.cluster.address
        self.ray: list[Any] = []

    def add(self, **more: Any) -> Any:
        one = patiently(
            lambda: self.cluster.add_node(
                num_cpus=1, object_store_memory=80 << 20, node_ip_address="127.0.0.1", wait=True, **more
            )
        )
        self.ray.append(one)
        return one

    def kill(self, one: Any) -> None:
        """Kill all processes of a node."""
        self.ray.remove(one)
        self.cluster.remove_node(one, allow_graceful=False)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of the command line; the nodes get the same."""
    added = {
        "HYBRIDFUZZ_CACHE": str(tmp_path_factory.mktemp("cache")),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # everything on loopback
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    os.environ.update(added)
    return dict(os.environ)


@pytest.fixture(scope="module")
def nodes(environment: dict[str, str]) -> Iterator[Nodes]:
    """Start a head and two nodes."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'hybridfuzz[cluster]'")
    made = Nodes()
    made.add()
    made.add()
    yield made
    made.cluster.shutdown()


@pytest.fixture(scope="module")
def whole(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the totals of the campaign on one machine, when nothing happens."""
    folder = tmp_path_factory.mktemp("whole")
    ran = subprocess.run(
        command(*NIGHT, "--jobs", "2"), env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    return counts(json.loads(ran.stdout.splitlines()[-1]))


class Run:
    """A campaign on the cluster."""

    def __init__(self, nodes: Nodes, environment: dict[str, str], folder: Path, *more: str) -> None:
        arguments = [*NIGHT, "--cluster", nodes.address, "--jobs", "2", "-o", "out", "--events", "events", *more]
        self.folder = folder
        self.process = subprocess.Popen(
            command(*arguments), env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, word: str) -> None:
        wait_for(self.process, word)

    def end(self) -> dict[str, Any]:
        """Wait for the end; return the summary."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 1, err
        return dict(json.loads(out.splitlines()[-1]))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / "events").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]


def processes(word: str) -> list[int]:
    """Return the ids of processes with a word in their command line: those of this cluster's workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            mine = b"HYBRIDFUZZ_CACHE=" + os.environ["HYBRIDFUZZ_CACHE"].encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if word in line and mine:
            found.append(int(folder.name))
    return found


@pytest.fixture
def run(nodes: Nodes, environment: dict[str, str], tmp_path: Path) -> Run:
    return Run(nodes, environment, tmp_path)


def test_undisturbed(run: Run, whole: dict[str, Any]) -> None:
    summary = run.end()
    assert counts(summary) == whole
    assert len(summary["nodes"]) == 2, "one worker on each node"
    assert sum(node["traces"] for node in summary["nodes"]) == summary["traces"]
    assert {event["node"] for event in run.events("found")} <= {node["name"] for node in summary["nodes"]}


def test_engine_process_killed(run: Run, whole: dict[str, Any]) -> None:
    """Its node's own client replaces it."""
    run.wait_for("FOUND")
    victims = processes("harness.workers.worker_main")
    assert victims
    os.kill(victims[0], signal.SIGKILL)
    assert counts(run.end()) == whole


def test_worker_killed(run: Run, whole: dict[str, Any]) -> None:
    """All actors die: Ray starts others, and what they had not reported runs again."""
    run.wait_for("FOUND")
    victims = processes("NodeActor")
    assert victims
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    assert counts(run.end()) == whole
    assert {event["state"] for event in run.events("node_left")} == {"lost"}


def test_node_killed(run: Run, nodes: Nodes, whole: dict[str, Any]) -> None:
    """Its work goes to the node that is left."""
    run.wait_for("FOUND")
    try:
        nodes.kill(nodes.ray[0])
        summary = run.end()
    finally:
        nodes.add()
    assert counts(summary) == whole


def test_driver_killed(run: Run, nodes: Nodes, environment: dict[str, str], whole: dict[str, Any]) -> None:
    """The worker processes end with it, and the same command continues."""
    run.wait_for("FOUND")
    workers = processes("harness.workers.worker_main")
    run.process.kill()
    run.process.communicate()
    assert all(map(ended, workers))
    again = Run(nodes, environment, run.folder)
    again.wait_for("continuing a campaign that did not end")
    assert counts(again.end()) == whole


def test_object_store_full(nodes: Nodes, environment: dict[str, str], tmp_path: Path, whole: dict[str, Any]) -> None:
    """Of the head, by another driver: no message of a campaign needs it."""
    with subprocess.Popen(
        [sys.executable, "-c", FILL, nodes.address], env=environment, stdout=subprocess.PIPE, text=True
    ) as filler:
        assert filler.stdout
        assert filler.stdout.readline().startswith("full")
        try:
            assert counts(Run(nodes, environment, tmp_path).end()) == whole
        finally:
            filler.kill()


def test_slow_node(nodes: Nodes, environment: dict[str, str], tmp_path: Path, whole: dict[str, Any]) -> None:
    """A node that stands still holds nothing but its own lease: the other one goes on meanwhile."""
    run = Run(nodes, environment, tmp_path, "--timeout", "300s")
    run.wait_for("FOUND")
    [victim, *_] = processes("harness.workers.worker_main")
    os.kill(victim, signal.SIGSTOP)
    try:
        for _ in range(200):
            if json.loads((tmp_path / "out" / "campaign.json").read_text())["traces"] >= 30:
                break
            time.sleep(1)
        else:
            pytest.fail("the other node waits for this one")
    finally:
        os.kill(victim, signal.SIGCONT)
    assert counts(run.end()) == whole


def test_a_node_with_another_version_is_refused(
    nodes: Nodes, environment: dict[str, str], tmp_path: Path, whole: dict[str, Any]
) -> None:
    """An older hybridfuzz on one of three nodes."""
    metadata = tmp_path / "old" / "hybridfuzz-0.0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hybridfuzz\nVersion: 0.0.1\n")
    old = nodes.add(env_vars={"PYTHONPATH": f"{tmp_path / 'old'}{os.pathsep}{environment['PYTHONPATH']}"})
    try:
        run = Run(nodes, environment, tmp_path, "--jobs", "3")
        summary = run.end()
    finally:
        nodes.kill(old)
    assert counts(summary) == whole
    refused = [event for event in run.events("node_left") if event["state"] == "refused"]
    assert {event["reason"] for event in refused} == {"it has hybridfuzz 0.0.1, the campaign 0.1.0"}
    assert len({event["node"] for event in refused}) == 1


def test_the_recipe_keeps_the_schema_of_ray() -> None:
    """Of `ray up`."""
    ray = pytest.importorskip("ray")
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    recipe = yaml.safe_load((HERE.parent / "docs/how-to/recipes/ray-cluster.yml").read_text())
    jsonschema.validate(recipe, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**recipe, "head_setup": []}, schema)


def test_no_cluster(environment: dict[str, str], tmp_path: Path) -> None:
    """One line, exit status 2."""
    pytest.importorskip("ray")
    ran = subprocess.run(
        command(*NIGHT, "--cluster", "127.0.0.1:1"), env=environment, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert "the Ray cluster '127.0.0.1:1' cannot be used" in ran.stderr
