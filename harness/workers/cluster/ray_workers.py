"""Workers that Ray places on the nodes of a cluster.

A worker is an actor (`node_worker`). Placement, restarts elsewhere and the health of nodes are Ray's: an actor that was
lost with its node is restarted where there is room, and its call raises here. The results of a call are small, so that
nothing depends on Ray's object store.

    auto, ADDRESS    the cluster that runs here, or at an address (HOST:PORT, ray://HOST:PORT)
    local:N          a cluster of this machine alone, with N CPUs, for the time of the campaign
    ...,cpus=C,gpus=G    what each worker needs (defaults: 1 CPU; a quarter of a GPU if the target runs on cuda)
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version as version_of
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ....targets.base.patches import Patch
from ....targets.base.protocol import TargetError
from ...quoting import one_line
from ...units import UnitError
from ..protocol import NodeLost, OpenWorker
from ..worker_client import InternalError, Stopped
from .messages import Setup, pack
from .node_worker import NodeWorker
from .remote_worker import RemoteWorker

if TYPE_CHECKING:
    from types import ModuleType

POLL_SECONDS = 5.0
START_POLL_SECONDS = 0.5
STOP_SECONDS = 10.0
"""Time that a worker has to report what it has when the campaign stops it."""
PROBE_SECONDS = 20.0
PLACEMENTS = 3
"""Times that an actor may die before it has started, before this is an error."""
GPU_SHARE = 0.25
CUDA_SUFFIX = "@cuda"
"""End of the name of a target that needs a GPU."""
MEMORY_SHARE = 0.8
REASON_LENGTH_MAX = 300


class Placement(Struct, frozen=True):
    """The cluster that `--cluster` names, and the needs of each worker."""

    address: str
    cpus: float = 1.0
    gpus: float | None = None


def parse_place(text: str) -> Placement:
    """Parse ADDRESS[,cpus=C][,gpus=G]. Raises UnitError."""
    address, *needs = text.split(",")
    values = {}
    with suppress(ValueError):
        for need in needs:
            name, _, value = need.partition("=")
            if name not in ("cpus", "gpus") or float(value) < 0:
                raise ValueError(need)
            values[name] = float(value)
        if address and (not address.startswith("local:") or int(address.removeprefix("local:")) >= 1):
            return Placement(address, **values)
    raise UnitError(text, "auto, HOST:PORT, ray://HOST:PORT or local:N, and what a worker needs, as ,cpus=2,gpus=1")


@contextmanager
def connected(place: Placement, target: str) -> Iterator[RayCluster]:
    """Connect to a cluster, or start one here. Raises TargetError if that is impossible."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise TargetError("--cluster needs Ray: pip install 'hybridfuzz[cluster]'") from None
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if place.address.startswith("local:"):
            count = int(place.address.removeprefix("local:"))
            ray.init(num_cpus=count, include_dashboard=False, _node_ip_address="127.0.0.1", **common)
        else:
            _probe(place.address)
            ray.init(address=place.address, **common)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = one_line(str(error), REASON_LENGTH_MAX)
        raise TargetError(f"the Ray cluster {place.address!r} cannot be used: {reason}") from error
    # Ray would print its own lines about lost nodes on standard output, where the last line may be JSON.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield RayCluster(ray, place, target)
    finally:
        ray.shutdown()


