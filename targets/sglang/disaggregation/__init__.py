"""Prefill/decode disaggregation: a prefill server or a decode server runs; its peer is a stand-in.

decode   the scheduler of a decode server, and what it has beside it
prefill  the scheduler of a prefill server
sender   what a prefill server sends to: the network, and the memory of decode servers
"""
