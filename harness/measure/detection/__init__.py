"""Measures whether known bugs are found, and how fast.

trial       one mutant, one seed: how long until it is found
matrix      every mutant with several seeds
statistics  medians and ratios over trials
result      matrix.json: written, and read again to compare
tables      the same for the terminal and for Markdown
"""
