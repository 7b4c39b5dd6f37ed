"""Processes that run traces, so that a target may crash, hang or leak.

messages  what coordinator and worker send each other
process   a child process and its two pipes
client    the coordinator's side: a lost process becomes an outcome, and a new one starts
server    the worker's side: `python -m hybridfuzz.harness.workers.server TARGET`
"""
