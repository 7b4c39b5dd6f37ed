"""A target to start from: `hybridfuzz new-target` copies this package.

engine    a small engine with plain caches, to be replaced by yours
target    the adapter: executes events with the engine and reports what it did
factory   what the target can do, and how it is opened
"""
