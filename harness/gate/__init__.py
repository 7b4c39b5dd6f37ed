"""The gate: corpus and a fixed search as pytest items, for pull requests.

plugin    the entry point that every pytest run loads: options, and nothing else
settings  what the repository's hybridfuzz.toml or pyproject.toml says
session   collects the items and sums up
items     one trace as one test item
judge     what a trace's outcome means; knows nothing of pytest
known     the list of known bugs that is shipped with a release
"""
