"""Targets: implementations under test, one folder each, behind the protocol in `base`.

base                the protocol, traces and environments, for all of them
hybrid              the built-in target, with Triton kernels, and its mutants
sequences           a built-in memory of sequences with shared cells and snapshots, and its client
vllm                vLLM
sglang              SGLang
transformers        Hugging Face transformers
llamacpp            llama.cpp's memory of hybrid models, driven through its C API
triton_interpreter  a fast interpreter for Triton kernels on a CPU
"""
