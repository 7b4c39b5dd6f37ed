"""A differential fuzzer for the cache managers of hybrid models.

harness/      draws traces, runs a target in lockstep with the reference, checks, reduces, records
reference/    what is right
targets/      what is tested: the built-in engine, and adapters for real ones
corpus/       traces and patches that ship with the package
reports/      the pages that campaigns write

In a checkout these five are links to the folders at its top.
"""

__version__ = "0.1.0"
