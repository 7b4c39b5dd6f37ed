"""Traces, and the results of running them.

files      reads and writes trace files, and state files
neighbours  traces that differ a little from a failing one
reduce     cuts a failing trace down
adapt      changes a trace of one engine so that another takes it
outcome    the result of a run
violation  a broken invariant
environment  what is no bug of an engine: no memory left, a device that is gone
"""
