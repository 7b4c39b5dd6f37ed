"""One target beside the reference, judged by the oracles.

run                one trace on fresh targets
lockstep           one target, one reference, all oracles
engines            opens and closes the engines of a trace; what they raise there is a finding
ranks              several engines as data-parallel ranks
client_events      applies a trace's client events to the reference
ledger_updates     applies the writes of a record to the reference
oracles/           the invariants
violation          a broken invariant, as data
verdict            the values of a violation: a state of a request, a key, zeroed memory, ...
sentences          makes the sentences of violations; the one vocabulary for their values
outcome            the result of a run
environment_fault  what is no bug of an engine: no memory left, a device that is gone
target_exception   an exception as a violation, and whose fault it is
malformed          the field of a record or view that is not what the protocol allows
differential       two targets on one trace (D1)
state_catalogue    states that a campaign must reach
reached_states     counts them
situations         which of them come together in one event
"""
