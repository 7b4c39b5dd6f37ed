"""The CPU reference: what a hybrid cache manager must keep true.

The reference is an *acceptor*. A target chooses block ids and schedules as it likes; the reference says
whether each observed transition is legal and what every block must hold. It imports only the standard
library (and, later, numpy for float64 maths), nothing from `harness` or `targets`, and is written to be read:

    tokens        documents, the tiny language model, tags: what every token of every request *is*
    layout        groups of layers, block sizes, cache modes: how many columns a request needs
    pool          the partition rule of physical blocks
    prefix_cache  keys, checkpoints, which hit lengths are valid and which is the longest
    ledger        per block: who may write it, what was written since it was handed out
    request       the life cycle of one request: how many tokens are settled, what its next read must find
"""
