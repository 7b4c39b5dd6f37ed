"""Prefill/decode disaggregation: servers that have one part of serving each. One of them runs, the other is a stand-in.

decode   the scheduler of a decode server, and what it has beside it
prefill  the scheduler of a prefill server
sender   what a prefill server sends to: the network, and the memory of decode servers
"""
