"""vLLM's state, attention and copy kernels by themselves, against float64: random shapes until the time is over.

    python benchmarks/gpu_kernels.py --device cuda --tree TREE --seconds 60 -o kernels.json

Every case has rows of different lengths, empty rows, rows at the null block, states that lie apart in larger pages (on
a GPU some of them beyond 2^31 bytes), and outputs and unused memory that hold NaN; what a kernel's wrapper allocates is
filled with NaN, too. Checked: results against a float64 reference within a bound (`kernels_decode`, `kernels_prefill`,
`kernels_paged`), and that no bit outside of the live rows' states changes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kernel_case import Case
from kernels_decode import DECODE
from kernels_paged import PAGED
from kernels_prefill import PREFILL

KERNELS: dict[str, Callable[[Case], str]] = {**DECODE, **PREFILL, **PAGED}


def main() -> int:
    """Draw cases until the time is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="interpreter", choices=("cuda", "interpreter"))
    parser.add_argument("--tree", type=Path, help="an unpacked vLLM wheel (the installed one)")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", dest="out", type=Path, default=Path("gpu-kernels.json"))
    parser.add_argument("--until-wrong", action="store_true", help="end at the first wrong result")
    parser.add_argument("--only", default="", help="words of which one is in a kernel's name")
    options = parser.parse_args()
    if options.tree:
        sys.path.insert(0, str(options.tree))
    if options.device == "interpreter":
        os.environ["TRITON_INTERPRET"] = "1"
    from hybridfuzz.targets.vllm.gpu.stand_ins import prepare

    prepare(options.device)
    if options.device == "interpreter":
        from hybridfuzz.targets.vllm.gpu.interpreted import prepare as interpret

        interpret()
    device = "cuda" if options.device == "cuda" else "cpu"
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)  # so that torch.empty holds NaN
    torch.utils.deterministic.fill_uninitialized_memory = True
    cases: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    words = options.only.split(",")
    chosen = {name: kernel for name, kernel in KERNELS.items() if any(word in name for word in words)}
    began, number = time.monotonic(), 0
    while time.monotonic() - began < options.seconds and not (wrong and options.until_wrong):
        for name, kernel in chosen.items():
            draw = random.Random(f"{options.seed}/{name}/{number}")
            prefill = name in PREFILL or (name == "unified_attention" and draw.random() < 0.5)
            case = Case(draw, device, drafts=not prefill and draw.random() < 0.6, prefill=prefill)
            kind = f"{name}{', drafts' if case.drafts else ''}{', beyond 2^31 bytes' if case.far else ''}"
            cases[kind] += 1
            try:
                found = kernel(case)
            except Exception as error:
                found = f"{type(error).__name__}: {str(error)[:300]}"
            if found and kind not in wrong:
                wrong[kind] = f"case {number}: {found}"
                print(f"{kind}: {wrong[kind]}", flush=True)
        number += 1
        options.out.write_text(json.dumps({"result": {"cases": dict(cases), "wrong": wrong}}, indent=1) + "\n")
    print(json.dumps({"cases": dict(cases), "wrong": wrong}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
