"""Runs a target beside the reference, with oracles that check every record.

run               one trace on fresh targets
lockstep          one target, one reference, all oracles
ranks             several engines as data-parallel ranks
client_events     applies a trace's client events to the reference
ledger_updates    applies the writes of a record to the reference
target_exception  an exception in a target as a violation
differential      two targets on one trace (D1)
state_catalogue   states that a campaign must reach
reached_states    counts them
"""
