"""The embedded target: a hybrid cache manager of our own, small, correct, and easy to break on purpose.

    pool       physical blocks: free queue, reference counts, lookup index
    groups     one block table per request and KV cache group: attention, mamba (none, align, all)
    cache      prefix hits over all groups, allocation, publication, the zeroing list
    scheduler  chunked prefill, budgets, FCFS and priority, preemption, drafts, planning ahead
    plan       what scheduler and worker say to each other
    accepted   how many drafts each row's last step accepted, on its way from the device to the host
    batch      rows, worker-side block tables, buffers that captured graphs read
    memory     pages of tags: the shadow of the pool's bytes
    kernels    shadow kernels: read and write tags exactly where the metadata points
    states     where states lie on the device, and how they move between columns
    runner     executes one planned step: zero, copy, forward, verify, draft
    target     the `Target` protocol on top

A mutant overrides one method of one of these classes (`mutants/`); `build.py` puts the parts together.
"""
