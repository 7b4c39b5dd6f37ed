"""Breaks of llama.cpp's memory in machine code: which are caught, by which oracle, after how many steps.

    python benchmarks/llamacpp_breaks.py [RELEASE] > benchmarks/llamacpp_breaks.md

Each break overwrites the beginning of one C++ function in a running worker, so that it returns at once, and takes it
back afterwards: nothing has to be compiled. A violation counts only if the same trace is silent without the break. On
x86-64 only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

SEED, STEPS_MAX, SECONDS_MAX = 11, 3000, 60.0
RETURN, RETURN_TRUE = b"\xc3", b"\xb8\x01\x00\x00\x00\xc3"
SOUND: dict[str, object] = {"planes": "0", "kv": "unified"}
SNAPSHOTS: dict[str, object] = {"planes": "3", "kv": "split", "family": "lfm2"}
SAVED: dict[str, object] = {"idle": "saved"}


ABOUT = """\
{caught} of {count} breaks are caught. `python benchmarks/llamacpp_breaks.py` makes each in the machine code of a worker
(the function returns at once) and fuzzes (seed {seed}) until an oracle reports it, for {steps} steps or {seconds:.0f} s
at most. A violation counts only if the unbroken release is silent on the very same trace.
"""
BY_HAND = """
## Breaks of the C++ source

Made once by hand on 27 November 2026, in llama.cpp as the sdist of llama-cpp-python 0.3.36 has it (0c1e57098).
`cmake -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAMA_BUILD_TESTS=OFF
-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_COMMON=OFF
-DLLAMA_CURL=OFF` and `cmake --build build --target llama` took 26 minutes on two busy cores, a break half a
minute more. Each break changes one line of `src/llama-memory-recurrent.cpp`. `hybridfuzz fuzz --target
llamacpp@FOLDER --seed 11 --traces 8 --jobs 1 --config planes=0 --config kv=unified --config
family=granite-hybrid` found each, and reduced it; on the unbroken build 20 traces of this seed with the first
two settings are silent. The script that `hybridfuzz repro` writes ran in an empty folder: it exits with 1 on
the broken build and with 0 on the unbroken one.

| break | line | found in trace | as | reduced to |
| --- | --- | ---: | --- | ---: |
| a copy's own cell starts empty | `find_slot`: `empty_cell.src = -1` | 4 | S6-step-logprobs | 3 events |
| a state goes to the first cell | `state_read_data`: `0 * r_size_row` | 0 | S9-step-mamba-temporal | 4 events |
| a new sequence's cell is not zeroed | `find_slot`: `cells[i].src0 = i` | 0 | S4-step-logprobs-fills | 2 events |
"""


class Break(NamedTuple):
    """`function` (`symbol` by its mangled name) begins with `code`."""

    name: str
    function: str
    symbol: str
    code: bytes
    options: dict[str, object] = {}  # noqa: RUF012


BREAKS = (
    Break("states-not-copied", "llama_memory_recurrent::seq_cp", "_ZN22llama_memory_recurrent6seq_cpEiiii", RETURN),
    Break("attention-not-copied", "llama_kv_cache::seq_cp", "_ZN14llama_kv_cache6seq_cpEiiii", RETURN),
    Break("states-not-removed", "llama_memory_recurrent::seq_rm", "_ZN22llama_memory_recurrent6seq_rmEiii",
          RETURN_TRUE),
    Break("attention-not-removed", "llama_kv_cache::seq_rm", "_ZN14llama_kv_cache6seq_rmEiii", RETURN_TRUE),
    Break("attention-not-removed-split", "llama_kv_cache::seq_rm", "_ZN14llama_kv_cache6seq_rmEiii", RETURN_TRUE,
          {"kv": "split"}),
    Break("states-not-kept", "llama_memory_recurrent::seq_keep", "_ZN22llama_memory_recurrent8seq_keepEi", RETURN),
    Break("attention-not-kept", "llama_kv_cache::seq_keep", "_ZN14llama_kv_cache8seq_keepEi", RETURN),
    Break("saved-states-not-read", "llama_memory_recurrent::state_read_data",
          "_ZN22llama_memory_recurrent15state_read_dataER15llama_io_read_ij", RETURN_TRUE, SAVED),
    Break("saved-attention-not-read", "llama_kv_cache::state_read_data",
          "_ZN14llama_kv_cache15state_read_dataER15llama_io_read_ijjRKNS_9slot_infoE", RETURN_TRUE, SAVED),
    Break("roll-back-not-noted", "llama_memory_recurrent::set_rs_idx",
          "_ZN22llama_memory_recurrent10set_rs_idxEij", RETURN, SNAPSHOTS),
    Break("states-not-cleared", "llama_memory_recurrent::clear", "_ZN22llama_memory_recurrent5clearEb", RETURN),
)  # fmt: skip


@contextmanager
def broken(library: Any, one: Break) -> Iterator[None]:
    """Overwrite the beginning of a function for the body."""
    place = ctypes.cast(getattr(library, one.symbol), ctypes.c_void_p).value
    assert place
    start = place - place % mmap.PAGESIZE
    every = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    done = ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(start), 2 * mmap.PAGESIZE, every)
    assert not done, os.strerror(ctypes.get_errno())
    before = ctypes.string_at(place, len(one.code))
    ctypes.memmove(place, one.code, len(one.code))
    try:
        yield
    finally:
        ctypes.memmove(place, before, len(before))


def inside() -> None:
    """Make each break in this process, which can load the library, and print the table."""
    from hybridfuzz.harness.draw.grammar import draw_trace
    from hybridfuzz.harness.judge.run import run_trace
    from hybridfuzz.targets.llamacpp.factory import make_factory

    factory = make_factory("")
    wanted = set(sys.argv[2:])
    chosen = [one for one in BREAKS if not wanted or one.name in wanted]
    rows, caught = [], 0
    for one in chosen:
        overrides = {**SOUND, **one.options}
        began, steps, index, row = time.monotonic(), 0, 0, f"| `{one.name}` | `{one.function}` | not caught |"
        while steps < STEPS_MAX and time.monotonic() - began < SECONDS_MAX:
            trace = draw_trace(factory.capabilities, SEED, index, overrides, factory.supports)
            index += 1
            with broken(factory.models.library.c, one):
                outcome = run_trace(factory, trace)
            steps += outcome.steps
            factory.models.forget_results()
            if outcome.violation is None or run_trace(factory, trace).violation is not None:
                continue
            caught += 1
            row = f"| `{one.name}` | `{one.function}` | {outcome.violation.signature} |"
            break
        rows.append(f"{row} {steps} | {index} |")
        print(rows[-1], file=sys.stderr, flush=True)
    print("# llama.cpp, broken on purpose\n")
    print(ABOUT.format(caught=caught, count=len(chosen), seed=SEED, steps=STEPS_MAX, seconds=SECONDS_MAX))
    print("| break | function | caught by | steps | traces |\n| --- | --- | --- | ---: | ---: |")
    print("\n".join(rows))
    print(BY_HAND.rstrip())


def main() -> None:
    """Start `inside` in the environment of a release."""
    from hybridfuzz.targets.base.registry import prepare

    launch = prepare(f"llamacpp@{(sys.argv[1:] or ['2026.10.11549'])[0]}", lambda line: print(line, file=sys.stderr))
    command = [launch.python, __file__, "--inside", *sys.argv[2:]]
    sys.exit(subprocess.run(command, env={**os.environ, **launch.env}, check=False).returncode)


if __name__ == "__main__":
    inside() if "--inside" in sys.argv else main()
