"""A real vLLM as target: its own scheduler, cache manager, block pool and model runner, on a CPU.

Replaced are the layers (they compute tags, `layers`), the drafter (`drafter`) and the interpreter of the runner's
small Triton kernels (`interpreter`). Everything that moves block ids around is vLLM's own.

    factory   what the target can do; opens one engine per trace
    compat    every difference between vLLM releases, found by looking at what is there
    configuration  what the platform would choose for a small GPU
    bringup   runner, cache allocation, captured graphs, scheduler
    graphs    full decode graphs: what a replay bakes in, and what it reads anew
    layers    shadow layers: tags in vLLM's own KV tensors, at the places that vLLM's own metadata names
    state_layers  those with a recurrent state; contracts: gated delta net or Mamba 2
    metadata  reads that metadata into plain rows, as the real kernels do
    worker    the two model runners (V1 and V2) behind one interface
    drafter   proposes what the trace asks for
    hooks     sees zeroing, copies and the forward go by, and records them
    views     the host's metadata as a `View`
    target    the `Target` protocol on top

Only `factory` may be imported where vLLM is not installed.
"""
