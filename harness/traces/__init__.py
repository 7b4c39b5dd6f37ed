"""Traces, and the results of running them.

files      reads and writes trace files, and state files
neighbours  traces that differ a little from a failing one
reduce     cuts a failing trace down
adapt      changes a trace of one engine so that another takes it
outcome    the result of a run
violation  a broken invariant, as data
verdict    the values of a violation: a state of a request, a key, zeroed memory, ...
words      makes the sentences of violations; the one vocabulary for their values
legacy     violations of files that earlier versions wrote
"""
