"""How many drafts each row's last step accepted, on its way from the device to the host.

The device decides it; the host needs it to find the row's state in the next step. The copy is asynchronous, and in
the row order of the step that it comes from. So the next step does three things in this order: it waits for the
copy, rows leave, enter and move, and each row takes its count from where it was then. Once: a count that moved with
its row and is then gathered as well has been permuted twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class AcceptedCounts:
    """Counts by group and row; all zero, and no work, without speculation."""

    def __init__(self, num_groups: int, max_rows: int, speculative: int) -> None:
        self.enabled = speculative > 0
        self.names: list[str] = []
        """Whose counts `host` holds, in row order."""
        self.host = [[0] * max_rows for _ in range(num_groups)]
        self.device = [[0] * max_rows for _ in range(num_groups)]
        self.copies: list[tuple[list[str], list[list[int]]]] = []
        """Copies to the host that were begun, oldest first."""
        self.kept: dict[str, list[int]] = {}
        """Counts of parked sessions, by group."""

    def wait(self) -> None:
        """Let every copy arrive that was begun."""
        while self.copies:
            self.names, self.host = self.copies.pop(0)

    def forget(self, name: str) -> None:
        """A request left: whoever gets its row, or its name again, starts with nothing accepted."""
        self.names = ["" if other == name else other for other in self.names]

    def keep(self, name: str) -> None:
        """A session leaves its row and will come back: its state lies where the count says."""
        if self.enabled and name in self.names:
            row = self.names.index(name)
            self.kept[name] = [counts[row] for counts in self.host]

    def gather(self, names: Sequence[str]) -> None:
        """Bring the counts into the present order of rows."""
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
        """On the device: the row sampled so many tokens, the last of them is no draft."""
        if self.enabled:
            self.device[group][row] = self.drafts_among(sampled)

    def drafts_among(self, sampled: int) -> int:
        """Accepted drafts of a row that sampled `sampled` tokens; an unfinished prefill samples nothing."""
        return max(sampled - 1, 0)

    def send(self) -> None:
        """Begin the copy of what the device holds now."""
        if self.enabled:
            self.copies.append((self.names, self.device))
