"""A small, correct memory of sequences that share cells and keep snapshots, like llama.cpp's, with mutants.

Blocks, tables and a prefix cache do not exist here: a client decodes batches of sequences, and copies, cuts, saves and
restores them. The client is that of every target with such a memory.

    operations     what a client does with sequences, as plain data
    client         turns a trace into operations
    client_events  which of its methods an event is
    executor       executes operations on a memory
    client_target  the `Target` protocol around a client and its memories, for any of them
    memory         the built-in memory, of tags
    target         a client on the built-in memory
    mutants        the memory with a known bug, one small class each
    factory        capabilities and variants
"""
