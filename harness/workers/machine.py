"""What workers may take of this machine (`cores`, `memory_share`, `has_room`), and what its kernel counts: processes
that it killed for want of memory (`oom_kills`), time in which a process waited for a processor (`queued_seconds`)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
"""Bytes."""
GROUP = Path("/sys/fs/cgroup")
"""Our control group."""


def cores() -> int:
    """Return how many cores we may use: the default number of workers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory so far: here, and in this control group."""
    count = 0
    for path in (Path("/proc/vmstat"), GROUP / "memory.events"):
        with suppress(OSError, ValueError):  # another kernel, or no control group
            counters = dict(line.split() for line in path.read_text().splitlines())
            count += int(counters.get("oom_kill", 0))
    return count


def queued_seconds(pid: int | str = "self") -> float:
    """Return for how many seconds a process has had work to do and no processor, 0 where nothing tells."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0


def has_room() -> bool:
    """Return True if a third of the memory is left, for what may be kept and need not be; False where nothing tells."""
    with suppress(OSError, KeyError, ValueError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        left = {words[0]: 1024 * int(words[1]) for words in lines}["MemAvailable:"]
        with suppress(OSError, KeyError, ValueError):  # no control group, or one without a limit
            cached = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())["inactive_file"]
            used = int((GROUP / "memory.current").read_text()) - int(cached)  # what was read is dropped when needed
            left = min(left, int((GROUP / "memory.max").read_text()) - used)
        return left >= _memory() // 3
    return False


def memory_share(workers: int = 1) -> int:
    """Return the bytes that each worker may take by default: so many that all together leave a fifth of the machine.
    Engines that are kept to tell bugs apart come on top (`has_room`)."""
    return _memory() * 4 // 5 // workers


def _memory() -> int:
    """Return the bytes of this machine, or of our control group."""
    memory = PAGE * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no control group, or one without a limit ("max")
        memory = min(memory, int((GROUP / "memory.max").read_text()))
    return memory
