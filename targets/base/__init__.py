"""Shared by all targets: traces, observations, the protocol, the registry, environments for engines."""
