"""Findings on disk, and what is known about them.

store   the folder of one campaign's findings
known   known.toml: acknowledged bugs, with patches, traces and conditions
fixes   patches of known bugs applied, and their traces run without them
conditions  known bugs without a patch, recognized by the evidence of their traces
verification  does a patch fix a finding
watch   known bugs in the course of a campaign
triage  triage.json: the history of each bug over campaigns
retest  old bugs that a campaign did not meet are run again
"""
