"""Processes that run traces, so that a target may crash, hang or leak.

messages           requests and replies between coordinator and worker
worker_process     a child process and its two pipes
machine            what workers may take of this machine: cores, memory
worker_environment  the rights of a worker: environment variables, home folder, network
lost_process       the meaning of a lost process: a finding, a flaky finding or a warning
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
