"""A real vLLM with real kernels: its own models with random weights, on a GPU.

Beside the CPU adapter nothing of the model is replaced: vLLM's model classes, Triton kernels and CUDA graphs run. Beside
each forward the shadow layers of the CPU adapter run on the host (`mirror`), from the metadata that vLLM built for its
kernels, so that every observation of the CPU adapter is made here by the same code. The tokens are those of the tag
model: a trace means the same steps on a CPU and on a GPU. What the real model computes is observed as log-probabilities.

    devices    where kernels run, and what is stood in because a wheel's binaries are missing
    models     tiny hybrid models: configuration and weights
    configuration  a trace's configuration as a `VllmConfig` for a GPU
    mirror     tags on the host, moved as vLLM's metadata and copies say
    real_model vLLM's model: runs the mirror, chooses the tag model's tokens, keeps its own log-probabilities
    replay     the same for captured CUDA graphs
    engine     runner, caches, graphs, scheduler for one trace
    cold       the same tokens alone in an empty engine
    target     several engines that differ in what unused memory holds, as one target
    scaling    a trace for other block sizes

`devices` and `scaling` may be imported where vLLM is not installed.
"""
