"""Sources that only stand-alone reproducers have (`repro`).

clients    clients of the engine that scripts share with the adapter
stand_ins  what the adapter takes from the harness
"""
