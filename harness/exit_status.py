"""Exit statuses of the command line."""

CLEAN = 0
VIOLATION = 1
"""A violation that known.toml does not acknowledge, flaky ones included."""
USAGE = 2
"""Wrong usage, an impossible configuration, unusable input or output, a missing environment."""
VACUOUS = 3
"""A required state or oracle was never exercised, or the self-test failed (blind)."""
INTERNAL = 4
"""hybridfuzz itself failed."""
INTERRUPTED = 5
"""A signal ended the work before its limit, and nothing new was found until then."""
ADAPTER = 6
"""Every new finding is a fault of the target's adapter (ADAPTER, RECORD), none of its engine."""
