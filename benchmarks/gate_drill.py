"""The gate on real vLLM: two runs compared, and one broken line in an unpacked release turned red.

    python benchmarks/gate_drill.py [--budget 60s] [--break SLUG]

The broken tree and its unbroken copy are checkouts to the gate (`vllm@.`), so the release's own bugs are acknowledged
in a known.toml made from the packaged corpus.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hybridfuzz.harness.gate.known import shipped
from hybridfuzz.targets.base.environment import cache_folder
from hybridfuzz.targets.base.registry import prepare
from trees import Edit, edited_tree
from vllm_breaks import BREAKS, TARGET

RELEASE = TARGET.partition("@")[2]


def gate(folder: Path, target: str, *more: str) -> tuple[float, dict[str, str], str]:
    """Wall seconds, item -> outcome, and the output of one run in a folder."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-v", "--hybridfuzz-target", target, *more]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    outcomes = dict(re.findall(r"^(hybridfuzz::\S+) ([A-Z]+)", ran.stdout, re.MULTILINE))
    return time.monotonic() - began, outcomes, ran.stdout + ran.stderr


def line(what: str, seconds: float, outcomes: dict[str, str]) -> None:
    """One row of the table."""
    counts = {state: list(outcomes.values()).count(state) for state in ("PASSED", "FAILED", "XFAIL", "SKIPPED")}
    print(f"| {what} | {seconds:.0f} | " + " | ".join(map(str, counts.values())) + " |", flush=True)


def main() -> int:
    """Print the table and the failure of the broken tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--break", dest="slug", default="evictable-not-counted", help="of vllm_breaks.py")
    arguments = parser.parse_args()
    [broken] = [one for one in BREAKS if one.slug == arguments.slug]
    budget = f"--hybridfuzz-budget={arguments.budget}"
    prepare(TARGET, print)
    print("| run | wall s | passed | failed | known | skipped |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        folder = Path(temporary)
        first, second = gate(folder, TARGET, budget), gate(folder, TARGET, budget)
        line(TARGET, *first[:2])
        line(f"{TARGET} again", *second[:2])
        entries = [
            f'[[known]]\nsignature = "{one.signature}"\nreason = "{one.reason}"\n' for one in shipped(TARGET, RELEASE)
        ]
        source = cache_folder() / "vllm" / RELEASE / "tree"
        results = {}
        for name, edits in (("unbroken", []), ("broken", [Edit(f"vllm/{broken.file}", broken.old, broken.new)])):
            tree = edited_tree(source, edits, folder / name)
            (tree / "known.toml").write_text("\n".join(entries))
            results[name] = gate(tree, "vllm@.", budget, "--hybridfuzz-known=known.toml")
            line(f"vllm@. {name}", *results[name][:2])
    same = first[1] == second[1]
    red = "FAILED" in results["broken"][1].values()
    print(f"\nsame traces and verdicts twice: {same}; the broken line ({broken.what}) is red: {red}\n")
    text = results["broken"][2]
    print("\n".join(text[text.find("= FAILURES") :].splitlines()[:12]))
    return 0 if same and red else 1


if __name__ == "__main__":
    sys.exit(main())
