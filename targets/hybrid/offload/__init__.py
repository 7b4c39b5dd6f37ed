"""Content outside of the pool.

connector       finds more of a prefix than the pool holds, has it loaded, stores what is computed
external_store  a mapping from key to pages, and the copies between it and the pool
"""
