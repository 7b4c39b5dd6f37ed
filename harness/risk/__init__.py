"""What the silence of a campaign is worth: estimates of what its traces have not shown.

species_counts  which species were seen in one trace, in two, in more; merged over workers and shards, kept on disk
estimates       the chance that the next trace shows something new, species left, what the next traces show
binomial        an upper bound of the rate of failing traces
"""
