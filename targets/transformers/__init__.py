"""Hugging Face transformers: its cache classes, masks and hybrid models, with tiny random weights on a CPU.

There is no scheduler and no block pool: a batch has one cache, and the client pads, chunks, reorders and crops it. Each
trace runs the same operations twice: with tags in the library's own cache tensors, and with the real forward of a tiny
model. See docs/explanation/transformers.md.

    environment  the engine's releases and the environment of its workers
    features     differences between releases
    factory      capabilities; opens one client per trace
    families     tiny configurations of the hybrid families
    operations   what a client does with a cache, as plain data
    client       turns a trace into operations
    caches       executes operations on a cache
    devices      an accelerator and a host, simulated, for cache offload
    least_tokens  stop tokens that the library's processor holds back
    tag_layers   shadow layers: tags in the cache, read under the library's masks
    model        the real model, and the same tokens alone
    target       the `Target` protocol
    kit_limits   what the target and its scripts cannot do
    deployment   what a bug report says about the environment
    repro        plain scripts of public API
"""
