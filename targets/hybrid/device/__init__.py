"""The operations of a hybrid model on a byte-level pool: plain torch twins, and Triton kernels of the same signatures.

`ops.py` is the contract (shapes, dtypes, edge cases); `twins/` says what each operation means, one loop at a time;
the other modules do the same in one launch. Nothing here schedules or owns blocks, and nothing is imported until
`ops.implementation` is asked for one, so that the symbolic target needs neither torch nor triton.
"""
