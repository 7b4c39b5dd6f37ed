"""Where traces come from: drawn, read from files, adapted from another engine.

choices            the source of choices: a seeded PRNG, or Hypothesis
overrides          `--config`: settings that are the same in all traces
configurations     draws the configuration of a trace
workload           the table of ratios by which both are drawn
near_stock         the configurations that most servers run
grammar            draws its events
hypothesis_rules   the grammar as rules for Hypothesis, one for each kind of event
hypothesis_traces  traces drawn by Hypothesis, by number
aim                draws traces that are like those which did what is wanted
avoid              keeps most traces away from the circumstances of known bugs
trace_files        reads and writes trace files, and state files
adapt              changes a trace of one engine so that another takes it
"""
