"""Targets that misbehave in one way each; given to the product as `python:fake_targets:NAME`."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import structs

from hybridfuzz.targets.base.launch import SHARED_DEVICE
from hybridfuzz.targets.base.observe import Effect
from hybridfuzz.targets.base.protocol import Capabilities, Target, TargetError
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Config, Event, Step

GOOD = load_factory("hybrid")
AT_STEP = 3


class Wrapped:
    """The built-in target, but something happens before its fourth step."""

    def __init__(self, target: Target, happen: Callable[[], None]) -> None:
        self.layout = target.layout
        self.view, self.read, self.close = target.view, target.read, target.close
        self._apply, self._happen = target.apply, happen
        self._steps = 0

    def apply(self, event: Event) -> Effect:
        self._steps += isinstance(event, Step)
        if self._steps == AT_STEP + 1 and isinstance(event, Step):
            self._happen()
        return self._apply(event)


class Fake:
    """A factory."""

    name = "fake"
    capabilities: Capabilities = structs.replace(GOOD.capabilities, engine=(__name__,))
    supports = staticmethod(GOOD.supports)

    def __init__(self, happen: Callable[[], None]) -> None:
        self._happen = happen

    def open(self, config: Config) -> Target:
        return Wrapped(GOOD.open(config), self._happen)


class Fickle(Fake):
    """Every other engine has one block more."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self._opened = 0

    def open(self, config: Config) -> Target:
        import msgspec

        self._opened += 1
        more = config.num_blocks + self._opened % 2
        return GOOD.open(msgspec.structs.replace(config, num_blocks=more))


class SometimesHangs(Fake):
    """Every third engine of a process hangs, so no trace hangs when it is the first of a new process."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self._opened = 0

    def open(self, config: Config) -> Target:
        self._opened += 1
        return Wrapped(GOOD.open(config), lambda: time.sleep(3600 if self._opened % 3 == 0 else 0))


class SlowToOpen(Fake):
    """Takes two seconds to open an engine."""

    def open(self, config: Config) -> Target:
        time.sleep(2)
        return super().open(config)


class Refusing(Fake):
    """Takes no configuration."""

    def open(self, config: Config) -> Target:
        raise TargetError("this engine needs a licence: ask for one")


class NeverStarts(Fake):
    """Raises whenever an engine is opened, as an adapter does that does not fit its engine."""

    def open(self, config: Config) -> Target:
        raise AttributeError("'Engine' object has no attribute 'pool'")


class Late(Fake):
    """Raises as RAISES does, but refuses pools of an odd size, which only shows when it is opened."""

    def open(self, config: Config) -> Target:
        if config.num_blocks % 2:
            raise TargetError("pools of an odd size need a licence")
        return super().open(config)


class Talkative(Fake):
    """Says what it does before it opens an engine."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.say: Callable[[str], None] = lambda what: None

    def open(self, config: Config) -> Target:
        self.say("compiling kernel 1, copy")
        self.say("opening an engine\n(large)")
        return super().open(config)


class SmallDevice(Fake):
    """Its device, a folder, has room for the engines of two processes, or of HYBRIDFUZZ_TEST_ROOM. A process keeps its
    engine until it ends.

    A pool of an odd size is too large for it, also alone, and fails every time with HYBRIDFUZZ_TEST_ODD set.
    """

    def open(self, config: Config) -> Target:
        if os.environ.get("HYBRIDFUZZ_TEST_ODD") and config.num_blocks % 2:
            raise out_of_memory()
        device = Path(os.environ["HYBRIDFUZZ_TEST_DEVICE"])
        (device / str(os.getpid())).touch()
        used = sum(is_running(int(engine.name)) for engine in device.iterdir())
        if used > int(os.environ.get("HYBRIDFUZZ_TEST_ROOM", "2")):
            (device / str(os.getpid())).unlink()
            raise out_of_memory()
        time.sleep(0.05)
        return super().open(config)


class SharedDevice(Fake):
    """An engine with a pool of an even size makes an illegal access in its fourth step. As on a GPU that processes
    share, each process that shares it cannot use the device any more. The folder holds one file for each such fault."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self._faults: int | None = None
        """As many as there were when this process came."""

    def open(self, config: Config) -> Target:
        device, shares = Path(os.environ["HYBRIDFUZZ_TEST_DEVICE"]), SHARED_DEVICE in os.environ
        if self._faults is None:
            self._faults = len(list(device.iterdir()))

        def use() -> None:
            if config.num_blocks % 2 == 0:
                (device / f"{os.getpid()}-{time.monotonic_ns()}{'' if shares else '-apart'}").touch()
                raise illegal_access()
            if shares and len(list(device.iterdir())) > self._faults:
                raise illegal_access()

        return Wrapped(GOOD.open(config), use)


def illegal_access() -> Exception:
    """Return the exception as PyTorch raises it."""
    kind = type("AcceleratorError", (RuntimeError,), {"__module__": "torch", "error_code": 700})
    return kind("CUDA error: an illegal memory access was encountered")


def is_running(pid: int) -> bool:
    """Return True for a process that is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def out_of_memory() -> Exception:
    """Return the exception as PyTorch raises it."""
    kind = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
    return kind("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 79.11 GiB")


