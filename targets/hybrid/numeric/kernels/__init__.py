"""The operations of a hybrid model on a byte-level pool, in plain torch and as Triton kernels.

ops               the contract of the operations: shapes, dtypes, edge cases
implementations   the implementation for a device
torch_reference/  each operation in plain torch, as loops over rows and tokens
triton_kernels    each operation as one launch of Triton kernels
metadata          index tensors of the operations
attention         paged attention (Triton)
kv_cache          writing KV (Triton)
conv              causal convolution (Triton)
ssm               Mamba 2 (Triton)
delta             gated delta net (Triton)
tables            block tables, slots, state indices, boundary stops (Triton)
copies            copies of byte ranges (Triton)
zeroing           zeroing of blocks (Triton)
language          helpers of the Triton kernels
streams           side streams for copies between host and device
staging           uploads and downloads through pinned memory

No module here schedules or owns blocks. `implementations` imports torch and triton on demand, so the symbolic target
needs neither.
"""
