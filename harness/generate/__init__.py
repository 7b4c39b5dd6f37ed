"""Where traces come from.

choices         the source of decisions: seeded, or Hypothesis
overrides       `--config`: settings that are fixed for all traces
configurations  draws the configuration of a trace
grammar         draws its events
"""
