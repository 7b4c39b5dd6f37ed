"""Prefill/decode disaggregation: servers that have one part of serving each. One of them runs, the other is a stand-in.

decode   what a decode server has beside its scheduler
prefill  the scheduler of a prefill server
sender   what a prefill server sends to: the network, and the memory of decode servers
"""
