"""The harness: draws traces, runs a target in lockstep with the reference, checks, groups, reports.

cli                 picks a command, turns errors into one line
face/               what a person types and reads: commands and outputs
gate/               the pytest plugin
library             the Python interface
hypothesis_machine  the Hypothesis state machine
campaign/           many traces on several workers for a budget
measure/            how good the search is: lines reached, planted bugs found
tell/               a failure in words and files for somebody else
group/              which failures are one, and what is known about them
workers/            processes that run traces, here and on a cluster
explore/            all traces up to a length, each state once, with a certificate
record/             what happened in a run, as data
risk/               what traces have not shown, estimated
judge/              one target beside the reference, and the oracles
options_file        options of all commands and of the gate, from hybridfuzz.toml
draw/               where traces come from
campaign_events     what a campaign reports while it runs
campaign_summary    what it has found and done so far: plain data
defaults            what is taken where nothing is asked for
exit_status         the exit statuses of the command line
suggestions         the name that was meant
units               durations, sizes and counts as people write them
markup              pieces of HTML and SVG, quoted
standard_streams    closed streams, full disks, and a line on a terminal while a command prints nothing
quoting             text for Python, Markdown, XML, HTML, TOML and terminals

From top to bottom: a wing imports only wings below it, and `reports` stands above all of them
(`tests/test_architecture.py`). Nothing here imports a concrete target; they come by name from the registry.
"""
