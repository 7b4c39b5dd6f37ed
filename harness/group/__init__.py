"""Which failures are one: reduced, compared by their evidence, kept as findings on disk.

reduction/   cuts a failing trace down, and varies it
causes/      the evidence of a failure, and whether two failures have one cause
findings/    the folder of one campaign's findings, and how much a finding matters
known/       known bugs: known.toml, their patches, and the failures that they explain
bug_history  triage.json: the history of each bug over campaigns
merge        unites the folders of independent campaigns

Each imports only those above it. (A *group* of the cache, as oracles name it, is something else: `Group` in
targets/base/trace.py.)
"""
