"""Whom an engine deals with, and what they send: clients, a KV connector, the other data-parallel rank.

sessions        clients that send input in turns: streaming input sessions
inputs          images, LoRA adapters and salts of requests
sampling        sampling parameters of requests
thinking_budgets  budgets of thinking tokens among these
stop_strings    the front end that finds stop strings
structured      structured output: a backend of grammars
kv_connector    a KV connector whose hits, delays and failures the trace chooses
offloading      vLLM's own OffloadingConnector, on a device queue whose copies come late
simple_cpu      vLLM's own SimpleCPUOffloadConnector, on queues whose copies come late
file_tier       its tier of files behind the host's memory, without threads
own_store       what the stores of vLLM's own connectors share
no_store        the store of an engine without a connector
peer            the other data-parallel rank, in vLLM's own coordination
"""
