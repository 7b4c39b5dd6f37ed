"""Interpreter and environment of a process that can drive a target."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs

WORKERS = "HYBRIDFUZZ_WORKERS"
"""Environment variable of a worker: how many workers of its campaign share this machine."""


WORKER = "HYBRIDFUZZ_WORKER"
"""Environment variable of a worker: its number among those of its campaign on this machine, from 0."""


SHARED_DEVICE = "HYBRIDFUZZ_SHARED_DEVICE"
"""Environment variable of a worker: a device's fault ends all processes that use the device, whichever made it."""


class Service(Struct, frozen=True):
    """What workers of one machine need beside them, such as a daemon through which they share a device.

    command  starts it; it ends when its standard input ends
    folders  environment variables, of it and of the workers, that name a folder made for it
    ready    file of that folder that exists once it serves
    """

    command: tuple[str, ...]
    folders: tuple[str, ...]
    ready: str


class Launch(Struct, frozen=True):
    """An interpreter, and environment variables to add to the current ones. `version` is the engine's, for reports.

    tree     folder on PYTHONPATH that the engine is imported from, and that patches apply to; "" for none
    service  what several workers share, if anything
    """

    python: str
    env: Mapping[str, str]
    version: str = ""
    tree: str = ""
    service: Service | None = None


def sharing(launch: Launch, folder: str) -> Launch:
    """Return how to start a worker that uses the launch's service, which has this folder."""
    assert launch.service
    return structs.replace(
        launch, env={**launch.env, **dict.fromkeys(launch.service.folders, folder), SHARED_DEVICE: "1"}
    )


def unshared(launch: Launch) -> Launch:
    """Return how to start a worker that shares nothing."""
    shared = {SHARED_DEVICE, *(launch.service.folders if launch.service else ())}
    return structs.replace(launch, env={name: value for name, value in launch.env.items() if name not in shared})
