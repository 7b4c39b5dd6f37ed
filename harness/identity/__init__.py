"""Groups failing traces by cause.

investigate   collects the evidence of one failing trace
variants      traces that differ from another one in one property
same_failure  whether a candidate of a reduction still fails in the same way
facts         facts about the steps up to a violation
origins       facts about where a wrong value came from
spectrum      the place in the engine's code where failing and passing runs part
compare       decides whether failures have one cause
weights       fitted numbers of `compare`
evidence      what is known about the cause of a failure: plain data
"""
