"""One worker against two: traces a second, and what the coordinator itself costs.

    python benchmarks/scaling.py [--target hybrid] [--seconds 30] [--jobs 1,2]

Wall-clock rates mean something on an idle machine only. The coordinator's CPU seconds for each CPU second of the
workers do not depend on the load: with so many workers on as many cores it takes that share from them.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path

from hybridfuzz.harness.campaign.campaign import Campaign, Settings
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.targets.base.registry import prepare


def run(target: str, seconds: float, jobs: int) -> tuple[Summary, float, float]:
    """Summary, CPU seconds of this process, CPU seconds of its workers."""

    def spent() -> tuple[float, float]:
        own, theirs = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return own.ru_utime + own.ru_stime, theirs.ru_utime + theirs.ru_stime

    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(
            Settings(target=target, launch=prepare(target, print), seed=1, out=Path(folder), jobs=jobs, seconds=seconds)
        )
        before = spent()
        for _ in campaign.run():
            pass
        after = spent()
        return campaign.summary(), after[0] - before[0], after[1] - before[1]


def main() -> None:
    """Print a row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="hybrid")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--jobs", default="1,2", help="numbers of workers (1,2)")
    arguments = parser.parse_args()
    print("| workers | traces/s | against the first | traces per CPU s of workers | coordinator / workers, CPU |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    first = 0.0
    for jobs in map(int, arguments.jobs.split(",")):
        summary, own, theirs = run(arguments.target, arguments.seconds, jobs)
        rate = summary.traces / summary.seconds
        first = first or rate
        print(f"| {jobs} | {rate:.1f} | {rate / first:.2f} | {summary.traces / theirs:.1f} | {own / theirs:.1%} |")


if __name__ == "__main__":
    main()
