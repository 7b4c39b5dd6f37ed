"""llama.cpp: the memory of its hybrid models, driven through its C API, with tiny random models on a CPU.

There is no scheduler and no table of blocks: a client (`targets.sequences`) decodes batches of sequences, and copies,
cuts, saves and restores them. The model is llama.cpp's own; its log-probabilities are compared with those of the same
tokens alone. See docs/explanation/llamacpp.md.

    environment  the releases (wheels of xllamacpp) and the environment of their workers
    library      the C API by ctypes, and which layout of its parameters a build has
    families     tiny configurations of the hybrid families, and their weights
    gguf_file    writes such a model as a file
    context      a context of the library: the C API as methods
    context_sizes  parameters of a trace's contexts
    model        the model, and the same tokens alone
    factory      capabilities; opens one context per trace
    target       the library behind the `Target` protocol
    server       requests to llama.cpp's HTTP server
    server_start  starts that server in this process
    server_process  starts it in a process of its own
    server_stream  requests that arrive, and clients that leave, while others are computed
    server_requests  what operations are to it
    server_target  that server behind the `Target` protocol
    kit_limits   what the target and its scripts cannot do
    deployment   what a bug report says about the environment
    checked_context  what a script runs: a context that compares its logits
    checked_server  what a script of the server runs: a server that is compared with new ones
    c_program    the same calls in C
    script_calls  the events of a trace as lines of a script
    repro        scripts of calls of the C API
    server_repro  scripts of requests to the server
"""
