"""Writes example reports to build/examples: one trace of the corpus each, as `hybridfuzz repro` reports it.

python docs/example_reports.py [NAME ...]    # all of them without names; those of engines make environments
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "corpus"
EXAMPLES = {
    "vllm": ("vllm@0.33.0", "vllm/0.33.0--one-token-prompt-v2--S3-step-mamba-temporal.json"),
    "sglang": ("sglang@0.5.23", "sglang/0.5.23--snapshot-slots-not-swapped--S1-step-mamba-temporal.json"),
    "transformers": (
        "transformers@5.23.0",
        "transformers/5.23.0--jamba-later-chunk-forgets-the-state--S6-step-logprobs.json",
    ),
    "hybrid": ("hybrid:accepted-count-zero", "accepted-count-zero--S3-step-mamba-temporal.json"),
}
"""Name -> (target, trace)."""


def write(name: str, into: Path) -> None:
    """Run one example and write its REPORT.md to `into`. Raises CalledProcessError if there is no report."""
    target, trace = EXAMPLES[name]
    command = [sys.executable, "-m", "hybridfuzz.harness.cli", "repro", str(CORPUS / trace), "--target", target]
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run([*command, "--out", folder], capture_output=True, text=True, check=False)
        report = Path(folder) / "REPORT.md"
        if not report.exists():
            raise SystemExit(f"{name}: {ran.stdout}{ran.stderr}")
        into.write_bytes(report.read_bytes())


if __name__ == "__main__":
    folder = ROOT / "build/examples"
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or EXAMPLES:
        write(name, folder / f"{name}.md")
