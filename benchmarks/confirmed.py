"""Every packaged cause of vLLM 0.33.0 on a real model: `hybridfuzz confirm` for its traces, with and without its fix.

    python benchmarks/confirmed.py --target vllm@TREE --device cuda --jobs 16 -o OUT

One process for each cause; its traces run one after another until one is confirmed: a real model fails, and no longer
with the fix. OUT/confirmed.ndjson gets a line for each trace as soon as it has ended, and OUT/confirmed.md the table of
all of them. After --minutes nothing new is begun and what runs is ended: the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import msgspec

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.known.known_toml import load_known
from hybridfuzz.harness.workers.descendants import end_descendants
from hybridfuzz.targets.base.trace import Config

CORPUS = Path(__file__).resolve().parents[1] / "corpus" / "vllm"
RELEASE = "0.33.0"
USUAL = {
    "retention": "dense",
    "graphs": "none",
    "prefix_match_unit": "0",
    "connector": "none",
    "data_parallel": "1",
    "replay": "0",
}
"""Options that the table shows unless they have these values."""
ENDED, TIME = "confirmed", "time"


class Cause(NamedTuple):
    """A packaged cause: its fix, and the traces that show it."""

    name: str
    patch: Path
    traces: Sequence[Path]


class Row(msgspec.Struct, frozen=True):
    """What `confirm` said about one trace.

    verdict  confirmed, not-met, still-fails, time, or error
    setup    of the configuration that failed: model and runner
    what     what differed, or why nothing ran
    alone, batch  greedy tokens of the affected request
    """

    cause: str
    trace: str
    verdict: str
    flags: str = ""
    setup: str = ""
    what: str = ""
    alone: Sequence[int] = ()
    batch: Mapping[str, Sequence[int]] = {}
    seconds: float = 0.0


def causes(folder: Path, words: Sequence[str]) -> Iterator[Cause]:
    """Yield the causes of the release; with words, those of its traces whose names have one of them."""
    for entry in load_known(folder / "known.toml"):
        traces = [folder / name for name in entry.traces if name.startswith(f"{RELEASE}--")]
        chosen = [path for path in traces if not words or any(word in path.name for word in words)]
        if RELEASE in entry.releases and chosen:
            yield Cause(entry.name, folder / entry.patch, chosen)


def flags_of(config: Config) -> str:
    """Return the settings of a trace that a reader has to know."""
    shown = {name: value for name, value in config.options.items() if value != USUAL.get(name, value)}
    if config.num_speculative_tokens:
        shown["drafts"] = str(config.num_speculative_tokens)
    if config.async_depth:
        shown["async"] = "yes"
    return " ".join(f"{name}={value}" for name, value in shown.items())


def row_of(cause: str, trace: Path, answer: Mapping[str, Any], seconds: float) -> Row:
    """Return the row of the JSON that `confirm` ended with."""
    stock = answer["stock"]
    met = next((one for one in stock if one["signature"]), None)
    flags = flags_of(load_trace(trace).config)
    if met is None:
        refused = dict.fromkeys(one["refused"] or "passes" for one in stock)
        return Row(cause, trace.name, answer["exit_reason"], flags, "", "; ".join(refused), seconds=seconds)
    left = [f"; with the fix: {one['message']}" for one in answer["patched"] if one["signature"]]
    what = met["message"] + "".join(left)
    return Row(cause, trace.name, answer["exit_reason"], flags, met["setup"], what, met["alone"], met["batch"], seconds)


class Runs:
    """Runs `confirm` for causes side by side, and writes what is known after each trace."""

    def __init__(self, options: argparse.Namespace, known: Sequence[Row]) -> None:
        self.options = options
        self.rows = list(known)
        self._ends = time.monotonic() + 60 * options.minutes
        self._lock = Lock()

    def cause(self, cause: Cause) -> None:
        """Run the traces of a cause until one is confirmed, or the time is over."""
        for trace in cause.traces:
            done = [row for row in self.rows if row.trace == trace.name and row.verdict != TIME]
            if any(row.cause == cause.name and row.verdict == ENDED for row in self.rows):
                return
            left = self._ends - time.monotonic()
            if left > 0 and not done:
                self._keep(self._confirm(cause, trace, left))

    def _confirm(self, cause: Cause, trace: Path, left: float) -> Row:
        options = self.options
        command = [
            sys.executable, "-m", "hybridfuzz.harness.cli", "confirm", str(trace), "--target", options.target,
            "--device", options.device, "--patch", str(cause.patch), "--until-met", "--json",
        ]  # fmt: skip
        began, limit = time.monotonic(), min(left, 60 * options.each)
        log = options.out / f"{trace.stem}.log"
        with log.open("wb") as errors:
            running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
            try:
                said, _ = running.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                end(running)
                return Row(cause.name, trace.name, TIME, what=f"not over within {limit:.0f} s", seconds=limit)
        seconds = round(time.monotonic() - began, 1)
        lines = said.decode(errors="replace").splitlines()
        try:
            return row_of(cause.name, trace, json.loads(lines[-1]), seconds)
        except (IndexError, KeyError, ValueError):
            tail = log.read_text(errors="replace").strip().splitlines()[-1:]
            return Row(cause.name, trace.name, "error", what="".join(tail), seconds=seconds)

    def _keep(self, row: Row) -> None:
        with self._lock:
            self.rows.append(row)
            with (self.options.out / "confirmed.ndjson").open("ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
            (self.options.out / "confirmed.md").write_text(table(self.rows), encoding="utf-8")
        print(f"{row.cause}: {row.verdict} ({row.trace}, {row.seconds:.0f} s) {row.setup} {row.what}", flush=True)


def end(running: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: workers have sessions of their own."""
    end_descendants(running.pid)
    running.kill()
    running.wait()


def table(rows: Sequence[Row]) -> str:
    """Return one line for each cause, that of its best trace, in Markdown."""
    order = (ENDED, "still-fails", "not-met", "error", TIME)
    best: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: order.index(row.verdict) if row.verdict in order else len(order)):
        best.setdefault(row.cause, row)
    lines = [
        "| cause | verdict | model, runner | flags | what differed | alone | in the batch |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in sorted(best):
        row = best[name]
        batch = "; ".join(f"{fill}: {tokens(own)}" for fill, own in row.batch.items())
        what = row.what.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {name} | {row.verdict} | {row.setup} | {row.flags} | {what} | {tokens(row.alone)} | {batch} |")
    confirmed = sum(row.verdict == ENDED for row in best.values())
    return "\n".join([f"{confirmed} of {len(best)} causes are confirmed.\n", *lines, ""])


def tokens(values: Sequence[int]) -> str:
    """Return the first tokens of a request; ? where unused memory decides."""
    return " ".join("?" if one < 0 else str(one) for one in values[:6])


def main() -> int:
    """Run what is not known yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default=f"vllm@{RELEASE}")
    parser.add_argument("--device", default="cuda", choices=("cuda", "interpreter"))
    parser.add_argument("--jobs", type=int, default=4, help="causes at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="time in all")
    parser.add_argument("--each", type=float, default=30.0, help="minutes for one trace")
    parser.add_argument("--only", default="", help="words of which one is in a trace's name, with commas")
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("-o", dest="out", type=Path, default=Path("confirmed"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "confirmed.ndjson"
    known = [msgspec.json.decode(line, type=Row) for line in kept.read_bytes().splitlines()] if kept.exists() else []
    runs = Runs(options, known)
    wanted = list(causes(options.corpus, [word for word in options.only.split(",") if word]))
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(runs.cause, one) for one in wanted]):
            done.result()
    print(table(runs.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
