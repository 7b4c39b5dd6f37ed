"""What is taken where nothing is asked for, in commands, campaigns and the Python interface.

What depends on the machine is elsewhere: a worker for each core, and the share of its memory (`workers.machine`).
"""

import random

CAMPAIGN_SECONDS = 60.0
"""Length of a campaign without any limit."""
TRACE_SECONDS = 60.0
"""Time limit of one run of a trace, else it is a hang."""
REDUCE_SECONDS = 20.0
"""Time limit for reducing one finding."""
TRIAGE_SHARE = 0.3
"""Share of the workers' time for looking into failures."""


def drawn_seed() -> int:
    """Return a seed for a campaign that was given none."""
    return random.SystemRandom().randrange(1 << 32)
