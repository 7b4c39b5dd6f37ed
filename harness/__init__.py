"""The harness: draws traces, runs a target in lockstep with the reference, checks, reduces, records.

The core (`lockstep`, `oracles`, `workload`, `reduce`, `campaign`) returns plain values; only `cli` and `console`
print. Nothing here imports a concrete target: they come by name from the registry.
"""