def _probe(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()


class RayCluster:
    """A connection to a cluster. Methods may be called from any thread."""

    def __init__(self, ray: ModuleType, place: Placement, target: str) -> None:
        self.ray = ray
        self.place = place
        self.gpus = place.gpus if place.gpus is not None else GPU_SHARE if target.endswith(CUDA_SUFFIX) else 0.0
        self._refused: dict[str, str] = {}
        """Reasons by node id."""
        self._lock = Lock()

    def nodes(self) -> list[dict[str, Any]]:
        """Return Ray's description of each node that is alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def room(self) -> int:
        """Return the number of workers that the nodes have CPUs and GPUs for; at least 1, since nodes may come."""
        total = 0
        for node in self.nodes():
            resources = node["Resources"]
            by_cpu = resources.get("CPU", 0.0) / self.place.cpus if self.place.cpus else float("inf")
            by_gpu = resources.get("GPU", 0.0) / self.gpus if self.gpus else float("inf")
            total += int(min(by_cpu, by_gpu, 1e6))
        return max(total, 1)

    def memory_share(self) -> int:
        """Return bytes for each worker, so many that the workers of each node leave a fifth of its memory alone."""
        shares = [
            node["Resources"].get("memory", 0.0) * MEMORY_SHARE / max(node["Resources"].get("CPU", 1.0), 1.0)
            for node in self.nodes()
        ]
        return int(min(shares, default=0.0) * max(self.place.cpus, 1.0))

    def actor(self, setup: Setup) -> Any:
        """Return a new actor; Ray places it as soon as there is room. Raises TargetError if all nodes are refused."""
        with self._lock:
            refused = dict(self._refused)
        if refused and all(node["NodeID"] in refused for node in self.nodes()):
            raise TargetError(f"no node of the cluster can take part; one says: {next(iter(refused.values()))}")
        options: dict[str, Any] = {"label_selector": {"ray.io/node-id": f"!in({','.join(refused)})"}} if refused else {}
        return (
            self.ray.remote(NodeActor)
            .options(
                num_cpus=self.place.cpus,
                num_gpus=self.gpus,
                memory=setup.memory_limit or None,
                max_restarts=-1,
                max_concurrency=2,
                scheduling_strategy="SPREAD",
                **options,
            )
            .remote(pack(setup))
        )

    def refuse(self, node: str, reason: str) -> None:
        """Place no more workers on a node."""
        with self._lock:
            self._refused[node] = reason


class NodeActor(NodeWorker):
    """The actor. Methods that wait for the target run beside `stop`."""

    def where(self) -> tuple[str, str]:
        """Return the name of the node for people, and Ray's id of it."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return f"{socket.gethostname()}-{node[:4]}", node


def make_opener(
    cluster: RayCluster,
    target: str,
    engine_version: str,
    *,
    memory_limit: int,
    trace_seconds: float,
    patches: Sequence[Patch] = (),
) -> OpenWorker:
    """Return what opens a worker for a campaign."""
    setup = Setup(target, version_of("hybridfuzz"), engine_version, memory_limit, tuple(patches))
    return lambda has_work: RemoteWorker(ActorSeat(cluster, setup, has_work), trace_seconds)


class ActorSeat:
    """The actor of one worker, on whatever node it is now: a `remote_worker.Seat`."""

    def __init__(self, cluster: RayCluster, setup: Setup, has_work: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._setup = setup
        self._has_work = has_work
        self._actor: Any = None
        self._node_id = ""
        self._stopped = Event()

    def start(self) -> tuple[str, bytes]:
        """Wait until Ray has placed the actor; return the name of its node, and its answer."""
        deaths = 0
        while True:
            if self._actor is None:
                self._actor = self._cluster.actor(self._setup)
            try:
                name, self._node_id = self._get(self._actor.where.remote(), starting=True)
                return name, self._get(self._actor.start.remote(), starting=True)
            except NodeLost as lost:
                deaths += self._actor is None
                if deaths >= PLACEMENTS:
                    raise TargetError(f"workers die on the cluster before they have started: {lost}") from lost
                self._stopped.wait(START_POLL_SECONDS)

    def call(self, call: bytes) -> bytes:
        """Return the answer to a `Call`."""
        if self._actor is None:
            raise NodeLost("its actor is gone")
        answer: bytes = self._get(self._actor.call.remote(call))
        return answer

    def stop(self) -> None:
        """Make the call that is running report what it has; waiting for a node ends."""
        self._stopped.set()
        if self._actor is not None and self._node_id:
            self._actor.stop.remote()

    def refuse(self, reason: str) -> None:
        """Place no worker on this node any more."""
        self._cluster.refuse(self._node_id, reason)
        self.close()

    def close(self) -> None:
        """Remove the actor, and the worker process with it."""
        if self._actor is not None:
            with suppress(Exception):  # the cluster may be gone
                self._cluster.ray.kill(self._actor)
            self._actor = None

    def _get(self, reference: Any, *, starting: bool = False) -> Any:
        """Wait for a result. Raises NodeLost, Stopped; TargetError if the cluster itself is gone."""
        ray, until = self._cluster.ray, float("inf")
        errors = ray.exceptions
        try:
            while True:
                ready, _ = ray.wait([reference], timeout=START_POLL_SECONDS if starting else POLL_SECONDS)
                if ready:
                    return ray.get(reference)
                if starting and not self._has_work():
                    raise Stopped
                if self._stopped.is_set():
                    until = min(until, time.monotonic() + STOP_SECONDS)
                    if starting or time.monotonic() >= until:
                        raise Stopped
        except errors.RayTaskError as error:
            raise InternalError(f"a worker on a node failed: {error.cause}", str(error)) from error
        except errors.ActorDiedError as error:  # Ray does not restart it
            self._actor = None
            raise NodeLost(_reason(error)) from error
        except (errors.RayActorError, errors.ObjectLostError, errors.WorkerCrashedError) as error:
            raise NodeLost(_reason(error)) from error
        except (errors.RayError, ConnectionError) as error:
            raise TargetError(f"the Ray cluster is gone: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return one_line(
        str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__, REASON_LENGTH_MAX
    )
