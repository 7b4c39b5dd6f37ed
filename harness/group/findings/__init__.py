"""The findings of one campaign: their folder, and how much each matters.

severity        how much a finding matters: what a client gets, how far from the stock server
measured_reach  how far from the stock server a finding is, by running
finding_store   the folder: traces, texts, evidence and state (`FindingStore`, `read_state`)
remote_output   the same folder at a URL
"""
