"""The worker's side of the engine.

model_runner     executes one planned step: zero, copy, forward, verify, draft
input_batch      rows, the worker's block tables, buffers that captured graphs read
state_slots      columns of the states on the device, and their moves between columns
accepted_counts  accepted drafts of each row's last step, copied from the device to the host
drafter          the drafter's own attention group
tag_kernels      shadow kernels: read and write tags exactly where the metadata points
"""
