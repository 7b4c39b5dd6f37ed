"""Whether known bugs are found, and how fast.

canary      one planted bug in every campaign: if it is not found, silence proves nothing
trial       one mutant, one seed: how long until it is found
matrix      every mutant with several seeds
statistics  medians and ratios over trials
tables      the same for the terminal and for Markdown
"""
