"""Everything that differs between SGLang's releases, and the construction of its parts.

releases      scheduler, requests and batches
old_releases  what releases up to 0.5.12 have otherwise
tree_api      the tree cache
session_api   sessions
sizes         a configuration in SGLang's terms
parts         makes pools, allocator and tree cache
immediate     clears and copies that old releases do at once
engine        puts the parts together
"""
