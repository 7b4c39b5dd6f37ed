"""Numbers of drafts that each row's last step accepted, copied from the device to the host.

The device determines them; the host needs them to find each row's state in the next step. The copy is asynchronous and
in the row order of the step that it comes from. So the next step waits for the copy, then rows leave, enter and move,
then each row gathers its count from its former position. Counts must not move with their rows as well: they would be
permuted twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class AcceptedCounts:
    """Counts by group and row. Without speculation all are 0 and nothing is copied."""

    def __init__(self, num_groups: int, max_rows: int, speculative: int) -> None:
        self.enabled = speculative > 0
        self.names: list[str] = []
        """Requests whose counts `host` holds, in row order."""
        self.host = [[0] * max_rows for _ in range(num_groups)]
        self.device = [[0] * max_rows for _ in range(num_groups)]
        self.copies: list[tuple[list[str], list[list[int]]]] = []
        """Copies to the host in flight, oldest first."""
        self.kept: dict[str, list[int]] = {}
        """Counts of parked sessions, by group."""

    def wait(self) -> None:
        """Wait for all copies in flight."""
        while self.copies:
            self.names, self.host = self.copies.pop(0)

    def forget(self, name: str) -> None:
        """Drop the count of a request that left, so that the next user of its row or name starts with 0."""
        self.names = ["" if other == name else other for other in self.names]

    def keep(self, name: str) -> None:
        """Keep the counts of a parked session: they give the column of its state."""
        if self.enabled and name in self.names:
            row = self.names.index(name)
            self.kept[name] = [counts[row] for counts in self.host]

    def gather(self, names: Sequence[str]) -> None:
        """Permute the counts into the present order of rows."""
        if self.enabled and self.names != names:
            before = [self.names.index(name) if name in self.names else None for name in names]
            spare = [0] * (len(self.host[0]) - len(names))
            self.host = [[0 if row is None else counts[row] for row in before] + spare for counts in self.host]
            self.names = list(names)
            for name in self.kept.keys() & set(names):
                for counts, kept in zip(self.host, self.kept.pop(name), strict=True):
                    counts[names.index(name)] = kept
        if self.enabled:
            self.device = [counts.copy() for counts in self.host]

    def put(self, group: int, row: int, sampled: int) -> None:
        """Set the device's count for a row that sampled `sampled` tokens, of which the last is no draft."""
        if self.enabled:
            self.device[group][row] = self.drafts_among(sampled)

    def drafts_among(self, sampled: int) -> int:
        """Return the accepted drafts of a row that sampled `sampled` tokens; an unfinished prefill samples 0."""
        return max(sampled - 1, 0)

    def send(self) -> None:
        """Start copying the device's counts to the host."""
        if self.enabled:
            self.copies.append((self.names, self.device))
