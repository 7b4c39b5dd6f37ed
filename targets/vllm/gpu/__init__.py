"""A real vLLM with real kernels: its own models with random weights, on a GPU.

Nothing of the model is replaced: vLLM's model classes, Triton kernels and CUDA graphs run. Beside each forward the
shadow layers of the CPU adapter run on the host (`mirror`), from the metadata that vLLM built for its kernels, so that
the same code makes all observations of the CPU adapter. The tokens are those of the tag model: a trace means the same
steps on a CPU and on a GPU. The real model is observed by its log-probabilities.

    stand_ins         where kernels run, and what is replaced because a wheel's binaries are missing
    real_config       a trace's configuration as a `VllmConfig` for a GPU
    mirror            tags on the host, moved as vLLM's metadata and copies move states
    real_model        vLLM's model: runs the mirror, chooses the tag model's tokens, keeps its own log-probabilities
    draft_head        vLLM's own MTP head and speculator behind the model, on each memory
    replay            the same for captured CUDA graphs
    real_kit          the model, its runner and its graphs, for `targets.vllm.engine`; the mirror beside them
    real_engine       one such engine, kept for several traces and reset between them
    memory_budget     what waits for its next trace, within a budget of device memory
    engines_of_process  what waits in this process
    compiler          says which kernel is compiled
    adapters          LoRA adapters with random weights, by vLLM's own manager and kernels
    images            what vLLM's processor would make of images; no processor runs
    beside            what a request's tokens are computed with: an adapter, images
    source_edits      leaves assertions out of a function of vLLM's
    autotuning        chooses the configurations of kernels without timing them
    sharing           the daemon through which workers share the device
    placement         which GPU a worker, or a data-parallel rank of it, uses
    rank_group        vLLM's group of data-parallel ranks, a process each
    rank_messages     what a worker and the processes of its other ranks tell each other
    rank_processes    the other ranks of a worker, which is rank 0: started, told what to run, ended
    rank_main         a process that holds another rank
    snapshot          puts back everything that an engine refers to
    memories          several contents of the caches, one for each fill of unused memory
    jitter            delays on streams
    host_copy         metadata of the device, read with one copy
    same_tokens       the same tokens alone, in one chunk, in an empty engine
    comparison        which differences from them count
    turns             which tokens of an executed row count
    unsaid_writes     blocks that a dummy run changed, seen by their bytes
    stored_pages      real pages in a KV connector's store
    offloaded_pages   real pages in the host tier of vLLM's own connector
    plans             the steps by which each request was computed
    same_steps        the same steps alone, with batch-invariant kernels
    lives             what was computed for each request, compared with its steps alone
    target            an engine and its memories as a target
    factory           what the target can do; opens it
    interpreted       the same on a CPU, every kernel interpreted
    scaling           a trace for other block sizes
    witness           a script of vLLM's public API for a trace
    witness_template  its text

`beside`, `comparison`, `compiler`, `factory`, `memory_budget`, `placement`, `plans`, `rank_main`, `rank_messages`,
`scaling`, `stand_ins` and `witness` may be imported where vLLM is not installed.
"""
