"""A real vLLM as target: its own scheduler, cache manager, block pool and model runner, on a CPU.

Replaced are the layers (they compute tags, `layers`), the drafter (`drafter`) and the interpreter of the runner's
small Triton kernels (`interpreter`). Everything that moves block ids around is vLLM's own.

    environment     the engine's releases and the environment of its workers
    release         what a release has
    factory         capabilities of a release; opens one engine per trace
    options         the options of a trace
    features        what a release has and how it computes, found by feature detection
    compat          one function for each thing that releases do in different ways
    wrapping        helpers to wrap and replace functions
    as_on_gpu       replacements of what a CPU or shadow layers cannot run as it is
    old_releases    what only releases before 0.28 need: platform, stand-ins for CUDA, V1 runner
    configuration   a trace's configuration as a `VllmConfig`
    layout          the cache that vLLM built, in the reference's terms
    bringup         runner, cache allocation, captured graphs, scheduler
    graphs          full decode graphs: capture and replay on a CPU
    peer            the other data-parallel rank, in vLLM's own coordination
    layers          shadow layers: tags in vLLM's own KV tensors, at the places that vLLM's own metadata names
    state_layers    shadow layers with a recurrent state
    contracts       the metadata of a state layer: gated delta net, Mamba 1 or 2, short convolution, linear
    all_mode        the same in mode all
    linear_attention  the same of plain linear attention
    metadata        reads metadata into plain rows (`layer_rows`), as the real kernels do
    bounds          checks that indices in metadata name something
    runner_adapter  the two model runners (V1 and V2) behind one interface
    drafter         proposes the drafts that the trace specifies
    hooks           record zeroing, copies and the forward
    sessions        clients that send input in turns: streaming input sessions
    inputs          images, LoRA adapters and salts of requests
    sampling        sampling parameters of requests
    cache_events    a subscriber to KV events
    kv_connector    a KV connector whose hits, delays and failures the trace chooses
    interpreter     a fast interpreter for the runner's Triton kernels
    views           the host's metadata as a `View`
    target          the `Target` protocol
    deployment      the server that a trace stands for, for reports
    confirmation    forms of a failing trace that real models can run, and what they compute
    repro           stand-alone reproducers; repro_engine is the engine that they inline

Only `release`, `factory`, `options`, `deployment`, `confirmation` and `repro` may be imported where vLLM is not
installed.
"""
