"""Runs one target beside the reference and lets the oracles judge every record.

run               one trace on fresh targets
lockstep          one target, one reference, all oracles
ranks             several engines as data-parallel ranks
client_events     what a trace's events mean for the reference
ledger_updates    what a record's writes mean for the reference
crash             an exception in a target as a violation
differential      two targets on one trace (D1)
state_catalogue   states that a campaign must reach
reached_states    notices when they are
"""
