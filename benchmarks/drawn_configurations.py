"""Shares of settings among drawn configurations: `python benchmarks/drawn_configurations.py [vllm|sglang]`.

Those of vLLM 0.33.0, or SGLang 0.5.23. Runs without the engine: its factory refuses configurations without it.
`--together runner=v1,mixer=mamba2` prints the share of configurations with all of these settings. A value that begins
with "!" stands for all others.
"""

from __future__ import annotations

import argparse
from collections import Counter

from hybridfuzz.harness.draw.avoid import switch_values
from hybridfuzz.harness.draw.choices import RandomChoices
from hybridfuzz.harness.draw.configurations import draw_valid_config
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.sglang.factory import SglangFactory
from hybridfuzz.targets.vllm.factory import VllmFactory
from hybridfuzz.targets.vllm.release import Release


def vllm() -> TargetFactory:
    """Return the factory of the release, with all that it is driven with."""
    release = Release(
        plain_mixers=frozenset(),
        local_groups=True,
        partial_hits=True,
        draft_groups=True,
        shared_metadata=True,
        sessions=True,
        serving_options=True,
        admits_chunks=True,
        coordinates=True,
        replays=True,
        conv_layouts=True,
        junctions=True,
        inputs=True,
        sampling=True,
        offloads=True,
        offloads_simply=True,
    )
    return VllmFactory("vllm", release)


def sglang() -> TargetFactory:
    """Return the factory of the release, with all that it is driven with."""
    return SglangFactory("sglang", sessions=True, mixes=True)


FACTORIES = {"vllm": vllm, "sglang": sglang}


def matches(values: dict[str, str], wanted: dict[str, str]) -> bool:
    """Return True if a configuration has all wanted settings."""
    return all((values[name] == value.lstrip("!")) != value.startswith("!") for name, value in wanted.items())


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=FACTORIES, nargs="?", default="vllm")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--together", action="append", default=[], help="setting=value,..., any number of times")
    options = parser.parse_args()
    factory = FACTORIES[options.engine]()
    wanted = [dict(pair.split("=", 1) for pair in text.split(",")) for text in options.together]
    shares: Counter[str] = Counter()
    for index in range(options.count):
        config = draw_valid_config(RandomChoices(1, index), factory.supports, factory.capabilities, {})
        values = switch_values(config)
        shares.update(f"{name}={value}" for name, value in values.items())
        shares.update(text for text, each in zip(options.together, wanted, strict=True) if matches(values, each))
    for name in sorted(shares):
        print(f"{100 * shares[name] / options.count:5.1f} %  {name}")


if __name__ == "__main__":
    main()
