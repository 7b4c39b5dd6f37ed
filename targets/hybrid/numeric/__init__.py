"""The numeric run of the built-in target: the same trace, the same metadata, real bytes and real kernels.

factory          the door: factories of numeric targets
target           the numeric target for any class of built-in target
shadows          symbolic parts that repeat their work on the device
device_state     device memory of one engine, and the order of its device work
backend          devices, and the kernels that each uses
paging           page size and byte offsets of all groups
pool             one tensor of bytes: typed views, guards, poison, three fills of dead memory side by side
offloaded_pages  pages on the host, of a connector or another tier
prefetch         uploads for a step, started when it is planned
moves            zeroing, copies, loads and saves, each checked bit for bit
kernel_calls     the kernel calls of the symbolic step
arrays           arrays of one flat batch for all rows, layers and fills, made from kernel calls
state_arrays     the same for state layers
tables           block tables as the device has them
indices          expected indices of the device, and the entries that the host overrides
metadata         indices computed by kernels on the device
forward          one step on the device: inputs, indices, layers, read-out, checks
mixers           recurrences of the state layers
graphs           persistent buffers, capture and replay of graphs
collective       the "has work" vote of ranks in several processes
kernels/         the operations on bytes: Triton kernels, and a plain torch reference

The numeric run takes no decisions. It takes block tables, columns, copies and zero lists from what the symbolic step
did, so a mutant of any symbolic part is a mutant of the numeric run as well.

Of the built-in target, only this package imports torch. Only `targets/hybrid/factory.py` imports it.
"""
