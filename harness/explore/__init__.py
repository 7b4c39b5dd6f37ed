"""Explores all traces of a scope up to a length, each state once, and certifies what was seen.

scope        what is enumerated, from a file (packaged ones in `scopes`); the alphabet that may follow a trace
form         the canonical form of a state, by which traces that lead to one state are continued once
expand       beside the target: continues a trace by each event, and checks merges
search       states, first traces and failures, in an order that workers do not change
exploration  runs it on workers
journal      the answers as they come: for a run that was killed, and for other shards
certificate  the result as data, as a sentence and as a page
check_certificate  runs a sample of a certificate again

A verdict is always that of the lockstep and its oracles (`judge`).
"""
