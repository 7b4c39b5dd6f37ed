"""Steps per second of the numeric run on a GPU, with both mixers, eager and from captured graphs; the cost of zeroing.

    python benchmarks/gpu_steps.py [DEVICE]

Four requests decode in a pool without pressure. The target alone is timed (symbolic step, device work, results on the
host), without reference and oracles; medians over steps.
"""

import statistics
import sys
import time
from itertools import product

import torch

from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Step

GROUPS = (Group("mamba", 8), Group("mamba", 8), Group("attention", 8))
MIXERS = ("mamba2", "gated_delta_net")
STEPS = 200


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def decode(device: str, mixer: str, graph_sizes: tuple[int, ...]) -> tuple[float, float]:
    """Median seconds of a decode step, and of launching its forward and waiting for it."""
    config = Config(200, GROUPS, max_model_len=240, graph_sizes=graph_sizes, options={"mixer": mixer})
    target = load_factory(f"hybrid@{device}").open(config)
    for number in range(4):
        target.apply(Arrive(f"r{number}", (("a", 9 + number),), 220))
    for _ in range(8):
        target.apply(Step())
    launcher, launches = target.device_state.launcher, []
    run = launcher.run

    def timed(*arguments):
        wait()
        began = time.perf_counter()
        results = run(*arguments)
        wait()
        launches.append(time.perf_counter() - began)
        return results

    whole = []
    for _ in range(STEPS // 2):
        began = time.perf_counter()
        target.apply(Step())
        whole.append(time.perf_counter() - began)
    launcher.run = timed
    for _ in range(STEPS // 2):
        target.apply(Step())
    target.close()
    return statistics.median(whole), statistics.median(launches)


def prefill(device: str) -> tuple[float, float]:
    """Median seconds of a step that admits a request, and of zeroing its new blocks."""
    config = Config(400, GROUPS, max_model_len=64, graph_sizes=(), max_num_batched_tokens=48)
    target = load_factory(f"hybrid@{device}").open(config)
    steps, zeroing = [], []
    for number in range(60):
        target.apply(Arrive(f"r{number}", ((f"d{number}", 40),), 1))
        moves, found = target.device_state.moves, []
        launch = type(moves)._launch_zero

        def timed(moves=moves, launch=launch, found=found):
            wait()
            began = time.perf_counter()
            launch(moves)
            wait()
            found.append(time.perf_counter() - began)

        if number % 2:
            moves._launch_zero = timed
            target.apply(Step())
            zeroing += found
            del moves._launch_zero
        else:
            began = time.perf_counter()
            target.apply(Step())
            steps.append(time.perf_counter() - began)
        target.apply(Step())
    target.close()
    return statistics.median(steps[5:]), statistics.median(zeroing[5:])


def main(device: str = "cuda") -> None:
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    for mixer, (label, sizes) in product(MIXERS, (("eager", ()), ("graph replay", (4,)))):
        step, forward = decode(device, mixer, sizes)
        print(f"{mixer}, {label}: {1 / step:.0f} steps/s ({step * 1e3:.2f} ms), its forward {forward * 1e3:.3f} ms")
    step, zero = prefill(device)
    print(
        f"a step that admits 40 tokens: {step * 1e3:.2f} ms; zeroing and checking it {zero * 1e3:.3f} ms "
        f"({100 * zero / step:.1f} %)"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
