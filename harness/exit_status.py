"""The exit statuses of the command line."""

CLEAN = 0
VIOLATION = 1
USAGE = 2
"""Wrong usage, a configuration that cannot be, or an environment that cannot be had."""
VACUOUS = 3
"""A required state or oracle was never exercised, or a planted bug was not found (blind)."""
INTERNAL = 4
"""hybridfuzz itself failed."""
