"""Content outside the pool.

connector       the KV connector: finds, loads and saves prefixes in the external store
external_store  a mapping from key to pages, and the copies between it and the pool
"""
