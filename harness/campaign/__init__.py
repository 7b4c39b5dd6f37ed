"""A campaign: many traces on several workers for a budget.

campaign       starts the workers, yields events until the budget is spent
shared_state   what all workers share, behind one lock; also what is written to disk
worker_loop    one thread for each worker: takes traces, runs them, looks into what fails
schedule       hands out the work that is left
nodes          totals of each node of a cluster
species        what the traces have shown, for estimates of what is left
trace_counts   which traces are counted
refusals       traces that the target refused when it was opened
could_not_run  traces that could not run for want of memory or a device
resume         whether a folder holds a campaign to continue
rare_traces    traces that reach rare states, kept for the next campaign
triage         which failure is looked into next, within a share of the workers' time
backlog        failing traces that are kept until there is time for them
familiar       failing traces that look like those which known bugs have explained
recheck        runs a new finding again, reduces and explains it
known_bugs     known bugs in the course of a campaign: their state, and how many traces they covered
retest         old bugs that a campaign did not meet are run again
two_targets    two targets on the same traces, for `--against`
sorting        sorts failing traces into findings by cause
canary         the self-test of every campaign: one planted bug that must be found

What waits for a worker, in the order in which it is handed out: chores (`schedule`), tasks about failures (`triage`,
within their share of the time), new trace numbers (`trace_counts`). A failing trace for which there is no time yet
waits on disk (`backlog`); the summary counts those (`Summary.waiting`).
"""
