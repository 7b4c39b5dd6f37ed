"""Which GPU a process of a campaign uses: the workers, and the data-parallel ranks of each worker, share them out.

Rank r of worker w has device (r + w) modulo the number of devices: the ranks of one engine are on different devices if
there are as many, and each device carries about as many workers' ranks as any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from ...base.launch import WORKER

RANK = "HYBRIDFUZZ_RANK"
"""Environment variable of a process that is a data-parallel rank beside a worker, which is rank 0."""


def index_of(variables: Mapping[str, str], devices: int) -> int:
    """Return the device of the process with these environment variables, 0 where there is none."""
    place = int(variables.get(RANK) or 0) + int(variables.get(WORKER) or 0)
    return place % devices if devices else 0


@cache
def device_count() -> int:
    """Return the number of GPUs that this process sees."""
    import torch

    return torch.cuda.device_count()


@cache
def own_index() -> int:
    """Return the device of this process."""
    return index_of(os.environ, device_count())
