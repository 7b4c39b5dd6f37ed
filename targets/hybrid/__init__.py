"""The embedded target: a hybrid cache manager of our own, small, correct, and easy to break on purpose.

target          the `Target` protocol on top
session_events  its handlers for sessions: park, resume, truncate, fork
factory         what the target can do, and its variants
host/           scheduler, block pool, block tables, cache manager
worker/         model runner, batch, states, kernels that read and write tags
offload/        the connector and the store outside of the pool
plan            what scheduler and worker send each other
tag_memory      pages of tags: the shadow of the pool's bytes
layout          groups and pool of one configuration
device/         the operations of a hybrid model on bytes: Triton kernels, and the same in plain torch
numeric/        repeats on bytes what the tags say
mutants/        known bugs, one small class each, in a file named after the part that it breaks
repro           reproducer scripts for this target
"""
