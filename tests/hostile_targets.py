"""Targets that turn against the worker that runs them; given to the product as `python:hostile_targets:NAME`."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_targets import GOOD, Fake

from hybridfuzz.harness.workers import messages, request_loop
from hybridfuzz.targets.base.protocol import Target
from hybridfuzz.targets.base.trace import Config

INTERNAL = b'{"type":"failed","kind":"internal","message":"hybridfuzz is broken","details":"none"}\n'
DONE = b'{"type":"done","outcome":{"violation":null,"steps":1,"events":1,"exercised":{},"reached":{},"digest":0}}\n'


def nothing() -> None:
    """Do nothing."""


class Opens(Fake):
    """`open` returns something else than a target."""

    def __init__(self, returned: Any) -> None:
        super().__init__(nothing)
        self._returned = returned

    def open(self, config: Config) -> Target:
        return self._returned  # type: ignore[no-any-return]


class Half:
    """What is nearly a target: its view is none."""

    def __init__(self, config: Config) -> None:
        self.layout = GOOD.open(config).layout

    def apply(self, event: object) -> None:
        """Do nothing."""

    def view(self) -> None:
        """Return nothing."""

    def read(self, *where: int) -> None:
        """Return nothing."""

    def close(self) -> None:
        """Do nothing."""


class Halves(Fake):
    """Opens a `Half`."""

    def open(self, config: Config) -> Target:
        return Half(config)  # type: ignore[return-value]


class Supports(Fake):
    """`supports` does something else than to answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__(nothing)
        self.supports = answer


def raise_key_error(config: Config) -> str:
    raise KeyError("no such model\nsecond line")


def leave(config: Config) -> str:
    os._exit(9)


def fork_back() -> None:
    """Fork; the child goes on as if it were the worker."""
    os.fork()


def write_to_pipes(data: bytes) -> None:
    for descriptor in range(3, 64):
        try:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("pipe"):
                os.write(descriptor, data)
        except OSError:
            pass


def replace_run() -> None:
    vars(request_loop)["run_taken"] = None


def replace_done() -> None:
    def done(*_: object) -> messages.Supported:
        return messages.Supported("everything")

    vars(request_loop)["Done"] = done


def replace_replies() -> None:
    """Replace every function that makes bytes of a reply."""

    def forged(*_: object) -> bytes:
        return INTERNAL

    for name, module in list(sys.modules.items()):
        if name.startswith("hybridfuzz.harness.workers"):
            for function in ("encode", "encoded"):
                if hasattr(module, function):
                    setattr(module, function, forged)


OPENS_NONE = Opens(None)
OPENS_SELF = Opens(7)
OPENS_HALF = Halves(nothing)
SUPPORTS_RAISES = Supports(raise_key_error)
SUPPORTS_SEVEN = Supports(lambda config: 7)
SUPPORTS_LEAVES = Supports(leave)
FORKS_BACK = Fake(fork_back)
FORGES_INTERNAL = Fake(lambda: write_to_pipes(INTERNAL))
FORGES_DONE = Fake(lambda: write_to_pipes(DONE))
REPLACES_RUN = Fake(replace_run)
REPLACES_DONE = Fake(replace_done)
REPLACES_REPLIES = Fake(replace_replies)


def daemon(and_then: Callable[[], None], *, clean: bool = False) -> None:
    """Start a process in a session of its own that keeps the pipe open and whose parent is gone; note its id."""
    if os.fork():
        os.wait()
        flag = Path(os.environ["HYBRIDFUZZ_TEST_FLAG"])
        while not flag.exists():
            time.sleep(0.01)
        and_then()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    flag = Path(os.environ["HYBRIDFUZZ_TEST_FLAG"])
    flag.with_suffix(".new").write_text(str(os.getpid()))
    flag.with_suffix(".new").rename(flag)
    if clean:
        os.execve("/bin/sleep", ["sleep", "300"], {})
    time.sleep(300)
    os._exit(0)


DAEMON_DIES = Fake(lambda: daemon(lambda: os._exit(3)))
DAEMON_HANGS = Fake(lambda: daemon(lambda: time.sleep(300), clean=True))
DAEMON_STAYS = Fake(lambda: daemon(nothing, clean=True))
