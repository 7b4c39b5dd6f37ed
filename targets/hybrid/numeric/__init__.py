"""The numeric run of the embedded target: the same trace, the same metadata, real bytes and real kernels.

    backend    which device, which kernels
    machine    everything of one engine that lives on the device, and the order of its work
    pool       one tensor of bytes: pages, typed views, guards, poison, three fills of dead memory side by side
    outside    what a connector or another tier keeps: pages on the host
    moves      zeroing, copies, loads and saves, each checked bit for bit
    calls      what the symbolic step asked of its kernels
    arrays     from calls to index arrays: one flat batch for all rows, layers and fills
    forward    one step on the device: inputs, layers, read-out, checks
    graphs     persistent buffers, capture and replay
    parts      the symbolic parts with a numeric shadow, and how a target class gets them

Key insight: nothing is decided here. Block ids, state indices, copies and zero lists are taken from what the symbolic
step really did, so a mutant of any symbolic part is a mutant of the numeric run as well.

Only this package and `device` import torch.
"""
