"""Lines of an engine's cache modules that traces reach.

terminal  the table and the names of functions that never ran
report    counts by module and function, written with coverage.py's LCOV and HTML
analysis  the process that writes them: `python -m hybridfuzz.harness.measure.coverage.analysis`
"""
