"""The numeric run of the embedded target: the same trace, the same metadata, real bytes and real kernels.

    backend    which device, which kernels
    machine    everything of one engine that lives on the device, and the order of its work
    paging     how the pages of all groups are made equal, and what lies where in one
    pool       one tensor of bytes: typed views, guards, poison, three fills of dead memory side by side
    outside    what a connector or another tier keeps: pages on the host
    ahead      what is sent for a step as soon as it is planned
    moves      zeroing, copies, loads and saves, each checked bit for bit
    calls      what the symbolic step asked of its kernels
    arrays     from calls to arrays: one flat batch for all rows, layers and fills; state_arrays for state layers
    tables     block tables as the device has them
    indices    the rule of what the device must compute from them, and what is sent because it would not
    metadata   the kernels that compute it
    forward    one step on the device: inputs, indices, layers, read-out, checks
    mixers     the recurrences of state layers
    graphs     persistent buffers, capture and replay
    parts      the symbolic parts with a numeric shadow, and how a target class gets them

Key insight: nothing is decided here. Block tables, columns, copies and zero lists are taken from what the symbolic
step really did, so a mutant of any symbolic part is a mutant of the numeric run as well.

Only this package and `device` import torch.
"""
