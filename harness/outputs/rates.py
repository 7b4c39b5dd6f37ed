"""How a campaign went over time: a bounded number of samples, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ..events import CampaignEnded, CampaignEvent, Summary, Tick
from ..traces.files import write_atomically

SAMPLES_MAX = 240
RATES_FILE = "rates.ndjson"


class Sample(Struct, frozen=True):
    """Totals at one time, seconds after the start. `states` were reached at least once."""

    seconds: float
    traces: int
    steps: int
    states: int
    findings: int


class Rates:
    """Takes samples from a campaign's records. When there are too many, every second one goes."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._interval = 0.0

    def take(self, record: CampaignEvent) -> None:
        """Look at a record."""
        if isinstance(record, Tick | CampaignEnded) and record.summary.seconds:
            last = self.samples[-1].seconds if self.samples else -1.0
            if isinstance(record, CampaignEnded) or record.summary.seconds - last >= self._interval:
                self.samples.append(_sample(record.summary))
            if len(self.samples) > SAMPLES_MAX:
                self.samples = self.samples[::2]
                self._interval = 2 * self.samples[-1].seconds / SAMPLES_MAX

    def save(self, folder: Path) -> None:
        """One JSON object a line. Raises OSError."""
        write_atomically(folder / RATES_FILE, b"".join(msgspec.json.encode(one) + b"\n" for one in self.samples))


def load_samples(folder: Path) -> Sequence[Sample]:
    """The samples of a folder, none where there are none or where they cannot be read."""
    try:
        return msgspec.json.Decoder(Sample).decode_lines((folder / RATES_FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        return ()


def _sample(summary: Summary) -> Sample:
    states = len(summary.reached) - len(summary.never_reached)
    return Sample(round(summary.seconds, 2), summary.traces, summary.steps, states, len(summary.findings))
