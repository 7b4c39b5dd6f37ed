"""A real vLLM as target: its own scheduler, cache manager, block pool and model runner, on a CPU.

Replaced are the layers and the drafter, which compute tags (`shadow`), and the interpreter of the runner's small Triton
kernels (`interpreted_kernels`). Everything that moves block ids around is vLLM's own.

From a version to a server:

    environment          the engine's releases and the environment of its workers
    release              what a release offers as capabilities, without importing it
    versions             what the imported vLLM has, and how versions differ
    factory              opens one engine per trace
    capabilities         what is drawn on a release: events, options, features
    stock                what `vllm serve` runs where nobody has set anything but the model
    options              the options of a trace
    kit_limits           what shadow layers, real models and scripts cannot do, and why
    models               tiny hybrid models: configuration and weights
    sizes                the numbers of a trace's configuration
    vllm_config          a `VllmConfig` from these numbers, for every kit
    shadow_config        a trace's configuration as a `VllmConfig`
    layout               the cache that vLLM built, in the reference's terms
    engine               runner, cache allocation, graphs, scheduler, around a kit: what stands for the model
    shadow_kit           the kit of shadow layers; that of real models is in gpu
    runner_adapter       the two model runners (V1 and V2) behind one interface
    graphs               full decode graphs: capture and replay on a CPU
    counterparts         clients and what they send, a KV connector, the other data-parallel rank
    cache_events         a subscriber to KV events

From a step to records:

    target               the `Target` protocol
    host_view            the host's metadata as a `View`
    pool_reader          the only reader of the block pool, hash map, free queue and block tables
    shadow               layers and drafter in the place of the model; what they record
    rows                 what the metadata of the kernels tells each row to read and write
    interpreted_kernels  a fast interpreter for the runner's Triton kernels
    gpu                  the same on a GPU, with real models: their factory, engine and target

From a finding to a report:

    deployment           the server that a trace stands for
    front_door           whether vLLM, given its command, arrives at what ran; what the adapter sets itself
    confirmation         forms of a failing trace that real models can run, and what they compute
    repro                stand-alone reproducers
    repro_engine         the clients that they inline
    scheduler_test       tests of vLLM's scheduler alone
    engine_test_tree     where tests stand in vLLM's own tree

Only `release`, `factory`, `capabilities`, `stock`, `options`, `kit_limits`, `models`, `sizes`, `deployment`,
`front_door`, `confirmation`, `repro`, `scheduler_test.writing` and `engine_test_tree` may be imported where vLLM is not
installed.
"""
