"""Totals of a campaign over time: a bounded number of samples, whatever its length.

OUT/rates.ndjson    one sample a line, written once a minute and at the end
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from ....targets.base.trace import TraceError
from ...campaign_events import CampaignEnded, CampaignEvent, Tick
from ...campaign_summary import Summary
from ...draw.trace_files import read_regular, write_atomically
from ...risk.estimates import chance_of_new
from .handler import CampaignInfo

SAMPLES_MAX = 240
RATES_FILE = "rates.ndjson"
RATES_BYTES_MAX = 1 << 20
NUMBER_MAX = 1e15
"""Larger numbers in a file are damage; a page could not draw them."""
SAVE_SECONDS = 60.0


def make_handler(options: argparse.Namespace) -> Rates:
    """Return the handler."""
    del options
    return Rates()


class Sample(Struct, frozen=True):
    """Totals at one time, in seconds after the start. `states` counts those reached at least once; `species` and
    `chance` are what the traces have shown, and the chance that the next one shows something new (`risk`)."""

    seconds: float
    traces: int
    steps: int
    states: int
    findings: int
    species: int = 0
    chance: float = 1.0


class Rates:
    """Takes samples from a campaign's events. When there are too many, every second one is dropped."""

    name = "rates"

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._interval = 0.0
        self._folder = Path()
        self._saved_at = time.monotonic()

    def start(self, campaign: CampaignInfo) -> None:
        """Continue the samples of a resumed campaign."""
        self._folder = campaign.out
        if campaign.resumed:
            self.samples = list(load_samples(campaign.out))

    def handle_event(self, event: CampaignEvent) -> None:
        """Take a sample if it is time to."""
        if not isinstance(event, Tick | CampaignEnded):
            return
        is_last = isinstance(event, CampaignEnded)
        if event.summary.seconds:
            last = self.samples[-1].seconds if self.samples else -1.0
            if is_last or event.summary.seconds - last >= self._interval:
                self.samples.append(_sample(event.summary))
            if len(self.samples) > SAMPLES_MAX:
                self.samples = self.samples[::2]
                self._interval = 2 * self.samples[-1].seconds / SAMPLES_MAX
        if is_last or time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._saved_at = time.monotonic()
            lines = b"".join(msgspec.json.encode(one) + b"\n" for one in self.samples)
            write_atomically(self._folder / RATES_FILE, lines)

    def shutdown(self) -> None:
        """Do nothing: the file is written."""


def load_samples(folder: Path) -> Sequence[Sample]:
    """Return the samples of a folder, none where there are none or where they cannot be read: they are for show."""
    try:
        data = read_regular(folder / RATES_FILE, RATES_BYTES_MAX, "samples")
        samples = msgspec.json.Decoder(Sample).decode_lines(data)
    except (TraceError, ValueError, RecursionError):  # also of msgspec and of Unicode
        return ()
    return [sample for sample in samples if all(0 <= number <= NUMBER_MAX for number in structs.astuple(sample))]


def _sample(summary: Summary) -> Sample:
    states = len(summary.reached) - len(summary.never_reached)
    species, chance = 0, 1.0
    if (seen := summary.seen) and seen.traces and not seen.is_full:
        species, chance = seen.species, chance_of_new(seen).value
    findings = len(summary.findings)
    return Sample(round(summary.seconds, 2), summary.traces, summary.steps, states, findings, species, chance)
