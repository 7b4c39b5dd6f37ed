"""The scheduler's side of the engine.

scheduler      chunked prefill, budgets, FCFS and priority, preemption, drafts, planning ahead
sessions       requests of several turns, which keep their blocks between turns
block_pool     physical blocks: free queue, reference counts, lookup index
block_tables   one block table for each request and KV cache group: attention, window, mamba (none, align, all)
cache_manager  prefix hits over all groups, allocation, publication, the zeroing list
partial_hits   prefix hits that end inside a block
"""
