"""Processes that run traces, so that a target may crash, hang or leak.

messages           requests and replies between coordinator and worker
worker_process     a child process and its two pipes; notices its death, the OOM killer, its limits of time and memory
machine            cores and memory that workers may take, and what the kernel counts: OOM kills, time without a core
worker_environment  the rights of a worker: environment variables, home folder, network
judge_loss         judges the loss of a process: a finding, a flaky finding or a warning
results            what a campaign gets for its traces: `Ran`, `Counts`
device_sharing     what the workers of a machine share, such as the daemon for a GPU
protocol           a worker as a campaign uses it, here or on another node
descendants        ends what a worker has started
worker_client      the coordinator's side: a lost process becomes an outcome, and a new one starts
hypothesis_worker  a client whose traces come from Hypothesis
worker_main        the first code of a worker: `python -m hybridfuzz.harness.workers.worker_main TARGET`
request_loop       the worker's side: loads a target and serves requests
outbox             the worker's end of the pipe: replies that a target cannot make by accident
checked_factory    a factory whose answers are checked
stopwatch          where the time of traces goes
own_code           whether a target has replaced code of hybridfuzz
cluster/           workers on the nodes of a Ray cluster
"""
