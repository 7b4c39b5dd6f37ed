"""The built-in target: a hybrid cache manager of our own, small, correct, and easy to break on purpose.

target          the built-in engine behind the `Target` protocol
session_events  its handlers for park, resume, truncate and fork
factory         the capabilities of the target, and its variants
host/           scheduler, block pool, block tables, cache manager
worker/         model runner, input batch, state slots, kernels that read and write tags
offload/        the KV connector and the store outside the pool
plan            the messages between scheduler and worker
inspection      what its attributes mean, for an exploration that compares states
tag_memory      pages of tags: the shadow of the pool's bytes
layout          groups and pool of one configuration
numeric/        repeats each trace on real bytes
mutants/        known bugs, one small class each, in a file named after the part that it breaks
repro           reproducer scripts for this target
deployment      its part of a bug report
"""
