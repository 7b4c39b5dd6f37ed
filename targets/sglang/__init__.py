"""SGLang: a radix tree with one state slot per node, real scheduler, tree, pools and allocators, on a CPU.

The scheduler is SGLang's own class without its constructor, the model is replaced by shadow layers that keep tags in
SGLang's own state and KV tensors. See docs/explanation/sglang.md.
"""
