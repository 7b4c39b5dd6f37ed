"""Breaks of real engines that were written by a reader who did not know the search, against an unrestricted campaign.

    python benchmarks/unseen.py [--set second|...|seventeenth|all] [--only GLOB,...] [--steps 20000] [--jobs 1] [-o DIR]
    python benchmarks/unseen.py --set fourteenth --config connector=simple_cpu

Each patch in benchmarks/unseen, or in the folder of a set there, is applied on top of the packaged fixes of its
release. A campaign with seed 1 runs until its first finding, or to its step limit; `--jobs` campaigns run at a time,
with `--config` on configurations with these fields alone.
Results: benchmarks/unseen.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from vllm_campaign import fixes_of

from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import PatchError, parse_patch
from hybridfuzz.targets.base.registry import prepare

PATCHES = Path(__file__).parent / "unseen"
TARGETS = {"vllm": "vllm@0.33.0", "sglang": "sglang@0.5.23"}
POLL_SECONDS = 0.5


def campaign(target: str, steps: int, folder: Path, config: str = "") -> str:
    """Return the signature of the first finding with its trace's number; without one, how many steps ran."""
    folder.mkdir(parents=True, exist_ok=True)
    events = folder / "events.ndjson"
    events.unlink(missing_ok=True)
    line = [sys.executable, "-m", "hybridfuzz.harness.cli", "fuzz", "--target", target, "--steps", str(steps)]
    line += ["--seed", "1", "--jobs", "1", "--no-canary", "--reduce", "1s", "--fresh"]
    line += ["-o", str(folder / "out"), "--events", str(events)]
    line += ["--config", config] if config else []
    said = folder / "stderr.txt"
    with said.open("w") as errors, subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=errors) as run:
        while run.poll() is None:
            time.sleep(POLL_SECONDS)
            if found := first_finding(events):
                run.send_signal(signal.SIGINT)
                run.wait()
                return found
    if found := first_finding(events):
        return found
    ran = max((event["summary"]["steps"] for event in events_of(events) if "summary" in event), default=0)
    if ran < steps:  # a silence counts only if the traces ran
        return f"STOPPED after {ran} steps: {(said.read_text().splitlines() or [f'exit {run.returncode}'])[-1]}"
    return f"not found in {ran} steps{not_tested(events)}"


def not_tested(events: Path) -> str:
    """Return what the adapter did not find in the broken engine, so that the silence proves nothing of it."""
    notices = (event.get("text", "") for event in events_of(events) if event["event"] == "notice")
    return "".join(f" ({notice})" for notice in notices if "so not tested" in notice)


def broken(patch: Path) -> str:
    """Return the target of a checkout of the release with its packaged fixes, and behind them the break: it may change
    lines of a fix. Raises PatchError if it does not apply."""
    engine = patch.stem.partition("-")[0]
    release = prepare(TARGETS[engine], print)
    fixed = patched(release, [*fixes_of(release.version, engine).values()])
    return f"{engine}@{patched(fixed, [parse_patch(patch.read_text(), patch.stem)]).tree}"


def events_of(events: Path) -> list[dict[str, Any]]:
    """Return what a campaign has told so far."""
    lines = events.read_text().splitlines(keepends=True) if events.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first_finding(events: Path) -> str:
    """Return the signature of the first finding and its trace's number, "" if there is none yet."""
    found = (event["finding"] for event in events_of(events) if event["event"] == "found")
    return next((f"{finding['signature']} {finding['index']}" for finding in found), "")


def main() -> None:
    """Run all patches, or those that were named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", default="", help="folder in benchmarks/unseen (default: benchmarks/unseen itself)")
    parser.add_argument("--only", default="*", help="names or patterns, separated by commas")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=1, help="campaigns at a time")
    parser.add_argument("--config", default="", help="fields of the configuration to hold, as for `hybridfuzz fuzz`")
    parser.add_argument("-o", dest="out", type=Path, default=Path("hybridfuzz-out/unseen"))
    arguments = parser.parse_args()
    every = PATCHES.rglob("*.patch") if arguments.set == "all" else (PATCHES / arguments.set).glob("*.patch")
    only = arguments.only.split(",")
    patches = [patch for patch in sorted(every) if any(fnmatch(patch.stem, name) for name in only)]

    def run(patch: Path) -> None:
        name = patch.relative_to(PATCHES).with_suffix("")
        try:
            result = campaign(broken(patch), arguments.steps, arguments.out / name, arguments.config)
        except PatchError as error:  # a fix has changed its lines since
            result = f"does not apply: {error}"
        print(f"{name!s:55} {result}", flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, patches))


if __name__ == "__main__":
    main()
