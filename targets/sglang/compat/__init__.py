"""Differences between SGLang's releases, and the construction of its parts. Found by feature detection.

scheduler_api  differences in scheduler, requests and batches
old_releases   differences of releases up to 0.5.12
tree_api       differences in the tree cache, and in what a request holds of it
session_api    differences in sessions
sizes          a configuration in SGLang's terms
memory         where contents are in the pools: with unified memory, behind virtual ids
parts          makes pools, allocator, tree cache and attention backend
immediate      clears and copies that releases up to 0.5.12 do without deferring them
engine         assembles the parts for the configuration of one trace
"""
