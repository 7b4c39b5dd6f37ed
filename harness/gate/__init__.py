"""The gate: corpus and a fixed search as pytest items, for pull requests.

plugin          the entry point that every pytest run loads: command-line options, and nothing else
settings        configuration from hybridfuzz.toml or pyproject.toml, and the command line
pytest_session  collects the items and prints the summary
allowance       the time of a run
items           one trace as one test item
verdicts        runs a trace and turns its outcome into a verdict; independent of pytest
job_summary     the page of a GitHub workflow's run
causes          failed items by cause: one bug is one failure
packaged_bugs   known bugs: those in known.toml, and those of a release in the packaged corpus
"""