def raise_out_of_memory() -> None:
    raise out_of_memory()


def segfault() -> None:
    os.write(1, b"about to fall over\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def once_only_exit() -> None:
    """Ends the process the first time only: what a race looks like."""
    flag = Path(os.environ["HYBRIDFUZZ_TEST_FLAG"])
    if not flag.exists():
        flag.touch()
        os._exit(3)


def once_only_kill() -> None:
    """Is killed the first time only, as if by another process."""
    flag = Path(os.environ["HYBRIDFUZZ_TEST_FLAG"])
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def talk_nonsense() -> None:
    """Write to every pipe that there is: the protocol's is one of them."""
    for descriptor in range(3, 32):
        try:
            if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("pipe"):
                os.write(descriptor, b"{not json\n")
        except OSError:
            pass


def eat_memory() -> None:
    hoard.append(bytearray(1 << 29))
    time.sleep(60)


def leak_memory() -> None:
    """64 MiB a trace, never given back."""
    hoard.append(bytearray(b"x" * (1 << 26)))


def raise_error() -> None:
    raise IndexError("block 7 of 5")


def refuse_late() -> None:
    raise TargetError("this engine needs a licence for steps")


def raise_in_generator() -> None:
    sum({}[number] for number in (1,))


def raise_invalid() -> None:
    raise RuntimeError("\ud800 \x1b[31m\nsecond line")


def raise_long() -> None:
    raise RuntimeError("x" * 3_000_000)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def raise_unprintable() -> None:
    raise Unprintable


class Slow(Fake):
    """Every step takes 0.3 s."""

    def open(self, config: Config) -> Target:
        target = GOOD.open(config)
        apply = target.apply

        def slowly(event: Event) -> Effect:
            time.sleep(0.3)
            return apply(event)

        target.apply = slowly  # type: ignore[method-assign]
        return target


class Rude(Fake):
    """Refuses with a message that is no valid Unicode."""

    def open(self, config: Config) -> Target:
        raise TargetError("no \ud800\x1b[31m licence")


def report_rights() -> None:
    """Raise with what a target can read and reach."""
    import socket

    parent = f"/proc/{os.getppid()}/environ"
    try:
        seen = b"tell-nobody" in Path(parent).read_bytes()
    except OSError:
        seen = False
    reached = []
    for where in (("1.1.1.1", 53), ("8.8.8.8", 53)):
        try:
            socket.create_connection(where, timeout=2).close()
            reached.append(where[0])
        except OSError as error:
            reached.append(type(error).__name__ + str(error.errno))
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname(), timeout=2).close()
    interfaces = [name for _, name in socket.if_nameindex()]
    secrets = sorted(name for name, value in os.environ.items() if "tell-nobody" in value)
    facts = {"secrets": secrets, "parent": seen, "home": os.environ["HOME"], "interfaces": interfaces}
    raise RuntimeError(repr({**facts, "tmp": os.environ["TMPDIR"], "reached": reached}))


def compute(seconds: float) -> None:
    """Take this much time of a processor."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


hoard: list[bytearray] = []
NOISY = Fake(lambda: sys.stdout.write("an engine may print\n") and sys.stdout.flush())
SEGFAULT = Fake(segfault)
ONCE = Fake(once_only_exit)
KILLED = Fake(once_only_kill)
HANG = Fake(lambda: time.sleep(3600))
COMPUTES = Fake(lambda: compute(1))
COMPUTES_FOR_EVER = Fake(lambda: compute(3600))
NONSENSE = Fake(talk_nonsense)
HUNGRY = Fake(eat_memory)
LEAKING = Fake(leak_memory)
RAISES = Fake(raise_error)
REFUSES_LATE = Fake(refuse_late)
GENEXPR = Fake(raise_in_generator)
FICKLE = Fickle()
INVALID = Fake(raise_invalid)
LONG = Fake(raise_long)
UNPRINTABLE = Fake(raise_unprintable)
SLOW_TO_OPEN = SlowToOpen(lambda: None)
RUDE = Rude(lambda: None)
RIGHTS = Fake(report_rights)
NO_FACTORY = 7
SOMETIMES_HANGS = SometimesHangs()
SLOW = Slow(lambda: None)
REFUSING = Refusing(lambda: None)
NEVER_STARTS = NeverStarts(lambda: None)
LATE = Late(raise_error)
LATE_CLEAN = Late(lambda: None)
SMALL_DEVICE = SmallDevice(lambda: None)
SHARED = SharedDevice()
NO_MEMORY = Fake(raise_out_of_memory)
TALKATIVE = Talkative()
