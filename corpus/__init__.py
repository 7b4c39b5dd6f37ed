"""Traces worth keeping: minimized failures and traces that reach rare states."""
