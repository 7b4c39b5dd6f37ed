"""Traces and what running one gives.

files      reading and writing them
reduce     cutting a failing trace down
adapt      changing a trace of one engine until another takes it
outcome    what a run showed
violation  a broken invariant
"""
