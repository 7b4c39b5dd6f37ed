"""Findings on disk, and what is known about them.

store   the folder of one campaign's findings
known   known.toml: bugs that somebody has acknowledged
triage  triage.json: the history of each bug over campaigns
retest  old bugs that a campaign did not meet are run again
"""
