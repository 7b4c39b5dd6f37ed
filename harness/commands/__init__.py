"""The commands of the command line.

Each module has `EXAMPLES`, `add_arguments(parser)` and `run(options)`.
"""
