"""SGLang: a radix tree with one state slot per node, real scheduler, tree, pools and allocators, on a CPU.

The scheduler is SGLang's own class without its constructor. The model is replaced by shadow layers that keep tags in
SGLang's own state and KV tensors. See docs/explanation/sglang.md.

    environment  the engine's releases and the environment of its workers
    factory      capabilities; opens one engine per trace
    deployment   the server that a trace stands for, for reports
    compat       differences between releases, and the construction of SGLang's parts
    stubs        stands in for modules and features that a CPU run does not need
    scheduling   SGLang's scheduler without its constructor; one turn of its event loop
    speculation  the target model of a worker that verifies drafts; SGLang's n-gram worker
    eagle        its worker with a draft model
    draft_trees  trees of drafts: how they are drawn, and what attention and state layers see of them
    sampling     requests with a temperature, and the coins of their verifications
    logit_shapes  requests that rule out tokens, by biases or by processors of their logits
    kernels      their index kernels in plain Torch
    grammars     structured output: a backend of grammars
    sessions     clients of streaming sessions
    inputs       images, adapters, salts and own keys of requests
    device       shadow layers, executed when SGLang waits for their result
    batch_rows   the rows of a launched batch
    bounds       checks their indices
    ring         decodes that replay a ring of inputs (ReplaySSM)
    checkpoints  states of the tree in int8, in slots of their own
    graphs       captured decode graphs: padded batches, from the buffers that a replay reads
    snapshots    snapshots beside the working state
    trees        reads the radix tree
    core_pair    both tree cores in one engine, every answer compared
    host_copies  HiCache: copies between host and device that run when something waits for them
    host_tier    HiCache: the host tier, and what it copies
    storage      what is behind it: the controller's threads run one operation at a time
    disaggregation  servers that have one part of serving, with a stand-in for the other one
    host_contents  what the host holds, as observations
    host_view    the host's metadata as a `View`
    serving      the server around the scheduler, one turn of the event loop per step
    target       the `Target` protocol
    kit_limits   what shadow layers and scripts cannot do
    mamba2       Mamba 2 layers on SGLang's own metadata
    front_door   whether SGLang, given its command, arrives at what ran; what the adapter sets itself
    repro        stand-alone reproducers
    repro_engine  what only they have

Only `environment`, `factory`, `deployment`, `front_door`, `kit_limits`, `repro`, `sampling` and `compat.sizes` may be
imported where SGLang is not installed.
"""
