"""Cuts a failing trace down, and varies it.

reduce       cuts a failing trace down with its signature kept (`Reducer`, `reduce_trace`)
still_fails  whether a candidate of a reduction still fails in the same way
neighbours   traces that differ a little from a failing one, to try a patch on
variants     traces that differ from another one in one property, to ask what a failure needs
"""
