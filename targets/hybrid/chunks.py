"""Where a chunk of known tokens ends in mode align."""

from __future__ import annotations


def chunk_end(start: int, end: int, prefill_end: int, known: int, grid: int, partial: int, held: int) -> int:
    """A chunk from `start` that could reach `end`: it stops at the first of the boundaries that want a state.

    prefill_end  end of what is known and not sampled; a chunk that does not get there ends on the grid
    known        tokens whose ids are known: their last boundary is one to stop at
    grid         tokens between two states
    partial      the prompt's last boundary on a finer grid, 0 if there is none
    held         end of a column that must not be stepped over, 0 if there is none
    """
    if end < prefill_end and end // grid * grid > start:
        end = end // grid * grid
    stops = [known // grid * grid, held]
    if partial > stops[0]:
        stops.append(partial)
    if start % grid:
        stops.append((start // grid + 1) * grid)
    return min([stop for stop in stops if start < stop < end], default=end)
