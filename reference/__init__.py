"""The CPU reference: the rules that a hybrid cache manager must keep.

The reference is an *acceptor*. A target chooses block ids and schedules as it likes; the reference decides
whether each observed transition is legal and what every block must hold. It imports only the standard
library and numpy (in `numeric`), nothing from `harness` or `targets`, and is written to be read:

    tokens        documents, the tiny language model, tags: the tokens of every request
    layout        groups of layers, block sizes, cache modes: how many columns a request needs
    block_partition  the partition rule of physical blocks
    prefix_cache  keys, checkpoints, which hit lengths are valid and which is the longest
    ledger        per block: its owner, and what was written since it was allocated
    batch         rows of a batch of plain caches: select, repeat, reorder
    draft_trees   trees of drafts: which draft each one follows, and the longest right path
    structured    the grammar of a structured answer
    request       the life cycle of one request: its settled tokens, and what its next read must find
    model         all of these together, in device time
    numeric/      the float64 reference of numeric runs; nothing else here imports it
"""
