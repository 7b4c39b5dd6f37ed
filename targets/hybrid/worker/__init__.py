"""The worker's side.

model_runner     executes one planned step: zero, copy, forward, verify, draft
input_batch      rows, the worker's block tables, buffers that captured graphs read
state_slots      where states lie on the device, and how they move between columns
accepted_counts  how many drafts each row's last step accepted, on its way from the device to the host
drafter          the drafter's own attention group
tag_kernels      shadow kernels: read and write tags exactly where the metadata points
"""
