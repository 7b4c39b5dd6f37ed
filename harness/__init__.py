"""The harness: draws traces, runs a target in lockstep with the reference, checks, reduces, records.

commands/     the command line, one module for each command
gate/         the pytest plugin
machine       the Hypothesis state machine
campaign/     many traces on several workers for a budget
reproduce/    from a failing trace to something that fails elsewhere
outputs/      what becomes of a campaign's events: terminal, NDJSON, JUnit
detection/    whether known bugs are found, and how fast
cluster/      many machines, and several campaigns as one
findings/     findings on disk, and what is known about them
identity/     which failing traces have one cause
workers/      processes that run traces
explain/      how a trace breaks an invariant
coverage/     lines of an engine that traces reach
lockstep/     one target beside the reference
oracles/      the invariants
traces/       trace files, reduction, outcomes
generate/     where traces come from
events        what a campaign reports
exit_status   the exit statuses of the command line
units         durations, sizes and counts as people write them
quoting       text for Python, Markdown, XML, HTML, TOML and terminals
cli           picks a command, turns errors into one line

From top to bottom: a package imports only packages below it (`tests/test_architecture.py`). Nothing here imports a
concrete target; they come by name from the registry.
"""
